// loopspec calibrate: which depths are best for a model on this machine, and why.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "calibrate/calibration_page.h"
#include "calibrate/cost_pace.h"
#include "engine/load/calibration.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "engine/memory_bound.h"
#include "engine/run_request.h"
#include "tools/bench_concurrency.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/progress.h"
#include "tools/prompts.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

namespace fs = std::filesystem;

struct CalibrateOptions {
  ModelOptions model;
  std::string prompts, output, measure = "6", view = "greedy";
  SamplingParams sampling;
  bool chat = false, json = false;
  int prompt_tokens = 0;  // of made prompts; 0: prompts are from a file
  int positions = 4096, prompt_positions = 0, max_tokens = 128, proposals = 3;
  int measure_prompts = 4, measure_tokens = 0, repeat = 3;
  uint64_t seed = 0;
};

// Ctrl-C: there is nothing to show for half a calibration.
void StopIfInterrupted() {
  if (Interrupted()) Fail("interrupted: nothing was written");
}

struct Prompt {
  std::vector<int32_t> tokens;
  std::string where;
};

// Positions of a prompt that are looked at.
int64_t LookedAt(const CalibrateOptions& options, const Prompt& prompt) {
  const auto tokens = static_cast<int64_t>(prompt.tokens.size());
  return options.prompt_positions > 0 ? std::min<int64_t>(tokens, options.prompt_positions)
                                      : tokens;
}

