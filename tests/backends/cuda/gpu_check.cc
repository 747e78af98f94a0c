// What scripts/gpu-check.py runs on checkpoints, demo models and full-size twins:
//   gpu_check synth NAME FOLDER [--agreement A]
//   gpu_check equal FOLDER [--tokens N] [--text N] [--seconds S] [--depths "1;1,2"]
//   gpu_check time FOLDER ... --context N --assume 0.90,0.075 [--depths 1,2] [--tokens N]
//             [--repeat N]
//   gpu_check few-bits FOLDER OUTPUT [--bits 8|4]: the checkpoint's matrices rounded
// Further: --device cpu|cuda, --results FILE (adds lines "key value"), --kv-type
// bf16|int8|loops:PLAN for equal and time; `time` takes several, "bf16;int8;loops:int8*8,last", and
// several folders, and times them in turn. Exit code 1: not equal.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/timer.h"
#include "calibrate/agreement.h"
#include "decode/assumed.h"
#include "decode/depths.h"
#include "engine/memory_bound.h"
#include "equality.h"
#include "prompts.h"
#include "quantize/quantize.h"
#include "tests/support/run_request.h"

namespace loopspec {
namespace {

// Positional words and --option value pairs.
struct Arguments {
  std::vector<std::string> words;
  std::map<std::string, std::string> options;

  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (!word.starts_with("--")) {
        words.push_back(word);
      } else if (i + 1 < argc) {
        options[word.substr(2)] = argv[++i];
      } else {
        Fail("{} needs a value", word);
      }
    }
  }
  std::string Text(const std::string& name, const std::string& fallback = "") const {
    const auto it = options.find(name);
    return it == options.end() ? fallback : it->second;
  }
  double Number(const std::string& name, double fallback) const {
    const std::string text = Text(name);
    if (text.empty()) return fallback;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !(value >= 0 && value <= 1e9))
      Fail("--{} {}: expected a number of at least 0", name, text);
    return value;
  }
  int Whole(const std::string& name, int fallback) const {
    return static_cast<int>(Number(name, fallback));
  }
  std::string Word(size_t at, const char* what) const {
    if (at >= words.size()) Fail("{} is missing", what);
    return words[at];
  }
};

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Lines "key value" for the table.
class Results {
 public:
  Results(const std::string& file, const std::filesystem::path& folder)
      : name_(std::filesystem::weakly_canonical(folder).filename().string()) {
    if (file.empty()) return;
    out_.open(file, std::ios::app);
    if (!out_) Fail("--results {} cannot be written", file);
  }
  template <typename T>
  void Add(const std::string& key, const T& value) {
    if (out_.is_open()) out_ << fmt::format("{}.{} {}\n", name_, key, value) << std::flush;
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::ofstream out_;
};

BackendMaker MakerFor(const Arguments& arguments) {
  const std::string device = arguments.Text("device", "cuda");
  if (device == "cpu") return MakeCpuBackend;
  if (device != "cuda") Fail("--device {}: expected cpu or cuda", device);
  std::string why;
  if (CudaDeviceCount(&why) == 0) Fail("--device cuda: {}", why);
  return [](const Model& model, const BackendOptions& options) {
    return MakeCudaBackend(model, options, 0);
  };
}

// The type of keys, and the plan of kLoops.
std::pair<KvType, std::string> ParseKvType(const std::string& text) {
  if (text == "bf16") return {KvType::kCompute, ""};
  if (text == "int8") return {KvType::kInt8, ""};
  if (text.starts_with("loops:")) return {KvType::kLoops, text.substr(6)};
  Fail("--kv-type {}: expected bf16, int8 or loops:PLAN", text);
}

int Synth(const Arguments& arguments) {
  SynthRequest request;
  request.like = arguments.Word(1, "the name of the model to be like");
  request.output = arguments.Word(2, "the folder to write");
  request.agreement = arguments.Number("agreement", request.agreement);
  request.layers = arguments.Whole("layers", 0);
  request.width = arguments.Whole("width", 0);
  request.vocab = arguments.Whole("vocab", 0);
  const BackendMaker make_backend = MakerFor(arguments);
  Timer timer;
  const SynthResult written = WriteSynthetic(request);
  const double seconds = timer.Seconds();
  const TwinReport report =
      CalibrateTwin(request, written, make_backend, arguments.Whole("positions", 256));
  fmt::print("{}: SYNTHETIC twin, {:.2f} GB written in {:.0f} s; agreement asked {:.3f}, measured",
             request.like, static_cast<double>(written.bytes) * 1e-9, seconds, request.agreement);
  for (size_t i = 0; i < report.agreement.depths.size(); ++i)
    fmt::print(" {:.3f} at depth {}", report.agreement.shares[i], report.agreement.depths[i]);
  fmt::print(" ({} round{}, {:.0f} s)\n", report.rounds, report.rounds == 1 ? "" : "s",
             timer.Seconds() - seconds);
  Results results(arguments.Text("results"), request.output);
  results.Add("agreement.asked", request.agreement);
  results.Add("agreement.measured", report.agreement.shares.at(0));
  return 0;
}

int FewBits(const Arguments& arguments) {
  QuantizeRequest request;
  request.source = arguments.Word(1, "the folder of the checkpoint");
  request.output = arguments.Word(2, "the folder to write");
  request.bits = arguments.Whole("bits", 8);
  if (request.bits != 8 && request.bits != 4) Fail("--bits {}: expected 8 or 4", request.bits);
  Timer timer;
  const QuantizeResult result = QuantizeModel(Model::Load(request.source), request);
  fmt::print("{}: {:.2f} of {:.2f} GB, rounded to {} bits in {:.0f} s\n", request.output.string(),
             static_cast<double>(result.bytes) * 1e-9,
             static_cast<double>(result.source_bytes) * 1e-9, request.bits, timer.Seconds());
  return 0;
}

int Equal(const Arguments& arguments) {
  EqualityRequest request;
  request.folder = arguments.Word(1, "the folder of the checkpoint");
  request.tokens = arguments.Whole("tokens", 1000);
  request.text = arguments.Whole("text", 400);
  request.seconds = arguments.Number("seconds", 0);
  std::tie(request.kv_type, request.key_plan) = ParseKvType(arguments.Text("kv-type", "bf16"));
  for (const std::string& depths : Split(arguments.Text("depths"), ';'))
    request.depth_sets.push_back(ParseDepths(depths));
  if (request.tokens < 1 || request.text < 1) Fail("--tokens and --text must be at least 1");
  Timer timer;
  const EqualityResult result = CompareDecoders(request, MakerFor(arguments));
  Results results(arguments.Text("results"), request.folder);
  int64_t compared = 0;
  for (const EqualityResult::Set& set : result.sets) {
    const std::string depths = fmt::format("{}", fmt::join(set.depths, ","));
    fmt::print(
        "{:<16} depths {:<7} rows {:<4} {} of {} ids equal, {} of {} logits equal bit for bit, "
        "{:.2f}x fewer recurrences\n",
        results.name(), depths, set.max_rows == 0 ? "all" : std::to_string(set.max_rows),
        set.equal_tokens, set.tokens, set.equal_logits, set.tokens,
        static_cast<double>(result.autoregressive_steps) / static_cast<double>(set.steps));
    compared += set.tokens;
  }
  fmt::print(
      "{}: {} tokens in {} texts, {} compared over {} depth sets, {}{} ({:.0f} s)\n",
      results.name(), result.tokens, result.texts, compared, result.sets.size(),
      result.equal() ? "all equal" : "NOT EQUAL: " + result.first_difference,
      result.out_of_time ? fmt::format("; stopped before {}: out of time", request.tokens) : "",
      timer.Seconds());
  results.Add("equal.tokens", result.tokens);
  results.Add("equal.sets", result.sets.size());
  results.Add("equal.all", result.equal() ? "yes" : "NO");
  return result.equal() ? 0 : 1;
}

// What a run of one decoding costs.
struct Timing {
  double tokens_per_second = 0, step_ms = 0;
  double floor_share = 0;  // bytes that had to be read over bandwidth, of the time of the steps
  double gap_share = 0;    // time of the steps outside P, B and C
  double gamma = 0, per_pass = 0, rows = 0;  // gamma by the paper's formula, and as it happened
  double prelude_ms = 0, core_ms = 0, readout_ms = 0;  // of a step, on average
};

Timing TimeDecoding(const Model& model, Backend& backend, const StepCost& cost,
                    const ResolvedRequest& request, double bandwidth) {
  Scheduler scheduler(backend, OneAtATime(cost));
  const Choice run = RunRequest(scheduler, request);
  const Statistics& s = run.statistics;
  const auto recurrences = static_cast<double>(s.recurrences);
  Timing timing;
  timing.tokens_per_second = s.tokens_per_second;
  timing.step_ms = s.decode_seconds / recurrences * 1e3;
  timing.floor_share =
      bandwidth > 0 ? BytesRead(model, backend.options(), s) / bandwidth / s.decode_seconds : 0.0;
  timing.prelude_ms = s.prelude_seconds / recurrences * 1e3;
  timing.core_ms = s.recur_seconds / recurrences * 1e3;
  timing.readout_ms = s.readout_seconds / recurrences * 1e3;
  timing.gap_share =
      1.0 - (s.prelude_seconds + s.recur_seconds + s.readout_seconds) / s.decode_seconds;
  timing.gamma = s.gamma;
  timing.per_pass = s.tokens_per_pass;
  timing.rows = s.rows_mean;
  return timing;
}

// The runs of one decoding, and the one in the middle: of an even number the slower of two.
struct Timings {
  std::vector<Timing> runs;

