#include "calibrate/calibration_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/field_error.h"
#include "calibrate/cost_pace.h"
#include "calibrate/exit_gate.h"
#include "engine/laboratory.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "fields/sampling_fields.h"

namespace loopspec {
namespace {

constexpr double kAsFast = 0.97;      // within the error of a prediction, and of most timings
constexpr double kGoodEnough = 0.06;  // what a choice may be slower than the best, as a logarithm
constexpr int kMostRepeats = 4;       // times as many as asked for, where they do not agree

void StopIfInterrupted(const CalibrationHooks& hooks) {
  if (hooks.interrupted()) Fail("interrupted: nothing was written");
}

Request BaseRequest(const CalibrationOptions& options, RatesView view) {
  Request request;
  request.sampling = view == RatesView::kSampled ? options.sampling : SamplingParams{};
  request.max_tokens = options.max_tokens;
  request.ignore_eos = true;  // but for these:
  request.stop_tokens = options.stop_tokens;
  request.seed = options.seed;
  SetDecoding(view == RatesView::kSampled ? options.sampled_depths : options.greedy_depths, true,
              request);
  ChangeLaboratory(request, [](Laboratory& laboratory) { laboratory.ids_alone = true; });
  return request;
}

// A text of which at most `room` positions are looked at: fewer of the prompt first, whose last
// position is where the model's own text begins, then fewer of that text.
CalibrationText MakeText(const CalibrationOptions& options, const CalibrationPrompt& prompt,
                         std::span<const Token> written, int64_t room) {
  CalibrationText text{prompt.tokens, std::ssize(prompt.tokens), 0};
  text.first = text.prompt - LookedAt(options, prompt);
  for (const Token& token : written) text.tokens.push_back(token.id);
  int64_t over = std::max<int64_t>(0, std::ssize(text.tokens) - text.first - room);
  const int64_t skipped = std::min(over, text.prompt - 1 - text.first);
  text.first += skipped;
  over -= skipped;
  text.tokens.resize(text.tokens.size() - static_cast<size_t>(over));
  return text;
}

// The texts of all prompts, until there are as many positions as asked. `pace` follows their steps.
std::vector<CalibrationText> WriteTexts(const CalibrationOptions& options,
                                        const std::vector<CalibrationPrompt>& prompts,
                                        Request request, Engine& engine, CostPace& pace,
                                        const CalibrationHooks& hooks) {
  std::vector<CalibrationText> texts;
  int64_t written = 0;
  const int64_t all = (std::ssize(prompts) + 1) * options.max_tokens;
  request.progress = true;  // so that a long prompt can be broken off
  ChangeLaboratory(request, [&](Laboratory& laboratory) {
    laboratory.after_step = [&](const StepPlan& plan, const StepResult& result) {
      pace.Observe(plan, result);
    };
  });
  const auto run = [&](const Request& what) {
    const auto tell = [&](int tokens) {
      written += tokens;
      hooks.progress("writing texts", written, all, "tokens at most");
      return !hooks.interrupted();
    };
    Result result = engine.Generate(
        what, [&](const Token&) { return tell(1); },
        [&](const Stream::Progress&) { return tell(0); });
    StopIfInterrupted(hooks);
    pace.ObserveText(result.statistics());
    return std::move(result.choices[0]);
  };
  // Steps of one row are rare otherwise.
  Request plain = request;
  plain.tokens = prompts.front().tokens;
  SetDecoding({}, false, plain);
  run(plain);
  int64_t positions = 0;
  for (const CalibrationPrompt& prompt : prompts) {
    if (positions >= options.positions) break;
    request.tokens = prompt.tokens;
    const Choice result = run(request);
    texts.push_back(MakeText(options, prompt, result.tokens, options.positions - positions));
    positions += std::ssize(texts.back().tokens) - texts.back().first;
  }
  return texts;
}

// What the model's exit gate says about the texts, as far as the device shows it.
std::optional<ExitReport> ExitGateOf(const Model& model, const std::vector<CalibrationText>& texts,
                                     Backend& backend, const CalibrationHooks& hooks) {
  const std::optional<ExitGate> gate = ExitGate::Of(model);
  if (!gate || backend.device() != "cpu") return std::nullopt;
  ExitReport report(backend.options().readout_depths);
  for (const CalibrationText& text : texts) {
    StopIfInterrupted(hooks);
    ReadExitGate(backend, *gate, text.tokens, static_cast<size_t>(text.first), report);
  }
  return report;
}

DepthProfile Profile(const CalibrationOptions& options, const std::vector<CalibrationText>& texts,
                     Backend& backend, const CalibrationHooks& hooks) {
  const int recurrence = backend.spec().recurrence;
  std::vector<std::vector<int>> sets;
  for (int k = 1; k <= options.proposals; ++k) {
    for (std::vector<int>& depths : AdmissibleDepths(recurrence, k))
      sets.push_back(std::move(depths));
  }
  DepthProfiler profiler(backend, options.sampling, sets);
  int64_t total = 0, before = 0;
  const auto looked_at = [](const CalibrationText& text) {
    return std::ssize(text.tokens) - text.first;
  };
  for (const CalibrationText& text : texts) total += looked_at(text);
  for (const CalibrationText& text : texts) {
    profiler.Add(text, [&](int64_t done) {
      StopIfInterrupted(hooks);
      hooks.progress("reading out every depth", before + done, total, "positions");
    });
    before += looked_at(text);
    StopIfInterrupted(hooks);
  }
  DepthProfile profile = profiler.Finish();
  if (profile.generated.positions == 0)
    Fail("the model wrote nothing after these prompts, so there is nothing to calibrate by");
  return profile;
}

void SortBySpeed(std::vector<Prediction>& predictions) {
  std::stable_sort(predictions.begin(), predictions.end(),
                   [](const Prediction& a, const Prediction& b) {
                     return a.tokens_per_second > b.tokens_per_second;
                   });
}

void Predict(int threads, const CalibrationHooks& hooks, CalibrationReport& report) {
  constexpr size_t kWithBudgets = 10;
  const DepthProfile& profile = report.profile;
  report.autoregressive = PredictAutoregressive(profile.recurrence, report.request);
  const auto& list = report.view == RatesView::kGreedy ? profile.greedy : profile.sampled;
  ThreadPool team(threads);
  team.FixTeam(team.size());  // simulations take unequally long
  const auto predict = [&](std::span<const DepthRates> sets, bool budgets) {
    auto predictions = PredictSpeeds(sets, profile.recurrence, report.request,
                                     report.autoregressive, budgets, team, [&](size_t done) {
                                       hooks.progress("predicting", static_cast<int64_t>(done),
                                                      std::ssize(sets), "sets of depths");
                                       return !hooks.interrupted();
                                     });
    StopIfInterrupted(hooks);
    return predictions;
  };
  report.predictions = predict(list, false);
  SortBySpeed(report.predictions);
  // Fixed budgets for the best ones alone: what the costs choose row by row is rarely beaten.
  std::vector<DepthRates> best;
  for (size_t i = 0; i < std::min(kWithBudgets, report.predictions.size()); ++i)
    best.push_back(report.predictions[i].rates);
  std::vector<Prediction> again = predict(best, true);
  std::move(again.begin(), again.end(), report.predictions.begin());
  SortBySpeed(report.predictions);
}

// Which sets are timed: autoregressive decoding, the best predictions, and others spread over the
// whole range of predicted speeds.
std::vector<MeasuredSpeed> ToMeasure(const CalibrationOptions& options,
                                     const CalibrationReport& report) {
  const auto all = static_cast<int>(report.predictions.size());
  const int count = std::min(options.measure, all);
  std::vector<MeasuredSpeed> list;
  if (count == 0) return list;
  list.emplace_back();
  const int best = std::min(count, 4);
  for (int i = 0; i < count; ++i) {
    const int spread = count - best;
    const int at = i < best ? i : best + (i - best + 1) * (all - best) / std::max(1, spread) - 1;
    list.emplace_back().depths = report.predictions[static_cast<size_t>(at)].depths;
  }
  return list;
}

void Measure(const CalibrationOptions& options, const std::shared_ptr<const LoadedModel>& loaded,
             const std::vector<CalibrationPrompt>& prompts, Request request,
             const std::shared_ptr<Backend>& backend, const CalibrationHooks& hooks,
             CalibrationReport& report) {
  report.measured = ToMeasure(options, report);
  if (report.measured.empty()) return;
  std::vector<std::vector<int>> sets;
  for (const MeasuredSpeed& measured : report.measured) sets.push_back(measured.depths);
  // Only decoding is timed: one reading of a prompt serves all sets.
  Engine engine = MakeLaboratoryEngine(loaded, backend, report.step_cost, std::move(sets), -1);
  if (options.measure_tokens > 0) request.max_tokens = options.measure_tokens;
  const size_t used =
      std::min<size_t>(prompts.size(), static_cast<size_t>(options.measure_prompts));
  const size_t ways = report.measured.size();
  int repeats = options.repeat;
  std::vector<double> bytes(ways), busy(ways);
  int64_t done = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<double> seconds(ways), tokens(ways);
    for (size_t i = 0; i < used * ways; ++i) {
      const size_t j = i / ways;
      // Another one begins each time, so that a slow moment does not meet always the same.
      const size_t way = (i + static_cast<size_t>(repeat) + j) % ways;
      MeasuredSpeed& measured = report.measured[way];
      request.tokens = prompts[j].tokens;
      SetDecoding(measured.depths, !measured.depths.empty(), request);
      ChangeLaboratory(request, [&](Laboratory& laboratory) {
        laboratory.prior = PriorOf(report.Find(measured.depths)->rates);
      });
      const Result result =
          engine.Generate(request, [&](const Token&) { return !hooks.interrupted(); });
      StopIfInterrupted(hooks);
      const Statistics& statistics = result.statistics();
      seconds[way] += statistics.decode_seconds;
      tokens[way] += static_cast<double>(statistics.decoded_tokens);
      busy[way] += statistics.busy_seconds();
      bytes[way] += statistics.bytes_read;
      hooks.progress("measuring", ++done, static_cast<int64_t>(ways * used) * repeats, "runs");
    }
    for (size_t way = 0; way < ways; ++way) {
      if (seconds[way] > 0) report.measured[way].rates.push_back(tokens[way] / seconds[way]);
    }
    // More of them where those so far do not tell which set to take.
    report.settled = ChoiceIsSettled(report.measured, ChooseFastest(report));
    if (repeat + 1 == repeats && !report.settled && repeats < kMostRepeats * options.repeat)
      ++repeats;
  }
  for (size_t way = 0; way < ways; ++way) {
    if (report.request.bandwidth > 0 && busy[way] > 0)
      report.measured[way].floor_share = bytes[way] / report.request.bandwidth / busy[way];
  }
}

}  // namespace

