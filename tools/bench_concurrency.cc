#include "tools/bench_concurrency.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/timer.h"
#include "engine/laboratory.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "experiments/speed_interval.h"
#include "loopspec/engine.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

namespace loopspec::tools {
namespace {

using experiments::Median;

constexpr int kMostRequests = 1024;

// One run of one way of decoding at one number of requests.
struct Measured {
  double tokens_per_second = 0;
  int64_t tokens = 0;         // in the steps that are timed
  double rows = 0;            // of a step, on average
  std::vector<double> first;  // seconds from submission to the first token, others running
  std::vector<double> step;   // of scheduling steps without a prompt: seconds ...
  std::vector<double> chunk;  // ... and of those with a chunk of one
  std::vector<std::vector<int32_t>> texts;  // by request
  double gap() const {
    double longest = 0;
    for (const auto* steps : {&step, &chunk}) {
      for (const double seconds : *steps) longest = std::max(longest, seconds);
    }
    return longest;
  }
};

// All runs of one way of decoding at one number of requests.
struct Line {
  std::vector<double> rates, rows, first, step, chunk;  // rates, rows: one of each repeat
  int64_t tokens = 0, texts = 0;
  double gap = 0;
  bool equal = true;  // to the texts of the baseline

  void Add(const Measured& run) {
    rates.push_back(run.tokens_per_second);
    tokens += run.tokens;
    texts += std::ssize(run.texts);
    rows.push_back(run.rows);
    first.insert(first.end(), run.first.begin(), run.first.end());
    step.insert(step.end(), run.step.begin(), run.step.end());
    chunk.insert(chunk.end(), run.chunk.begin(), run.chunk.end());
    gap = std::max(gap, run.gap());
  }
};

// How many times as fast as the baseline: the ratio of the medians, and the least and the most of a
// repeat's own ratio. Nothing where a run has no step that is timed.
struct Speedup {
  double median = 0, least = 0, most = 0;
};
std::optional<Speedup> SpeedupOf(const Line& line, const Line& baseline) {
  const size_t repeats = std::min(line.rates.size(), baseline.rates.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < repeats; ++i) {
    if (!(line.rates[i] > 0) || !(baseline.rates[i] > 0)) return std::nullopt;
    ratios.push_back(line.rates[i] / baseline.rates[i]);
  }
  if (ratios.empty()) return std::nullopt;
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return Speedup{Median(line.rates) / Median(baseline.rates), *least, *most};
}

// Requests that are submitted in all: enough that each of the n is replaced.
int64_t Total(const ConcurrencyBench& bench, int n) {
  return std::max<int64_t>(2 * n, std::ssize(bench.prompts));
}

class Clients {
 public:
  Clients(const ConcurrencyBench& bench, const std::shared_ptr<Backend>& backend,
          const StepCost& cost, size_t spec, int n)
      : bench_(bench),
        n_(n),
        total_(Total(bench, n)),
        request_(bench.requests[spec]),
        engine_(
            MakeLaboratoryEngine(bench.loaded, backend, cost, {bench.specs[spec].depths}, 0, n)) {
    ChangeLaboratory(request_, [](Laboratory& laboratory) { laboratory.ids_alone = true; });
  }

  Measured Run() {
    Measured out;
    while (submitted_ < n_) Submit();
    EngineMetrics before = engine_.metrics();
    double counted = 0, tokens = 0, rows = 0;
    enum { kFilling, kCounting, kEmptying } phase = kFilling;
    while (!Interrupted()) {
      const Timer timer;
      if (!engine_.Step()) break;
      const double seconds = timer.Seconds();
      const EngineMetrics now = engine_.metrics();
      const int64_t ended = now.finished + now.failed;
      if (phase == kCounting && now.steps > before.steps)
        (Prefilled(before, now) ? out.chunk : out.step).push_back(seconds);
      // Only steps of all n: prompts cost both ways the same, and how many fall into the time that
      // is counted is chance.
      if (phase == kCounting && !Prefilled(before, now) && before.decoding == n_) {
        counted += seconds;
        tokens += static_cast<double>(now.decoded_tokens - before.decoded_tokens);
        rows += static_cast<double>(now.rows - before.rows);
      }
      if (phase == kFilling && submitted_ - now.waiting - now.prefilling >= n_) {
        phase = kCounting;
      }
      while (submitted_ < std::min(total_, n_ + ended)) Submit();
      if (phase == kCounting && submitted_ - ended < n_) {
        phase = kEmptying;
      }
      before = now;
    }
    Collect(out);
    if (counted > 0) {
      out.tokens_per_second = tokens / counted;
      out.tokens = std::llround(tokens);
      out.rows = rows / static_cast<double>(std::max<size_t>(1, out.step.size()));
    }
    return out;
  }