  void Sort() { std::ranges::sort(runs, {}, &Timing::tokens_per_second); }
  const Timing& median() const { return runs[(runs.size() - 1) / 2]; }
};

// A model with a type of keys, to be timed.
struct Timed {
  const Model& model;
  std::filesystem::path folder;
  std::string keys, title;
  std::unique_ptr<Backend> backend;
  StepCost cost;
  Timings plain;
  std::vector<Timings> ours;  // of each group
};

// What Time was asked to do.
struct TimeRequest {
  int context, tokens, repeat;
  std::vector<int> depths, groups;  // groups in the order of the list; 0 is the one chosen by cost
  AssumedAcceptance assume;
  std::string rates;  // as they were given
};

void Report(const std::vector<Timed>& all, const TimeRequest& request, const Arguments& arguments) {
  for (const Timed& timed : all) {
    Results results(arguments.Text("results"), timed.folder);
    const bool named = all.size() > 1 || timed.keys != "bf16";
    fmt::print(
        "{}, context {}, {} tokens, medians of {} runs; TIMING SIMULATION: outcomes drawn at rates "
        "{}, gate open at {}\n",
        timed.title, request.context, request.tokens, request.repeat, request.rates,
        request.assume.gate);
    const auto report = [&](const std::string& name, const std::string& key, const Timings& timings,
                            const Timings& first) {
      const Timing& t = timings.median();
      const double speedup = t.tokens_per_second / timed.plain.median().tokens_per_second;
      fmt::print(
          "  {:<16}{:>8.1f} tokens/s ({:.1f} to {:.1f}) {:>6.2f}x  step {:>8.4f} ms  {:>5.1f} % of "
          "the floor  "
          "{:>5.2f} % outside the kernels  gamma {:>5.2f}  {:>5.2f} tokens per pass  rows "
          "{:>5.1f}  P {:.3f}, B {:.3f}, C {:.3f} ms",
          name, t.tokens_per_second, timings.runs.front().tokens_per_second,
          timings.runs.back().tokens_per_second, speedup, t.step_ms, 100 * t.floor_share,
          100 * t.gap_share, t.gamma, t.per_pass, t.rows, t.prelude_ms, t.core_ms, t.readout_ms);
      if (all.size() > 1)
        fmt::print("  {:.3f}x of {}", t.tokens_per_second / first.median().tokens_per_second,
                   all[0].title);
      fmt::print("\n");
      const std::string at = fmt::format("time.{}.{}{}", request.context,
                                         named ? timed.keys + "." : std::string(), key);
      results.Add(at + ".tokens_per_second", t.tokens_per_second);
      results.Add(at + ".speedup", speedup);
      results.Add(at + ".floor_share", t.floor_share);
      results.Add(at + ".gap_share", t.gap_share);
    };
    report("autoregressive", "ar", timed.plain, all[0].plain);
    for (size_t i = 0; i < request.groups.size(); ++i) {
      const int group = request.groups[i];
      const std::string name = fmt::format("{} {}", fmt::join(request.depths, ","),
                                           group == 0 ? "auto" : fmt::format("g={}", group));
      report(name, group == 0 ? "loopspec" : fmt::format("loopspec_g{}", group), timed.ours[i],
             all[0].ours[i]);
    }
  }
}

int Time(const Arguments& arguments) {
  TimeRequest asked;
  asked.context = arguments.Whole("context", 1024);
  asked.tokens = arguments.Whole("tokens", 256);
  asked.repeat = arguments.Whole("repeat", 3);
  if (asked.context < 1 || asked.tokens < 2 || asked.repeat < 1)
    Fail("--context and --repeat must be at least 1, --tokens at least 2");
  asked.groups = ParseDepths(arguments.Text("groups", "1,0"));
  asked.rates = arguments.Text("assume");
  for (const std::string& rate : Split(asked.rates, ','))
    asked.assume.rates.push_back(std::strtod(rate.c_str(), nullptr));
  if (!arguments.Text("gate").empty())
    asked.assume.gate = std::strtod(arguments.Text("gate").c_str(), nullptr);

  (void)arguments.Word(1, "the folder of the checkpoint");
  std::deque<Model> models;
  std::vector<Timed> all;
  double bandwidth = 0;
  for (size_t i = 1; i < arguments.words.size(); ++i) {
    const std::filesystem::path folder = arguments.words[i];
    const Model& model = models.emplace_back(Model::Load(folder));
    asked.depths = arguments.Text("depths").empty() ? DefaultDepths(model.spec.recurrence)
                                                    : ParseDepths(arguments.Text("depths"));
    CheckDepths(asked.depths, model.spec.recurrence);
    if (asked.assume.rates.size() != asked.depths.size())
      Fail("--assume has {} rates, expected one for each of the {} depths",
           asked.assume.rates.size(), asked.depths.size());
    BackendOptions options;
    options.readout_depths = asked.depths;
    options.readout_depths.push_back(model.spec.recurrence);
    options.kv_positions = asked.context + asked.tokens + 64;
    for (const std::string& keys : Split(arguments.Text("kv-type", "bf16"), ';')) {
      std::string plan;
      std::tie(options.kv_type, plan) = ParseKvType(keys);
      options.key_plan.reset();
      if (!plan.empty()) options.key_plan = SpannedKeyPlan::Parse(plan, model.spec.recurrence);
      const std::string title = fmt::format(
          "{}, {} keys", std::filesystem::weakly_canonical(folder).filename().string(), keys);
      all.push_back({model, folder, keys, title, MakerFor(arguments)(model, options), {}, {}, {}});
      Timed& timed = all.back();
      if (bandwidth == 0) bandwidth = timed.backend->ReadBandwidth();
      timed.cost = MeasureStepCost(*timed.backend);
      timed.ours.resize(asked.groups.size());
      fmt::print(
          "{}, weights {:.3f} GB, {:.1f} kB of keys a token and {:.1f} MB a window, step "
          "costs: {}",
          title, static_cast<double>(timed.backend->weight_bytes()) * 1e-9,
          static_cast<double>(timed.backend->page_bytes()) / kPageSize * 1e-3,
          static_cast<double>(timed.backend->page_bytes()) * timed.backend->window_pages() * 1e-6,
          StepCostText(timed.cost));
    }
  }
  for (int round = 0; round < asked.repeat; ++round) {
    for (Timed& timed : all) {
      const AssumedGuesses guesses(asked.assume, timed.model.spec.vocab);
      ResolvedRequest request;
      request.prompt = RandomTokens(timed.model.spec, static_cast<size_t>(asked.context), 1);
      request.max_tokens = asked.tokens;
      timed.plain.runs.push_back(
          TimeDecoding(timed.model, *timed.backend, timed.cost, request, bandwidth));
      request.depths = asked.depths;
      request.laboratory.guess_source = &guesses;
      request.laboratory.assumed = asked.assume;
      for (size_t i = 0; i < asked.groups.size(); ++i) {
        request.group = asked.groups[i];
        timed.ours[i].runs.push_back(
            TimeDecoding(timed.model, *timed.backend, timed.cost, request, bandwidth));
      }
    }
  }
  for (Timed& timed : all) {
    timed.plain.Sort();
    for (Timings& timings : timed.ours) timings.Sort();
  }
  Report(all, asked, arguments);
  return 0;
}

int Main(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  const std::string verb = arguments.Word(0, "what to do: synth, equal, time or few-bits");
  if (verb == "synth") return Synth(arguments);
  if (verb == "equal") return Equal(arguments);
  if (verb == "time") return Time(arguments);
  if (verb == "few-bits") return FewBits(arguments);
  Fail("{}: expected synth, equal, time or few-bits", verb);
}

}  // namespace
}  // namespace loopspec

int main(int argc, char** argv) {
  try {
    const int code = loopspec::Main(argc, argv);
    std::fflush(stdout);
    return code;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "gpu_check: %s\n", error.what());
    return 2;
  }
}