int64_t LookedAt(const CalibrationOptions& options, const CalibrationPrompt& prompt) {
  const auto tokens = static_cast<int64_t>(prompt.tokens.size());
  return options.prompt_positions > 0 ? std::min<int64_t>(tokens, options.prompt_positions)
                                      : tokens;
}

void CheckPrompt(const CalibrationOptions& options, const CalibrationPrompt& prompt,
                 const ModelSpec& spec) {
  if (prompt.tokens.empty()) Fail("{}: the prompt has no tokens", prompt.where);
  for (const int32_t token : prompt.tokens) {
    if (token >= spec.vocab)
      Fail("{}: the prompt has token {}, the vocabulary has {}", prompt.where, token, spec.vocab);
  }
  const int more = std::max(options.max_tokens, options.measure_tokens);
  const auto positions = static_cast<int64_t>(prompt.tokens.size()) + more;
  if (positions > spec.max_positions) {
    Fail("{}: a prompt of {} tokens and {} new ones make {}, the model's context is {}",
         prompt.where, prompt.tokens.size(), more, positions, spec.max_positions);
  }
}

bool ChoiceIsSettled(const std::vector<MeasuredSpeed>& measured, const std::vector<int>& chosen) {
  const auto own = std::find_if(measured.begin(), measured.end(),
                                [&](const MeasuredSpeed& m) { return m.depths == chosen; });
  if (own == measured.end()) return false;
  for (const MeasuredSpeed& other : measured) {
    if (&other == &*own) continue;
    const size_t n = std::min(other.rates.size(), own->rates.size());
    if (n < 2) return false;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) {
      const double gain = std::log(other.rates[i] / own->rates[i]);
      sum += gain;
      squares += gain * gain;
    }
    const auto count = static_cast<double>(n);
    const double mean = sum / count;
    const double variance = std::max(0.0, squares - sum * mean) / (count - 1);
    if (mean + 2 * std::sqrt(variance / count) > kGoodEnough) return false;
  }
  return true;
}