 private:
  static bool Prefilled(const EngineMetrics& before, const EngineMetrics& now) {
    return before.prefilling > 0 || now.prefilling > 0 || now.prompt_tokens > before.prompt_tokens;
  }

  void Submit() {
    request_.tokens = bench_.prompts[static_cast<size_t>(submitted_) % bench_.prompts.size()];
    streams_.push_back(engine_.Submit(request_));
    ++submitted_;
  }

  void Collect(Measured& out) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      std::vector<int32_t>& ids = out.texts.emplace_back();
      Token token;
      for (Stream::Status status;
           (status = streams_[i].Next(token, std::chrono::milliseconds(0))) !=
               Stream::Status::kDone &&
           status != Stream::Status::kTimeout;) {
        if (status == Stream::Status::kToken) ids.push_back(token.id);
      }
      const Statistics s = streams_[i].statistics();
      if (s.finish_reason == FinishReason::kError) throw Error(s.error);
      // Requests that came while others ran.
      if (static_cast<int>(i) >= n_) out.first.push_back(s.queue_seconds + s.first_token_seconds);
    }
  }

  const ConcurrencyBench& bench_;
  const int n_;
  const int64_t total_;
  Request request_;
  Engine engine_;
  std::vector<Stream> streams_;
  int64_t submitted_ = 0;
};

OrderedJson ToJson(int n, const DecodeSpec& spec, const Line& line, const Line& baseline,
                   bool comparable) {
  const std::optional<Speedup> speedup = SpeedupOf(line, baseline);
  OrderedJson out = {
      {"requests", n},
      {"decode", spec.name},
      {"repeats", line.rates.size()},
      {"texts", line.texts},
      {"tokens", line.tokens},
      {"tokens_per_second",
       {{"median", Median(line.rates)},
        {"min", *std::min_element(line.rates.begin(), line.rates.end())},
        {"max", *std::max_element(line.rates.begin(), line.rates.end())}}},
      {"speedup", speedup ? OrderedJson(speedup->median) : OrderedJson()},
      {"speedup_range",
       speedup ? OrderedJson{{"min", speedup->least}, {"max", speedup->most}} : OrderedJson()},
      {"rows_mean", Median(line.rows)},
      {"first_token_seconds", Median(line.first)},
      {"step_seconds", Median(line.step)},
      {"step_with_chunk_seconds", Median(line.chunk)},
      {"longest_gap_seconds", line.gap}};
  if (comparable) out["equal"] = line.equal;
  return out;
}

constexpr const char* kRow =
    "{:>8}  {:<18}{:>10}{:>18}{:>9}{:>13}{:>7}{:>8}{:>7}{:>10}{:>9}{:>11}{:>9}{:>7}\n";

void PrintHeading(bool comparable) {
  fmt::print(kRow, "requests", "decode", "tokens/s", "(min-max)", "speedup", "(min-max)", "texts",
             "tokens", "rows", "first ms", "step ms", "+ chunk ms", "gap ms",
             comparable ? "equal" : "");
}

void PrintLine(int n, const DecodeSpec& spec, const Line& line, const Line& baseline,
               bool comparable) {
  // No speedup where answers are so short that the first have ended before the last have begun.
  const std::optional<Speedup> speedup = SpeedupOf(line, baseline);
  const auto [least, most] = std::minmax_element(line.rates.begin(), line.rates.end());
  fmt::print(kRow, n, spec.name, speedup ? fmt::format("{:.1f}", Median(line.rates)) : "-",
             speedup ? fmt::format("({:.1f}-{:.1f})", *least, *most) : "-n is too small",
             speedup ? fmt::format("{:.2f}x", speedup->median) : "-",
             speedup ? fmt::format("({:.2f}-{:.2f})", speedup->least, speedup->most) : "",
             line.texts, line.tokens, speedup ? fmt::format("{:.1f}", Median(line.rows)) : "-",
             fmt::format("{:.2f}", 1e3 * Median(line.first)),
             fmt::format("{:.2f}", 1e3 * Median(line.step)),
             fmt::format("{:.2f}", 1e3 * Median(line.chunk)), fmt::format("{:.2f}", 1e3 * line.gap),
             comparable ? (line.equal ? "yes" : "NO") : "");
}

}  // namespace