void CheckPrompt(const CalibrateOptions& options, const Prompt& prompt, const ModelSpec& spec) {
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

std::vector<int32_t> EncodePrompt(const CalibrateOptions& options, const PromptEntry& entry,
                                  const LoadedModel& loaded) {
  try {
    Request request;
    if (options.chat)
      request.messages = {{"user", entry.prompt}};
    else
      request.prompt = entry.prompt;
    return loaded.EncodePrompt(request);
  } catch (const Error& error) {
    Fail("{}: {}", entry.where, error.what());
  }
}

std::vector<Prompt> MakePrompts(const CalibrateOptions& options, const LoadedModel& loaded) {
  const ModelSpec& spec = loaded.spec();
  std::vector<Prompt> prompts;
  if (options.prompt_tokens > 0) {
    for (auto& made : MadePrompts(options.measure_prompts, options.prompt_tokens, spec.vocab)) {
      prompts.push_back({std::move(made), "--prompt-tokens"});
      CheckPrompt(options, prompts.back(), spec);
    }
    return prompts;
  }
  loaded.tokenizer();
  if (options.chat) loaded.chat_template();
  int64_t sum = 0;
  for (const PromptEntry& entry : ReadPrompts(options.prompts, 0)) {
    prompts.push_back({EncodePrompt(options, entry, loaded), entry.where});
    CheckPrompt(options, prompts.back(), spec);
    sum += LookedAt(options, prompts.back());
    if (sum >= options.positions) break;  // nobody will look at more
  }
  return prompts;
}

DecodeRequest BaseRequest(const CalibrateOptions& options, const LoadedModel& loaded) {
  DecodeRequest request;
  if (options.view == "sampling") request.sampling = options.sampling;
  request.max_tokens = options.max_tokens;
  // After made prompts an end of the text means nothing either.
  if (options.prompt_tokens == 0) request.stop_tokens = loaded.special().eos;
  request.seed = options.seed;
  request.group = 0;
  request.early = EarlyChildren::kLookup;
  return request;
}

// A text of which at most `room` positions are looked at: fewer of the prompt first, whose last
// position is where the model's own text begins, then fewer of that text.
CalibrationText MakeText(const CalibrateOptions& options, const Prompt& prompt,
                         std::span<const CommittedToken> written, int64_t room) {
  CalibrationText text{prompt.tokens, std::ssize(prompt.tokens), 0};
  text.first = text.prompt - LookedAt(options, prompt);
  for (const CommittedToken& token : written) text.tokens.push_back(token.token);
  int64_t over = std::max<int64_t>(0, std::ssize(text.tokens) - text.first - room);
  const int64_t skipped = std::min(over, text.prompt - 1 - text.first);
  text.first += skipped;
  over -= skipped;
  text.tokens.resize(text.tokens.size() - static_cast<size_t>(over));
  return text;
}

// The texts of all prompts, until there are as many positions as asked. `pace` follows their steps.
std::vector<CalibrationText> WriteTexts(const CalibrateOptions& options,
                                        const std::vector<Prompt>& prompts, DecodeRequest request,
                                        Scheduler& scheduler, CostPace& pace) {
  std::vector<CalibrationText> texts;
  ProgressLine progress(kQuietSeconds, ProgressLine::Otherwise::kPlainLines);
  int64_t written = 0;
  const int64_t all = (std::ssize(prompts) + 1) * options.max_tokens;
  const auto run = [&](const DecodeRequest& what) {
    RequestResult result = RunRequest(
        scheduler, {.request = what, .report_prefill = true}, [&](const StreamEvent& event) {
          written += event.kind == StreamEvent::Kind::kToken ? 1 : 0;
          progress.Show("writing texts", written, all, "tokens at most");
          return !Interrupted();
        });
    StopIfInterrupted();
    pace.ObserveText(result.times);
    return result;
  };
  scheduler.set_hooks({.after_step = [&](const StepPlan& plan, const StepResult& result) {
    pace.Observe(plan, result);
  }});
  // Steps of one row are rare otherwise.
  DecodeRequest plain = request;
  plain.prompt = prompts.front().tokens;
  plain.depths.clear();
  plain.early = EarlyChildren::kOff;
  run(plain);
  int64_t positions = 0;
  for (const Prompt& prompt : prompts) {
    if (positions >= options.positions) break;
    request.prompt = prompt.tokens;
    const RequestResult result = run(request);
    texts.push_back(MakeText(options, prompt, result.tokens, options.positions - positions));
    positions += std::ssize(texts.back().tokens) - texts.back().first;
  }
  scheduler.set_hooks({});
  return texts;
}

DepthProfile Profile(const CalibrateOptions& options, const std::vector<CalibrationText>& texts,
                     Backend& backend) {
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
  ProgressLine progress(kQuietSeconds, ProgressLine::Otherwise::kPlainLines);
  for (const CalibrationText& text : texts) {
    profiler.Add(text, [&](int64_t done) {
      progress.Show("reading out every depth", before + done, total, "positions");
    });
    before += looked_at(text);
    StopIfInterrupted();
  }
  DepthProfile profile = profiler.Finish();
  if (profile.generated.positions == 0)
    Fail("{}: the model wrote nothing after these prompts, so there is nothing to calibrate by",
         options.prompt_tokens > 0 ? "--prompt-tokens" : options.prompts);
  return profile;
}

// Of those that are as fast as the fastest, within the error of a prediction, the one with the
// fewest proposals comes first: it asks least of what was assumed.
void PreferFewer(std::vector<Prediction>& sorted) {
  constexpr double kAsFast = 0.97;
  auto best = sorted.begin();
  for (auto it = sorted.begin(); it != sorted.end(); ++it) {
    if (it->tokens_per_second < kAsFast * sorted.front().tokens_per_second) break;
    if (it->depths.size() < best->depths.size()) best = it;
  }
  std::rotate(sorted.begin(), best, best + 1);
}

void SortBySpeed(std::vector<Prediction>& predictions) {
  std::stable_sort(predictions.begin(), predictions.end(),
                   [](const Prediction& a, const Prediction& b) {
                     return a.tokens_per_second > b.tokens_per_second;
                   });
}

void Predict(int threads, CalibrationReport& report) {
  constexpr size_t kWithBudgets = 10;
  const DepthProfile& profile = report.profile;
  report.autoregressive = PredictAutoregressive(profile.recurrence, report.request);
  const auto& list = report.view == RatesView::kGreedy ? profile.greedy : profile.sampled;
  ThreadPool team(threads);
  team.FixTeam(team.size());  // simulations take unequally long
  ProgressLine progress(kQuietSeconds, ProgressLine::Otherwise::kPlainLines);
  const auto predict = [&](std::span<const DepthRates> sets, bool budgets) {
    auto predictions = PredictSpeeds(sets, profile.recurrence, report.request,
                                     report.autoregressive, budgets, team, [&](size_t done) {
                                       progress.Show("predicting", static_cast<int64_t>(done),
                                                     std::ssize(sets), "sets of depths");
                                       return !Interrupted();
                                     });
    StopIfInterrupted();
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
  PreferFewer(report.predictions);
}

int SetsToMeasure(const CalibrateOptions& options) {
  if (options.measure == "all") return INT32_MAX;
  int count = 0;
  const char* end = options.measure.data() + options.measure.size();
  const auto [at, error] = std::from_chars(options.measure.data(), end, count);
  if (error != std::errc() || at != end || count < 0)
    Fail("--measure {}: expected a number of sets of depths, or all", options.measure);
  return count;
}

// Which sets are timed: autoregressive decoding, the best predictions, and others spread over the
// whole range of predicted speeds.
std::vector<MeasuredSpeed> ToMeasure(const CalibrateOptions& options,
                                     const CalibrationReport& report) {
  const auto all = static_cast<int>(report.predictions.size());
  const int count = std::min(SetsToMeasure(options), all);
  std::vector<MeasuredSpeed> list;
  if (count == 0) return list;
  list.emplace_back();
  const int best = std::min(count, count < 8 ? 2 : 4);
  for (int i = 0; i < count; ++i) {
    const int spread = count - best;
    const int at = i < best ? i : best + (i - best + 1) * (all - best) / std::max(1, spread) - 1;
    list.emplace_back().depths = report.predictions[static_cast<size_t>(at)].depths;
  }
  return list;
}

void Measure(const CalibrateOptions& options, const Model& model,
             const std::vector<Prompt>& prompts, DecodeRequest request, Backend& backend,
             CalibrationReport& report) {
  report.measured = ToMeasure(options, report);
  if (report.measured.empty()) return;
  SchedulerOptions one = OneAtATime(report.step_cost);
  one.cache_bytes = -1;  // only decoding is timed: one reading of a prompt serves all sets
  Scheduler scheduler(backend, one);
  if (options.measure_tokens > 0) request.max_tokens = options.measure_tokens;
  const size_t used =
      std::min<size_t>(prompts.size(), static_cast<size_t>(options.measure_prompts));
  const size_t ways = report.measured.size();
  const int64_t total = static_cast<int64_t>(ways * used) * options.repeat;
  std::vector<double> bytes(ways), busy(ways);
  ProgressLine progress(kQuietSeconds, ProgressLine::Otherwise::kPlainLines);
  int64_t done = 0;
  for (int repeat = 0; repeat < options.repeat; ++repeat) {
    std::vector<double> seconds(ways), tokens(ways);
    for (size_t i = 0; i < used * ways; ++i) {
      const size_t j = i / ways;
      // Another one begins each time, so that a slow moment does not meet always the same.
      const size_t way = (i + static_cast<size_t>(repeat) + j) % ways;
      MeasuredSpeed& measured = report.measured[way];
      request.prompt = prompts[j].tokens;
      request.depths = measured.depths;
      request.early = measured.depths.empty() ? EarlyChildren::kOff : EarlyChildren::kLookup;
      request.prior = PriorOf(report.Find(measured.depths)->rates);
      const RequestResult result = RunRequest(scheduler, {.request = request},
                                              [](const StreamEvent&) { return !Interrupted(); });
      StopIfInterrupted();
      seconds[way] += result.times.decode;
      tokens[way] += static_cast<double>(result.tokens.size()) - 1;
      busy[way] += result.times.busy();
      bytes[way] += BytesRead(model, backend.options(), result.statistics);
      progress.Show("measuring", ++done, total, "runs");
    }
    for (size_t way = 0; way < ways; ++way) {
      if (seconds[way] > 0) report.measured[way].rates.push_back(tokens[way] / seconds[way]);
    }
  }
  for (size_t way = 0; way < ways; ++way) {
    if (report.request.bandwidth > 0 && busy[way] > 0)
      report.measured[way].floor_share = bytes[way] / report.request.bandwidth / busy[way];
  }
}

std::string Shares(const std::vector<double>& shares) {
  std::string text;
  for (const double share : shares)
    text += (text.empty() ? "" : "/") + fmt::format("{:.1f}", 100 * share);
  return text.empty() ? "-" : text;
}

void PrintDepths(const CalibrationReport& report) {
  const DepthProfile& profile = report.profile;
  fmt::print("{:>5}{:>22}{:>24}\n", "depth", "same choice, %", "distance (TV)");
  fmt::print("{:>5}{:>11}{:>11}{:>12}{:>12}\n", "", "generated", "prompts", "generated", "prompts");
  for (int depth = 1; depth < profile.recurrence; ++depth) {
    const auto i = static_cast<size_t>(depth) - 1;
    fmt::print("{:>5}{:>11.2f}{:>11.2f}{:>12.5f}{:>12.5f}\n", depth,
               100 * profile.generated.agreement[i], 100 * profile.prompts.agreement[i],
               profile.generated.distance[i], profile.prompts.distance[i]);
  }
  if (!report.envelope) {
    fmt::print("no envelope: {}\n", report.no_envelope);
    return;
  }
  const DepthChoice choice = ChooseDepths(*report.envelope, profile.recurrence);
  fmt::print(
      "envelope {:.4f} r^-{:.3f} (within {:.2f}x); closed form ({:.2f}, {:.2f}), whose condition "
      "R > {:.2f} {}\n",
      report.envelope->beta, report.envelope->alpha, report.envelope->worst_ratio, choice.depths.d1,
      choice.depths.d2, choice.smallest_recurrence,
      choice.condition_holds ? "holds" : "does not hold");
}

void PrintSpeeds(const CalibrationReport& report) {
  fmt::print("\n{:<16}{:>16}{:>12}{:>10}{:>7}{:>7}{:>6}{:>11}{:>9}{:>8}{:>11}{:>8}\n", "depths",
             "accepted %", "gate %", "per pass", "rows", "budget", "group", "predicted", "speedup",
             "bound", "measured", "bound");
  size_t shown = 0;
  const auto print = [&](const Prediction& p) {
    const MeasuredSpeed* m = report.FindMeasured(p.depths);
    if (shown >= 12 && m == nullptr) return;
    ++shown;
    const auto percent = [](double share) {
      return share > 0 ? fmt::format("{:.0f} %", 100 * share) : std::string("-");
    };
    fmt::print("{:<16}{:>16}{:>12}{:>10.2f}{:>7.1f}{:>7}{:>6}{:>11.1f}{:>8.2f}x{:>8}{:>11}{:>8}\n",
               DepthsText(p.depths), Shares(p.rates.accepted), Shares(p.rates.gate),
               p.simulation.tokens_per_pass, p.simulation.rows,
               p.row_budget > 0 ? std::to_string(p.row_budget) : "cost", p.simulation.group,
               p.tokens_per_second, p.speedup, percent(p.bound_share),
               m != nullptr ? fmt::format("{:.1f}", m->median()) : "",
               m != nullptr ? percent(m->floor_share) : "");
  };
  print(report.autoregressive);
  for (const Prediction& p : report.predictions) print(p);
  if (shown < report.predictions.size() + 1)
    fmt::print("({} sets of depths; all are in the file and on the page)\n",
               report.predictions.size());
  if (report.triples_thinned)
    fmt::print("sets of three depths: over a grid that grows by about a third\n");
}

void PrintQuality(const CalibrationReport& report) {
  const PredictionQuality quality = Judge(report);
  if (!quality.rank_correlation) return;
  fmt::print(
      "predicted against measured over {} sets: rank correlation {:.3f}; the chosen one reaches "
      "{:.1f} % of the measured best, {}\n",
      quality.compared, *quality.rank_correlation, 100 * quality.chosen_over_best,
      DepthsText(quality.best));
}

// Writes the file and the page into the first folder that takes them; returns it.
fs::path WriteResults(const CalibrateOptions& options, const fs::path& folder, const Model& model,
                      const Backend& backend, const CalibrationReport& report) {
  std::vector<fs::path> folders;
  if (!options.output.empty()) {
    folders.emplace_back(options.output);
  } else {
    if (access(folder.c_str(), W_OK) == 0) folders.push_back(folder);
    if (const auto cached = CalibrationInCache(folder)) folders.push_back(cached->parent_path());
  }
  std::string why = "there is no cache folder";
  for (const fs::path& place : folders) {
    std::error_code error;
    fs::create_directories(place, error);
    const fs::path file = place / kCalibrationName;
    try {
      std::string old;
      if (fs::is_regular_file(file, error)) old = ReadFile(file);
      WriteTextFile(file.string(), CalibrationJson(report, model, old).dump(1) + "\n");
      WriteTextFile((place / "loopspec-calibration.html").string(), CalibrationPage(report));
      if (report.spread > kSteadySpread)
        return place;  // costs of a busy machine are of no use to anybody
      if (!options.output.empty())
        WriteTextFile((place / "step-cost.json").string(), StepCostText(report.step_cost));
      else
        SaveStepCost(backend, report.step_cost);
      return place;
    } catch (const Error& failure) {
      why = failure.what();
    }
  }
  Fail("the calibration cannot be kept: {}", why);
}

void RunCalibrate(const CalibrateOptions& options) {
  CatchInterrupt();
  EngineOptions engine = options.model.ToEngineOptions();
  const LoadedModel loaded(engine);
  const Model& model = loaded.model();
  const int recurrence = model.spec.recurrence;
  if (recurrence < 2) Fail("{} has R = 1: there are no depths to choose", options.model.model);
  CheckSamplingParams(options.sampling, model.spec.vocab);
  if (options.sampling.greedy())
    Fail("--temperature {}: the sampled view needs one above 0; the greedy view is always there",
         options.sampling.temperature);
  SetsToMeasure(options);  // a mistake is told before the work
  const std::vector<Prompt> prompts = MakePrompts(options, loaded);
  size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  std::vector<int> every(static_cast<size_t>(recurrence) - 1);
  std::iota(every.begin(), every.end(), 1);
  engine.kv_positions =
      static_cast<int64_t>(longest) + std::max(options.max_tokens, options.measure_tokens);
  const auto backend = MakeBackend(model, engine, every);

  CalibrationReport report;
  report.model = options.model.model;
  report.device = backend->device();
  report.chip = backend->chip();
  report.device_class = NameOf(IsCpu(options.model.device) ? DeviceClass::kCpu : DeviceClass::kGpu);
  report.compute = backend->options().compute == ComputeMode::kF32 ? "f32" : "bf16";
  report.sampling = options.sampling;
  report.view = options.view == "sampling" ? RatesView::kSampled : RatesView::kGreedy;
  report.triples_thinned = options.proposals > 2 && TriplesAreThinned(recurrence);
  report.request.bytes = BytesOf(model, backend->options().compute);
  report.request.bandwidth = backend->ReadBandwidth();
  report.step_cost = MeasureStepCost(*backend);

  DecodeRequest request = BaseRequest(options, loaded);
  request.depths = options.model.ChooseDepths(model).depths;
  Scheduler scheduler(*backend, OneAtATime(report.step_cost));
  CostPace pace(report.step_cost);
  const std::vector<CalibrationText> texts = WriteTexts(options, prompts, request, scheduler, pace);
  report.profile = Profile(options, texts, *backend);
  report.request.cost = pace.Corrected();
  report.request.text_tokens =
      static_cast<int>(report.profile.generated.positions / std::ssize(texts));
  report.envelope = FitProfile(report.profile, &report.no_envelope);
  report.request.context = static_cast<int64_t>(report.profile.context);
  report.request.guess_offered = report.profile.guess_offered;
  report.request.guess_right = report.profile.guess_right;
  Predict(engine.threads, report);
  Measure(options, model, prompts, request, *backend, report);
  report.spread = std::max(CostSpread(report.step_cost, MeasureStepCost(*backend)),
                           LargestSpread(report.measured));
  const fs::path place = WriteResults(options, loaded.folder(), model, *backend, report);
  if (report.spread > kSteadySpread) {
    LogWarning(
        "the machine was busy: the same work took up to {:.2f} times as long at one time as at "
        "another, so speeds here cannot be trusted, and step costs were not kept",
        report.spread);
  }
  if (options.json) {
    fmt::print("{}\n", CalibrationJson(report, model, "").dump(2));
    return;
  }
  fmt::print("{} on {} ({}): {} positions of generated text, {} of prompts; {} decoding\n",
             report.model, report.device, report.chip, report.profile.generated.positions,
             report.profile.prompts.positions, options.view);
  fmt::print("distances under temperature {:g}, top-p {:g}; read bandwidth {}/s\n\n",
             options.sampling.temperature, options.sampling.top_p,
             HumanBytes(report.request.bandwidth));
  PrintDepths(report);
  PrintSpeeds(report);
  PrintQuality(report);
  fmt::print("\nchosen: {}; {} now uses these depths by default where it finds\n  {}\n",
             DepthsText(report.chosen().depths), "decoding", (place / kCalibrationName).string());
  fmt::print("charts: {}\n", (place / "loopspec-calibration.html").string());
}

}  // namespace

void AddCalibrateCommand(Command app) {
  auto options = std::make_shared<CalibrateOptions>();
  options->sampling.temperature = 1.0f;
  options->sampling.top_p = 0.7f;
  const Command command = app.AddCommand(
      "calibrate", "Measure which depths are best for a model here, for decoding to use");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.AddOption(name, value, help).ShowDefault();
  };
  const Option prompts =
      command.AddOption("--prompts", options->prompts,
                        "File with one prompt per line, or JSONL with prompt, question or text");
  const Option made =
      command
          .AddOption("--prompt-tokens", options->prompt_tokens,
                     "Made prompts of N tokens instead, which mean nothing, as many as "
                     "--measure-prompts; for synthetic twins")
          .Range(1, 1 << 30)
          .TypeName("N");
  command.AddFlag("--chat", options->chat, "Send each prompt as a user's message");
  add("--positions", options->positions, "Positions to look at, prompts and answers together")
      .Range(2, 1 << 24)
      .TypeName("N");
  command
      .AddOption("--prompt-positions", options->prompt_positions,
                 "Of each prompt only its last N positions: long prompts are there for the context")
      .Range(1, 1 << 24)
      .TypeName("N");
  add("--max-tokens,-n", options->max_tokens, "Tokens to write after each prompt")
      .Range(2, 1 << 20)
      .TypeName("N");
  add("--view", options->view, "What decoding is tuned for: greedy or sampling")
      .OneOf({"greedy", "sampling"});
  add("--temperature", options->sampling.temperature, "Of the sampled view");
  add("--top-p", options->sampling.top_p, "Of the sampled view");
  add("--top-k", options->sampling.top_k, "Of the sampled view; 0 is off");
  add("--min-p", options->sampling.min_p, "Of the sampled view; 0 is off");
  add("--proposals", options->proposals, "Depths in a set at most").Range(1, 3).TypeName("N");
  add("--measure", options->measure,
      "Sets of depths to time, interleaved, spread over the predictions: a number, or all");
  add("--measure-prompts", options->measure_prompts, "Prompts of each timing")
      .Range(1, 1 << 20)
      .TypeName("N");
  command
      .AddOption("--measure-tokens", options->measure_tokens,
                 "Tokens of each timed text; default: --max-tokens")
      .Range(2, 1 << 20)
      .TypeName("N");
  add("--repeat", options->repeat, "Timings of each set; the median counts")
      .Range(1, 1000)
      .TypeName("N");
  AddSeed(command, "--seed", options->seed, "Seed of sampled texts");
  command.AddOption("--output,-o", options->output,
                    "Folder for the calibration, its page and the step costs; default: beside the "
                    "model, else the cache");
  command.AddFlag("--json", options->json, "Print the calibration as JSON");
  options->model.AddTo(command);
  command.SetFooter(
      "\nExample:\n  loopspec calibrate -m models/raven-demo --chat --prompts "
      "models/heldout_problems.jsonl --positions 2048");
  command.SetAction([=] {
    if (prompts.Count() + made.Count() != 1)
      Fail("calibrate needs prompts: --prompts FILE or --prompt-tokens N");
    if (made.Count() > 0 && options->chat) Fail("--chat goes with --prompts");
    RunCalibrate(*options);
  });
}

}  // namespace loopspec::tools