std::vector<int> ChooseFastest(const CalibrationReport& report) {
  struct Candidate {
    std::vector<int> depths;
    double rate;
  };
  std::vector<Candidate> candidates;
  for (const MeasuredSpeed& m : report.measured) {
    if (!m.rates.empty()) candidates.push_back({m.depths, m.median()});
  }
  if (candidates.empty()) {
    for (const Prediction& p : report.predictions)
      candidates.push_back({p.depths, p.tokens_per_second});
    candidates.push_back({{}, report.autoregressive.tokens_per_second});
  }
  double fastest = 0;
  for (const Candidate& candidate : candidates) fastest = std::max(fastest, candidate.rate);
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.rate < kAsFast * fastest) continue;
    const bool fewer =
        best == nullptr || candidate.depths.size() < best->depths.size() ||
        (candidate.depths.size() == best->depths.size() && candidate.rate > best->rate);
    if (fewer) best = &candidate;
  }
  return best == nullptr ? std::vector<int>{} : best->depths;
}

void CheckCalibration(const CalibrationOptions& options, const ModelSpec& spec,
                      const std::string& name) {
  if (spec.recurrence < 2) Fail("{} has R = 1: there are no depths to choose", name);
  CheckSamplingParams(options.sampling, spec.vocab);
  if (options.sampling.greedy()) {
    throw FieldError("temperature", fmt::format("{}", options.sampling.temperature),
                     "above 0 for the sampled view; the greedy view is always there");
  }
}