std::vector<int> ParseConcurrency(const std::string& text) {
  std::vector<int> numbers;
  const char *at = text.data(), *end = at + text.size();
  while (true) {
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > kMostRequests ||
        (next != end && (*next != ',' || next + 1 == end)))
      Fail("--concurrency {}: expected numbers from 1 to {} such as 1,2,4", text, kMostRequests);
    numbers.push_back(value);
    if (next == end) return numbers;
    at = next + 1;
  }
}

std::vector<std::vector<int32_t>> MadePrompts(int count, int tokens, int vocab) {
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (int t = 0; t < tokens; ++t) {
      const DrawKey key{0, static_cast<uint32_t>(i), static_cast<uint32_t>(t)};
      prompt.push_back(std::min(vocab - 1, static_cast<int>(Uniform(key, 0) * vocab)));
    }
  }
  return prompts;
}

int64_t PositionsFor(const ConcurrencyBench& bench, int64_t context) {
  size_t longest = 0;
  for (const auto& prompt : bench.prompts) longest = std::max(longest, prompt.size());
  const int most = *std::max_element(bench.concurrency.begin(), bench.concurrency.end());
  // A page more each: a new one is admitted only where everybody else can grow.
  const int64_t each =
      int64_t{PagesFor(static_cast<int64_t>(longest) + bench.max_tokens) + 1} * kPageSize;
  return std::min(each, 2 * context) * most;
}

void RunConcurrencyBench(const ConcurrencyBench& bench,
                         const std::shared_ptr<Backend>& shared_backend) {
  Backend& backend = *shared_backend;
  const int most = *std::max_element(bench.concurrency.begin(), bench.concurrency.end());
  if (backend.options().cells < 2 * most)
    Fail("{} requests at a time need {} cells, there are {}", most, 2 * most,
         backend.options().cells);
  const StepCost cost = LoadStepCost(backend);
  const bool comparable = bench.comparable;
  OrderedJson list = OrderedJson::array();
  if (!bench.json) {
    if (bench.assumed) {
      fmt::print(
          "TIMING SIMULATION: verification outcomes are drawn at given rates, not decided by the "
          "model\n");
    }
    fmt::print(
        "{} on {}, {}, medians of {} repeats\n"
        "texts and tokens are of all repeats; a repeat's speedup is over the same repeat of the "
        "first spec\n",
        bench.model, backend.device(), NameOfPrecision(backend.options()), bench.repeat);
    PrintHeading(comparable);
  }
  ProgressLine progress(0.5);
  const auto total =
      static_cast<int64_t>(bench.concurrency.size() * bench.specs.size()) * bench.repeat;
  int64_t done = 0;
  for (const int n : bench.concurrency) {
    std::vector<Line> lines(bench.specs.size());
    std::vector<std::vector<int32_t>> reference;
    for (int repeat = 0; repeat < bench.repeat && !Interrupted(); ++repeat) {
      for (size_t i = 0; i < bench.specs.size() && !Interrupted(); ++i) {
        const size_t which = (i + static_cast<size_t>(repeat)) % bench.specs.size();
        const Measured run = Clients(bench, shared_backend, cost, which, n).Run();
        if (Interrupted()) break;
        progress.Show("bench", ++done, total, "runs");
        lines[which].Add(run);
        if (reference.empty()) reference = run.texts;
        lines[which].equal = lines[which].equal && run.texts == reference;
      }
    }
    progress.Clear();
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].rates.empty() || lines[0].rates.empty()) continue;
      if (bench.json)
        list.push_back(ToJson(n, bench.specs[i], lines[i], lines[0], comparable));
      else
        PrintLine(n, bench.specs[i], lines[i], lines[0], comparable);
    }
    std::fflush(stdout);
  }
  if (Interrupted() && !bench.json)
    fmt::print("INTERRUPTED: these are the runs that were complete by then\n");
  if (!bench.json) return;
  OrderedJson out = {{"model", bench.model},
                     {"device", backend.device()},
                     {"kv_type", NameOfKvType(backend.options())},
                     {"repeat", bench.repeat},
                     {"results", list}};
  if (Interrupted()) out["interrupted"] = true;
  if (bench.assumed)
    out["timing_simulation"] = "verification outcomes drawn at given rates, not decided";
  fmt::print("{}\n", out.dump(2));
}

}  // namespace loopspec::tools
