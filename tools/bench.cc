// loopspec bench: several ways of decoding the same prompts, interleaved, side by side.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "decode/depths.h"
#include "engine/generate.h"
#include "engine/model_path.h"
#include "tools/bench_concurrency.h"
#include "tools/commands.h"
#include "tools/decode_way.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/prompts.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompts, assume, concurrency;
  std::vector<std::string> decode;
  bool chat = false, ignore_eos = false, json = false;
  int max_tokens = 128, repeat = 3, limit = 0, prompt_tokens = 0;
  uint64_t seed = 0;
};

constexpr int kMadePrompts = 8;  // unless --limit says

// One way of decoding, and what it showed.
struct Contender {
  DecodeWay way;

  std::vector<double> rates;      // tokens per second, one per repeat
  DecodeStatistics statistics;    // of the first repeat, over all prompts
  GenerateTimes times;            // over all repeats
  double bytes_read = 0;          // over all repeats
  int64_t tokens = 0;             // of the first repeat
  int correct = 0, answered = 0;  // of the first repeat, where the prompts have answers
  bool equal = true;              // to the first contender's tokens
};

void Accumulate(DecodeStatistics& sum, const DecodeStatistics& add) {
  sum.accepted.resize(std::max(sum.accepted.size(), add.accepted.size()));
  for (size_t i = 0; i < add.accepted.size(); ++i) sum.accepted[i] += add.accepted[i];
  sum.fallback += add.fallback;
  sum.gate_evaluated += add.gate_evaluated;
  sum.gate_opened += add.gate_opened;
  sum.steps += add.steps;
  sum.row_steps += add.row_steps;
  sum.rows_peak = std::max(sum.rows_peak, add.rows_peak);
  sum.rows_histogram.resize(std::max(sum.rows_histogram.size(), add.rows_histogram.size()));
  for (size_t i = 0; i < add.rows_histogram.size(); ++i)
    sum.rows_histogram[i] += add.rows_histogram[i];
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

struct Job {
  std::vector<int32_t> tokens;
  std::optional<std::string> answer;
};

std::vector<int32_t> PromptTokens(const std::string& prompt, bool chat, const TextParts& text) {
  if (!chat) return text.tokenizer->Encode(prompt);
  const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  return text.tokenizer->Encode(text.chat_template->Render(messages, {}), false);
}

// All prompts, checked before any of them runs: an error names the file and the line.
std::vector<Job> Jobs(const Options& options, const TextParts& text, const ModelSpec& spec) {
  std::vector<Job> jobs;
  if (options.prompt_tokens > 0) {
    for (auto& made : MadePrompts(options.limit > 0 ? options.limit : kMadePrompts,
                                  options.prompt_tokens, spec.vocab))
      jobs.push_back({std::move(made), std::nullopt});
    return jobs;
  }
  for (const PromptEntry& entry : ReadPrompts(options.prompts, options.limit)) {
    Job job;
    try {
      job.tokens = PromptTokens(entry.prompt, options.chat, text);
    } catch (const Error& error) {
      Fail("{}: {}", entry.where, error.what());
    }
    if (job.tokens.empty()) Fail("{}: the prompt has no tokens", entry.where);
    for (const int32_t token : job.tokens) {
      if (token >= spec.vocab)
        Fail("{}: the prompt has token {}, the vocabulary has {}", entry.where, token, spec.vocab);
    }
    const auto positions = static_cast<int64_t>(job.tokens.size()) + options.max_tokens;
    if (positions > spec.max_positions) {
      Fail("{}: a prompt of {} tokens and {} new ones make {}, the model's context is {}",
           entry.where, job.tokens.size(), options.max_tokens, positions, spec.max_positions);
    }
    if (entry.answer) job.answer = FinalAnswer(*entry.answer);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// "0.90,0.075": shares of tokens by proposal; nothing for an empty text.
std::vector<double> ParseRates(const std::string& text) {
  std::vector<double> rates;
  double sum = 0;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    rates.push_back(std::strtod(at, &end));
    if (end == at || (*end != '\0' && *end != ',') || (*end == ',' && end[1] == '\0')) {
      Fail("--assume-acceptance {}: expected rates such as 0.90,0.075", text);
    }
    sum += rates.back();
    at = *end == ',' ? end + 1 : end;
  }
  if (!(sum <= 1.0 + 1e-9) ||
      std::any_of(rates.begin(), rates.end(), [](double rate) { return !(rate >= 0); })) {
    Fail("--assume-acceptance {}: rates must be at least 0 and sum to at most 1", text);
  }
  return rates;
}

double Busy(const GenerateTimes& times) {
  return times.prelude + times.recur + times.readout + times.host;
}

// Of the time that reading alone would take; 0 where the bandwidth is unknown.
double FloorShare(const Contender& c, double bandwidth) {
  return bandwidth > 0 ? c.bytes_read / bandwidth / Busy(c.times) : 0.0;
}

OrderedJson ToJson(const Contender& c, const Contender& first, double bandwidth, int recurrence,
                   bool comparable) {
  const DecodeStatistics& s = c.statistics;
  const double busy = Busy(c.times);
  OrderedJson out = {
      {"decode", c.way.name},
      {"depths", c.way.depths},
      {"tokens_per_second",
       {{"median", Median(c.rates)},
        {"min", *std::min_element(c.rates.begin(), c.rates.end())},
        {"max", *std::max_element(c.rates.begin(), c.rates.end())}}},
      {"speedup", Median(c.rates) / Median(first.rates)},
      {"floor_share", bandwidth > 0 ? OrderedJson(FloorShare(c, bandwidth)) : OrderedJson(nullptr)},
      {"decoded_tokens", c.tokens},
      {"accepted", s.accepted},
      {"fallback", s.fallback},
      {"gamma", Gamma(s.accepted, s.fallback, c.way.depths, recurrence)},
      {"gate_evaluated", s.gate_evaluated},
      {"gate_opened", s.gate_opened},
      {"steps", s.steps},
      {"rows_mean", s.rows_mean()},
      {"rows_peak", s.rows_peak},
      {"rows_histogram", s.rows_histogram},
      {"time_shares",
       {{"prelude", c.times.prelude / busy},
        {"recur", c.times.recur / busy},
        {"readout", c.times.readout / busy},
        {"host", c.times.host / busy}}}};
  if (comparable) out["equal"] = c.equal;
  if (c.answered > 0) out["accuracy"] = static_cast<double>(c.correct) / c.answered;
  return out;
}

void PrintTable(const std::vector<Contender>& contenders, double bandwidth, int recurrence,
                bool comparable) {
  fmt::print("{:<18}{:>10}{:>16}{:>9}{:>9}{:>8}{:>18}{:>8}{:>6}{:>14}{:>7}\n", "decode", "tokens/s",
             "(min-max)", "speedup", "floor", "gamma", "1st/2nd/.../fall", "rows", "peak",
             "P/B/C/host %", comparable ? "equal" : "");
  for (const Contender& c : contenders) {
    const DecodeStatistics& s = c.statistics;
    const double busy = Busy(c.times);
    const auto total = static_cast<double>(std::max<int64_t>(1, c.tokens));
    std::string sources;
    for (const int64_t accepted : s.accepted)
      sources += fmt::format("{:.1f}/", 100.0 * static_cast<double>(accepted) / total);
    sources += fmt::format("{:.1f}", 100.0 * static_cast<double>(s.fallback) / total);
    fmt::print("{:<18}{:>10.1f}{:>16}{:>8.2f}x{:>9}{:>8.2f}{:>18}{:>8.2f}{:>6}{:>14}{:>7}\n",
               c.way.name, Median(c.rates),
               fmt::format("({:.1f}-{:.1f})", *std::min_element(c.rates.begin(), c.rates.end()),
                           *std::max_element(c.rates.begin(), c.rates.end())),
               Median(c.rates) / Median(contenders[0].rates),
               bandwidth > 0 ? fmt::format("{:.1f} %", 100 * FloorShare(c, bandwidth)) : "-",
               Gamma(s.accepted, s.fallback, c.way.depths, recurrence), sources, s.rows_mean(),
               s.rows_peak,
               fmt::format("{:.0f}/{:.0f}/{:.0f}/{:.1f}", 100 * c.times.prelude / busy,
                           100 * c.times.recur / busy, 100 * c.times.readout / busy,
                           100 * c.times.host / busy),
               comparable ? (c.equal ? "yes" : "NO") : "");
    if (s.gate_evaluated > 0) {
      fmt::print("{:<18}gate open at {:.2f} % of {} readouts\n", "",
                 100.0 * static_cast<double>(s.gate_opened) / static_cast<double>(s.gate_evaluated),
                 s.gate_evaluated);
    }
    if (const std::string why = ExplainFloor(FloorShare(c, bandwidth)); !why.empty())
      fmt::print("{:<18}floor {}\n", "", why);
    if (c.answered > 0)
      fmt::print("{:<18}{} of {} answers right ({:.1f} %)\n", "", c.correct, c.answered,
                 100.0 * c.correct / c.answered);
  }
}

// What one run showed, added to what its contender showed before.
void Count(const GenerateResult& result, const Job& job, const TextParts& text, double bytes_read,
           bool first_repeat, std::vector<int32_t>& reference, Contender& c) {
  c.times.prelude += result.times.prelude;
  c.times.recur += result.times.recur;
  c.times.readout += result.times.readout;
  c.times.host += result.times.host;
  c.bytes_read += bytes_read;
  std::vector<int32_t> ids;
  for (const CommittedToken& token : result.tokens) ids.push_back(token.token);
  if (reference.empty()) reference = ids;
  c.equal = c.equal && ids == reference;
  if (!first_repeat) return;
  Accumulate(c.statistics, result.statistics);
  c.tokens += static_cast<int64_t>(ids.size());
  if (!job.answer) return;
  ++c.answered;
  c.correct += FinalAnswer(text.tokenizer->Decode(ids, true)) == job.answer ? 1 : 0;
}

// Runs every contender on every prompt, `repeat` times. Ctrl-C ends it between two runs, with what
// is done so far: a contender that was not run at all has no rates.
void RunAll(const Options& options, const Model& model, Backend& backend, const TextParts& text,
            const std::vector<Job>& jobs, DecodeRequest request,
            std::vector<Contender>& contenders) {
  const AssumedAcceptance assume = {ParseRates(options.assume)};
  Generator generator(backend, LoadStepCost(backend));
  ProgressLine progress(0.5);
  const auto total = static_cast<int64_t>(jobs.size() * contenders.size()) * options.repeat;
  int64_t done = 0;
  std::vector<std::vector<int32_t>> reference(jobs.size());
  for (int repeat = 0; repeat < options.repeat && !Interrupted(); ++repeat) {
    std::vector<double> seconds(contenders.size()), counted(contenders.size());
    std::vector<bool> ran(contenders.size());
    for (size_t i = 0; i < jobs.size() * contenders.size() && !Interrupted(); ++i) {
      // Each repeat starts with another contender, so that a slow moment of the machine does not
      // meet always the same.
      const size_t j = i / contenders.size();
      const size_t which = (i + static_cast<size_t>(repeat) + j) % contenders.size();
      Contender& c = contenders[which];
      request.prompt = jobs[j].tokens;
      c.way.Apply(request);
      request.assume = options.assume.empty() || c.way.depths.empty() ? nullptr : &assume;
      const GenerateResult result =
          generator.Run(request, [](const CommittedToken&) { return !Interrupted(); });
      if (Interrupted()) break;  // a run that was cut short says nothing
      progress.Show("bench", ++done, total, "runs");
      seconds[which] += result.times.decode;
      counted[which] += static_cast<double>(result.tokens.size()) - 1;
      ran[which] = true;
      Count(result, jobs[j], text, BytesRead(model, backend.options(), result.statistics),
            repeat == 0, reference[j], c);
    }
    for (size_t k = 0; k < contenders.size(); ++k) {
      if (ran[k]) contenders[k].rates.push_back(seconds[k] > 0 ? counted[k] / seconds[k] : 0.0);
    }
  }
}

// Several requests at a time.
void RunConcurrently(const Options& options, const Model& model, std::span<const int> depths,
                     const DecodeRequest& request, const std::vector<Job>& jobs,
                     const std::vector<Contender>& contenders) {
  ConcurrencyBench bench;
  bench.model = options.model.model;
  bench.concurrency = ParseConcurrency(options.concurrency);
  for (const Job& job : jobs) bench.prompts.push_back(job.tokens);
  for (const Contender& contender : contenders) bench.ways.push_back(contender.way);
  bench.request = request;
  const AssumedAcceptance assume = {ParseRates(options.assume)};
  if (!options.assume.empty()) bench.assume = &assume;
  bench.repeat = options.repeat;
  bench.json = options.json;
  const auto backend = options.model.MakeBackend(
      model, depths, PositionsFor(bench), 0,
      2 * *std::max_element(bench.concurrency.begin(), bench.concurrency.end()));
  RunConcurrencyBench(bench, *backend);
}

void PrintJson(const Options& options, const Backend& backend, size_t prompts,
               const std::vector<Contender>& contenders, double bandwidth, bool comparable) {
  OrderedJson list = OrderedJson::array();
  for (const Contender& c : contenders)
    list.push_back(ToJson(c, contenders[0], bandwidth, backend.spec().recurrence, comparable));
  OrderedJson out = {{"model", options.model.model},
                     {"device", backend.device()},
                     {"compute", backend.options().compute == ComputeMode::kF32 ? "f32" : "bf16"},
                     {"bandwidth", bandwidth},
                     {"prompts", prompts},
                     {"repeat", options.repeat},
                     {"results", list}};
  if (Interrupted()) out["interrupted"] = true;
  if (!options.assume.empty())
    out["timing_simulation"] =
        "verification outcomes drawn at rates " + options.assume + ", not decided by the model";
  fmt::print("{}\n", out.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

void Run(const Options& options) {
  CatchInterrupt();
  const std::filesystem::path folder = ResolveModel(options.model.model);
  const Model model = options.model.Load();
  const TextParts text = TextParts::Load(options.model, model);
  if (options.prompt_tokens == 0) text.RequireTokenizer(folder);
  if (options.chat) text.RequireTemplate(folder);
  std::vector<Contender> contenders;
  std::vector<int> depths;
  for (const std::string& spec : options.decode) {
    contenders.emplace_back().way = ParseDecodeWay(spec, model.spec.recurrence, "--decode");
    depths.insert(depths.end(), contenders.back().way.depths.begin(),
                  contenders.back().way.depths.end());
  }
  ParseRates(options.assume);
  DecodeRequest request;
  request.sampling = options.sampling.Get();
  CheckSamplingParams(request.sampling, model.spec.vocab);
  request.max_tokens = options.max_tokens;
  request.seed = options.seed;
  if (!options.ignore_eos && options.assume.empty()) request.stop_tokens = text.special.eos;
  // Greedy and coupled text does not depend on the decoder; cascade sampling only has the same
  // distribution.
  const bool comparable = options.assume.empty() && !request.sampling.needs_distributions();
  const std::vector<Job> jobs = Jobs(options, text, model.spec);
  if (!options.concurrency.empty())
    return RunConcurrently(options, model, depths, request, jobs, contenders);
  size_t longest = 0;
  for (const Job& job : jobs) longest = std::max(longest, job.tokens.size());
  const auto backend =
      options.model.MakeBackend(model, depths, static_cast<int64_t>(longest) + options.max_tokens);
  const double bandwidth = backend->ReadBandwidth();

  RunAll(options, model, *backend, text, jobs, request, contenders);
  std::erase_if(contenders, [](const Contender& c) { return c.rates.empty(); });
  if (options.json)
    return PrintJson(options, *backend, jobs.size(), contenders, bandwidth, comparable);
  if (!options.assume.empty()) {
    fmt::print(
        "TIMING SIMULATION: verification outcomes are drawn at rates {}, not decided by the "
        "model\n",
        options.assume);
  }
  fmt::print("{} on {}, {} prompts, {} repeats, medians; read bandwidth {}/s\n",
             options.model.model, backend->device(), jobs.size(), options.repeat,
             HumanBytes(bandwidth));
  if (Interrupted()) fmt::print("INTERRUPTED: these are the runs that were complete by then\n");
  if (!contenders.empty()) PrintTable(contenders, bandwidth, model.spec.recurrence, comparable);
}

}  // namespace

void AddBenchCommand(Command app) {
  auto options = std::make_shared<Options>();
  const Command command = app.AddCommand("bench", "Compare ways of decoding on the same prompts");
  const Option prompts = command.AddOption(
      "--prompts", options->prompts,
      "Text, one prompt per line, or JSONL with prompt, question or text (and answer); - "
      "is standard input");
  const Option made =
      command
          .AddOption("--prompt-tokens", options->prompt_tokens,
                     "Made prompts of N tokens instead, which mean nothing: 8 of them, or --limit")
          .Range(1, 1 << 30)
          .TypeName("N");
  command.AddOption("--concurrency", options->concurrency,
                    "Requests at a time, through the scheduler: numbers such as 1,2,4,8");
  command
      .AddOption("--decode", options->decode,
                 "ar, loopspec, loopspec:1,2 or loopspec:2,8@16 (at most 16 rows); may be given "
                 "several times, the first is the baseline")
      .Required();
  command.AddOption("--max-tokens,-n", options->max_tokens, "Most tokens per prompt")
      .Range(2, 1 << 30)
      .TypeName("N")
      .ShowDefault();
  command.AddOption("--repeat", options->repeat, "Times that everything is run")
      .Range(1, 1000)
      .TypeName("N")
      .ShowDefault();
  command.AddOption("--limit", options->limit, "Use the first N prompts only; 0 is all")
      .Range(0, 1 << 30)
      .TypeName("N")
      .ShowDefault();
  command.AddFlag("--chat", options->chat, "Put prompts into the model's chat template");
  command.AddFlag("--ignore-eos", options->ignore_eos, "Do not stop at end-of-text tokens");
  command.AddOption("--assume-acceptance", options->assume,
                    "TIMING SIMULATION: draw verification outcomes at these rates (0.90,0.075) "
                    "instead of letting the model decide");
  options->model.AddTo(command);
  options->sampling.AddTo(command);
  AddSeed(command, "--seed", options->seed, "Seed of sampling: same seed, same text");
  command.AddFlag("--json", options->json, "Print JSON");
  command.SetFooter(
      "\nExample:\n"
      "  loopspec bench -m models/ouro-demo --prompts models/heldout_problems.jsonl --limit 8 "
      "--chat --decode ar --decode loopspec:1,2");
  command.SetAction([=] {
    if (prompts.Count() + made.Count() != 1)
      Fail("bench needs prompts: --prompts FILE (- is standard input) or --prompt-tokens N");
    if (!options->concurrency.empty()) ParseConcurrency(options->concurrency);
    Run(*options);
  });
}

}  // namespace loopspec::tools