std::shared_ptr<Backend> PrepareCalibration(const Model& model, const ChosenDepths& chosen,
                                            const std::vector<CalibrationPrompt>& prompts,
                                            EngineOptions engine, CalibrationOptions& options) {
  size_t longest = 0;
  for (const CalibrationPrompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  engine.kv_memory = 0;
  engine.kv_positions =
      static_cast<int64_t>(longest) + std::max(options.max_tokens, options.measure_tokens);
  options.greedy_depths = chosen.depths;
  options.sampled_depths = chosen.sampled_depths;
  options.threads = engine.threads;
  std::vector<int> every(static_cast<size_t>(model.spec.recurrence) - 1);
  std::iota(every.begin(), every.end(), 1);
  return MakeBackend(model, engine, every);
}

void RunCalibration(const CalibrationOptions& options,
                    const std::shared_ptr<const LoadedModel>& loaded,
                    const std::vector<CalibrationPrompt>& prompts,
                    const std::shared_ptr<Backend>& shared_backend, const CalibrationHooks& hooks,
                    CalibrationReport& report) {
  if (prompts.empty()) Fail("there are no prompts to calibrate by");
  const Model& model = loaded->model();
  Backend& backend = *shared_backend;
  report.sampling = options.sampling;
  report.triples_thinned = options.proposals > 2 && TriplesAreThinned(model.spec.recurrence);
  report.request.bytes = BytesOf(model, backend.options().compute);
  report.request.bandwidth = backend.ReadBandwidth();
  const auto stop = [&] { StopIfInterrupted(hooks); };
  report.step_cost = MeasureStepCost(backend, kStepCostSeconds, stop);

  const Request request = BaseRequest(options, report.view);
  Engine engine = MakeLaboratoryEngine(loaded, shared_backend, report.step_cost,
                                       {options.greedy_depths, options.sampled_depths});
  CostPace pace(report.step_cost);
  const std::vector<CalibrationText> texts =
      WriteTexts(options, prompts, request, engine, pace, hooks);
  report.profile = Profile(options, texts, backend, hooks);
  report.exit_gate = ExitGateOf(model, texts, backend, hooks);
  report.texts = static_cast<int>(texts.size());
  report.request.cost = pace.Corrected();
  report.request.text_tokens =
      static_cast<int>(report.profile.generated.positions / std::ssize(texts));
  report.envelope = FitProfile(report.profile, &report.no_envelope);
  report.request.context = static_cast<int64_t>(report.profile.context);
  report.request.guess_offered = report.profile.guess_offered;
  report.request.guess_right = report.profile.guess_right;
  Predict(options.threads, hooks, report);
  Measure(options, loaded, prompts, request, shared_backend, hooks, report);
  report.chosen_depths = ChooseFastest(report);
  report.spread =
      std::max(CostSpread(report.step_cost, MeasureStepCost(backend, kStepCostSeconds, stop)),
               LargestSpread(report.measured));
}

}  // namespace loopspec
