// What scripts/gpu-check.py runs on checkpoints, demo models and full-size twins:
//   gpu_check synth NAME FOLDER [--agreement A]
//   gpu_check equal FOLDER [--tokens N] [--text N] [--seconds S] [--depths "1;1,2"]
//   gpu_check time FOLDER --context N --assume 0.90,0.075 [--depths 1,2] [--tokens N] [--repeat N]
// Further: --device cpu|cuda, --results FILE (adds lines "key value"), --kv-type bf16|int8 for
// equal and time; `time` takes both, bf16,int8, and times them in turn. Exit code 1: not equal.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/timer.h"
#include "calibrate/agreement.h"
#include "decode/assumed.h"
#include "decode/depths.h"
#include "engine/memory_bound.h"
#include "equality.h"
#include "prompts.h"
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

KvType ParseKvType(const std::string& text) {
  if (text != "bf16" && text != "int8") Fail("--kv-type {}: expected bf16 or int8", text);
  return text == "int8" ? KvType::kInt8 : KvType::kCompute;
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

int Equal(const Arguments& arguments) {
  EqualityRequest request;
  request.folder = arguments.Word(1, "the folder of the checkpoint");
  request.tokens = arguments.Whole("tokens", 1000);
  request.text = arguments.Whole("text", 400);
  request.seconds = arguments.Number("seconds", 0);
  request.kv_type = ParseKvType(arguments.Text("kv-type", "bf16"));
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

// A type of keys to be timed.
struct TimedKeys {
  std::string name;
  std::unique_ptr<Backend> backend;
  StepCost cost;
  Timings plain;
  std::vector<Timings> ours;  // of each group
};

int Time(const Arguments& arguments) {
  const std::filesystem::path folder = arguments.Word(1, "the folder of the checkpoint");
  const Model model = Model::Load(folder);
  const int context = arguments.Whole("context", 1024), tokens = arguments.Whole("tokens", 256);
  const int repeat = arguments.Whole("repeat", 3);
  if (context < 1 || tokens < 2 || repeat < 1)
    Fail("--context and --repeat must be at least 1, --tokens at least 2");
  const std::vector<int> depths = arguments.Text("depths").empty()
                                      ? DefaultDepths(model.spec.recurrence)
                                      : ParseDepths(arguments.Text("depths"));
  CheckDepths(depths, model.spec.recurrence);
  AssumedAcceptance assume;
  for (const std::string& rate : Split(arguments.Text("assume"), ','))
    assume.rates.push_back(std::strtod(rate.c_str(), nullptr));
  if (assume.rates.size() != depths.size())
    Fail("--assume has {} rates, expected one for each of the {} depths", assume.rates.size(),
         depths.size());
  if (!arguments.Text("gate").empty())
    assume.gate = std::strtod(arguments.Text("gate").c_str(), nullptr);

  BackendOptions options;
  options.readout_depths = depths;
  options.readout_depths.push_back(model.spec.recurrence);
  options.kv_positions = context + tokens + 64;
  // In the order of the list; 0 is the group chosen by cost.
  const std::vector<int> groups = ParseDepths(arguments.Text("groups", "1,0"));
  std::vector<TimedKeys> timed;
  double bandwidth = 0;
  for (const std::string& name : Split(arguments.Text("kv-type", "bf16"), ',')) {
    options.kv_type = ParseKvType(name);
    timed.push_back({name, MakerFor(arguments)(model, options), {}, {}, {}});
    if (bandwidth == 0) bandwidth = timed.back().backend->ReadBandwidth();
    timed.back().cost = MeasureStepCost(*timed.back().backend);
    timed.back().ours.resize(groups.size());
    fmt::print("{} keys, step costs: {}", name, StepCostText(timed.back().cost));
  }
  const AssumedGuesses guesses(assume, model.spec.vocab);
  for (int round = 0; round < repeat; ++round) {
    for (TimedKeys& keys : timed) {
      ResolvedRequest request;
      request.prompt = RandomTokens(model.spec, static_cast<size_t>(context), 1);
      request.max_tokens = tokens;
      keys.plain.runs.push_back(TimeDecoding(model, *keys.backend, keys.cost, request, bandwidth));
      request.depths = depths;
      request.laboratory.guess_source = &guesses;
      request.laboratory.assumed = assume;
      for (size_t i = 0; i < groups.size(); ++i) {
        request.group = groups[i];
        keys.ours[i].runs.push_back(
            TimeDecoding(model, *keys.backend, keys.cost, request, bandwidth));
      }
    }
  }

  for (TimedKeys& keys : timed) {
    keys.plain.Sort();
    for (Timings& timings : keys.ours) timings.Sort();
  }
  Results results(arguments.Text("results"), folder);
  for (const TimedKeys& keys : timed) {
    const bool named = timed.size() > 1 || keys.name != "bf16";
    fmt::print(
        "{}, context {}, {} keys, {} tokens, medians of {} runs; TIMING SIMULATION: outcomes drawn "
        "at "
        "rates "
        "{}, gate open at {}\n",
        results.name(), context, keys.name, tokens, repeat, arguments.Text("assume"), assume.gate);
    const auto report = [&](const std::string& name, const std::string& key, const Timings& timings,
                            const Timings& first) {
      const Timing& t = timings.median();
      const double speedup = t.tokens_per_second / keys.plain.median().tokens_per_second;
      fmt::print(
          "  {:<16}{:>8.1f} tokens/s ({:.1f} to {:.1f}) {:>6.2f}x  step {:>8.4f} ms  {:>5.1f} % of "
          "the floor  "
          "{:>5.2f} % outside the kernels  gamma {:>5.2f}  {:>5.2f} tokens per pass  rows "
          "{:>5.1f}  P {:.3f}, B {:.3f}, C {:.3f} ms",
          name, t.tokens_per_second, timings.runs.front().tokens_per_second,
          timings.runs.back().tokens_per_second, speedup, t.step_ms, 100 * t.floor_share,
          100 * t.gap_share, t.gamma, t.per_pass, t.rows, t.prelude_ms, t.core_ms, t.readout_ms);
      if (timed.size() > 1)
        fmt::print("  {:.3f}x of {} keys", t.tokens_per_second / first.median().tokens_per_second,
                   timed[0].name);
      fmt::print("\n");
      const std::string at =
          fmt::format("time.{}.{}{}", context, named ? keys.name + "." : std::string(), key);
      results.Add(at + ".tokens_per_second", t.tokens_per_second);
      results.Add(at + ".speedup", speedup);
      results.Add(at + ".floor_share", t.floor_share);
      results.Add(at + ".gap_share", t.gap_share);
    };
    report("autoregressive", "ar", keys.plain, timed[0].plain);
    for (size_t i = 0; i < groups.size(); ++i) {
      const int group = groups[i];
      const std::string name = fmt::format("{} {}", fmt::join(depths, ","),
                                           group == 0 ? "auto" : fmt::format("g={}", group));
      report(name, group == 0 ? "loopspec" : fmt::format("loopspec_g{}", group), keys.ours[i],
             timed[0].ours[i]);
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  const std::string verb = arguments.Word(0, "what to do: synth, equal or time");
  if (verb == "synth") return Synth(arguments);
  if (verb == "equal") return Equal(arguments);
  if (verb == "time") return Time(arguments);
  Fail("{}: expected synth, equal or time", verb);
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
