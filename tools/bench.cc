// loopspec bench: several ways of decoding the same prompts, interleaved, side by side.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/timer.h"
#include "decode/depths.h"
#include "engine/generate.h"
#include "engine/model_path.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/prompts.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompts, assume;
  std::vector<std::string> decode;
  bool chat = false, ignore_eos = false, json = false;
  int max_tokens = 128, repeat = 3, limit = 0;
  uint64_t seed = 0;
};

// One way of decoding, and what it showed.
struct Contender {
  std::string name;
  std::vector<int> depths;
  int row_budget = -1;  // -1: the device's own choice

  std::vector<double> rates;      // tokens per second, one per repeat
  DecodeStatistics statistics;    // of the first repeat, over all prompts
  GenerateTimes times;            // over all repeats
  double bytes_read = 0;          // over all repeats
  int64_t tokens = 0;             // of the first repeat
  int correct = 0, answered = 0;  // of the first repeat, where the prompts have answers
  bool equal = true;              // to the first contender's tokens
};

// "ar", "loopspec", "loopspec:1,2", "loopspec:2,8@16" (at most 16 rows).
Contender ParseContender(const std::string& text, int recurrence) {
  Contender contender;
  contender.name = text;
  std::string rest = text;
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    const std::vector<int> rows = ParseDepths(rest.substr(at + 1));
    if (rows.size() != 1 || rows[0] < 1)
      Fail("--decode {}: expected a number of rows after @", text);
    contender.row_budget = rows[0];
    rest = rest.substr(0, at);
  }
  if (rest == "loopspec") {
    contender.depths = DefaultDepths(recurrence);
  } else if (rest.starts_with("loopspec:")) {
    contender.depths = ParseDepths(rest.substr(9));
    if (contender.depths.empty())
      Fail("--decode {}: expected depths after the colon, such as loopspec:1,2", text);
  } else if (rest != "ar") {
    Fail("--decode {}: expected ar, loopspec, loopspec:1,2 or loopspec:1,2@8", text);
  }
  CheckDepths(contender.depths, recurrence);
  return contender;
}

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

std::vector<Job> Jobs(const Options& options, const std::filesystem::path& folder,
                      const TextParts& text) {
  std::vector<Job> jobs;
  for (const PromptEntry& entry : ReadPrompts(options.prompts, options.limit)) {
    const Tokenizer& tokenizer = text.RequireTokenizer(folder);
    Job job;
    if (options.chat) {
      const OrderedJson messages =
          OrderedJson::array({{{"role", "user"}, {"content", entry.prompt}}});
      job.tokens = tokenizer.Encode(text.RequireTemplate(folder).Render(messages, {}), false);
    } else {
      job.tokens = tokenizer.Encode(entry.prompt);
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

class Progress {
 public:
  explicit Progress(size_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }
  void Tick() {
    ++done_;
    if (shown_ && timer_.Seconds() > 0.5) fmt::print(stderr, "\r{} of {} runs", done_, total_);
  }

 private:
  size_t total_, done_ = 0;
  bool shown_;
  Timer timer_;
};

OrderedJson ToJson(const Contender& c, const Contender& first, double bandwidth, int recurrence,
                   bool comparable) {
  const DecodeStatistics& s = c.statistics;
  const double busy = c.times.prelude + c.times.recur + c.times.readout + c.times.host;
  OrderedJson out = {{"decode", c.name},
                     {"depths", c.depths},
                     {"tokens_per_second",
                      {{"median", Median(c.rates)},
                       {"min", *std::min_element(c.rates.begin(), c.rates.end())},
                       {"max", *std::max_element(c.rates.begin(), c.rates.end())}}},
                     {"speedup", Median(c.rates) / Median(first.rates)},
                     {"floor_share", bandwidth > 0 ? OrderedJson(c.bytes_read / bandwidth / busy)
                                                   : OrderedJson(nullptr)},
                     {"decoded_tokens", c.tokens},
                     {"accepted", s.accepted},
                     {"fallback", s.fallback},
                     {"gamma", Gamma(s.accepted, s.fallback, c.depths, recurrence)},
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
    const double busy = c.times.prelude + c.times.recur + c.times.readout + c.times.host;
    const auto total = static_cast<double>(std::max<int64_t>(1, c.tokens));
    std::string sources;
    for (const int64_t accepted : s.accepted)
      sources += fmt::format("{:.1f}/", 100.0 * static_cast<double>(accepted) / total);
    sources += fmt::format("{:.1f}", 100.0 * static_cast<double>(s.fallback) / total);
    fmt::print("{:<18}{:>10.1f}{:>16}{:>8.2f}x{:>9}{:>8.2f}{:>18}{:>8.2f}{:>6}{:>14}{:>7}\n",
               c.name, Median(c.rates),
               fmt::format("({:.1f}-{:.1f})", *std::min_element(c.rates.begin(), c.rates.end()),
                           *std::max_element(c.rates.begin(), c.rates.end())),
               Median(c.rates) / Median(contenders[0].rates),
               bandwidth > 0 ? fmt::format("{:.1f} %", 100 * c.bytes_read / bandwidth / busy) : "-",
               Gamma(s.accepted, s.fallback, c.depths, recurrence), sources, s.rows_mean(),
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
    if (c.answered > 0)
      fmt::print("{:<18}{} of {} answers right ({:.1f} %)\n", "", c.correct, c.answered,
                 100.0 * c.correct / c.answered);
  }
}

void Run(const Options& options) {
  const std::filesystem::path folder = ResolveModel(options.model.model);
  const Model model = options.model.Load();
  const TextParts text = TextParts::Load(folder);
  const int recurrence = model.spec.recurrence;
  std::vector<Contender> contenders;
  std::vector<int> depths;
  for (const std::string& spec : options.decode) {
    contenders.push_back(ParseContender(spec, recurrence));
    depths.insert(depths.end(), contenders.back().depths.begin(), contenders.back().depths.end());
  }
  const AssumedAcceptance assume = {ParseRates(options.assume)};
  const std::vector<Job> jobs = Jobs(options, folder, text);
  size_t longest = 0;
  for (const Job& job : jobs) longest = std::max(longest, job.tokens.size());
  const auto backend =
      options.model.MakeBackend(model, depths, static_cast<int64_t>(longest) + options.max_tokens);
  const double bandwidth = backend->ReadBandwidth();
  Generator generator(*backend);

  DecodeRequest request;
  request.sampling = options.sampling.Get();
  request.max_tokens = options.max_tokens;
  request.seed = options.seed;
  if (!options.ignore_eos && options.assume.empty()) request.stop_tokens = text.special.eos;
  // Greedy and coupled text does not depend on the decoder; cascade sampling only has the same
  // distribution.
  const bool comparable = options.assume.empty() && !request.sampling.needs_distributions();

  {
    Progress progress(jobs.size() * contenders.size() * static_cast<size_t>(options.repeat));
    std::vector<std::vector<int32_t>> reference(jobs.size());
    for (int repeat = 0; repeat < options.repeat; ++repeat) {
      std::vector<double> seconds(contenders.size()), counted(contenders.size());
      for (size_t j = 0; j < jobs.size(); ++j) {
        request.prompt = jobs[j].tokens;
        for (size_t k = 0; k < contenders.size(); ++k) {
          // Each repeat starts with another contender, so that a slow moment of the machine does
          // not meet always the same.
          const size_t which = (k + static_cast<size_t>(repeat) + j) % contenders.size();
          Contender& c = contenders[which];
          request.depths = c.depths;
          request.row_budget = c.row_budget >= 0 ? c.row_budget : backend->PreferredRows();
          request.assume = options.assume.empty() || c.depths.empty() ? nullptr : &assume;
          const GenerateResult result = generator.Run(request);
          progress.Tick();
          seconds[which] += result.times.decode;
          counted[which] += static_cast<double>(result.tokens.size()) - 1;
          c.times.prelude += result.times.prelude;
          c.times.recur += result.times.recur;
          c.times.readout += result.times.readout;
          c.times.host += result.times.host;
          c.bytes_read += BytesRead(model, backend->options(), result.statistics);
          std::vector<int32_t> ids;
          for (const CommittedToken& token : result.tokens) ids.push_back(token.token);
          if (reference[j].empty()) reference[j] = ids;
          c.equal = c.equal && ids == reference[j];
          if (repeat > 0) continue;
          Accumulate(c.statistics, result.statistics);
          c.tokens += static_cast<int64_t>(ids.size());
          if (jobs[j].answer) {
            ++c.answered;
            c.correct += FinalAnswer(text.tokenizer->Decode(ids, true)) == jobs[j].answer ? 1 : 0;
          }
        }
      }
      for (size_t k = 0; k < contenders.size(); ++k)
        contenders[k].rates.push_back(seconds[k] > 0 ? counted[k] / seconds[k] : 0.0);
    }
  }

  if (options.json) {
    OrderedJson list = OrderedJson::array();
    for (const Contender& c : contenders)
      list.push_back(ToJson(c, contenders[0], bandwidth, recurrence, comparable));
    OrderedJson out = {
        {"model", options.model.model},
        {"device", backend->device()},
        {"compute", backend->options().compute == ComputeMode::kF32 ? "f32" : "bf16"},
        {"bandwidth", bandwidth},
        {"prompts", jobs.size()},
        {"repeat", options.repeat},
        {"results", list}};
    if (!options.assume.empty())
      out["timing_simulation"] =
          "verification outcomes drawn at rates " + options.assume + ", not decided by the model";
    fmt::print("{}\n", out.dump(2));
    return;
  }
  if (!options.assume.empty()) {
    fmt::print(
        "TIMING SIMULATION: verification outcomes are drawn at rates {}, not decided by the "
        "model\n",
        options.assume);
  }
  fmt::print("{} on {}, {} prompts, {} repeats, medians; read bandwidth {}/s\n",
             options.model.model, backend->device(), jobs.size(), options.repeat,
             HumanBytes(bandwidth));
  PrintTable(contenders, bandwidth, recurrence, comparable);
}

}  // namespace

void AddBenchCommand(Command app) {
  auto options = std::make_shared<Options>();
  const Command command = app.AddCommand("bench", "Compare ways of decoding on the same prompts");
  command
      .AddOption("--prompts", options->prompts,
                 "Text, one prompt per line, or JSONL with prompt, question or text (and answer)")
      .Required();
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
  command.SetAction([options] { Run(*options); });
}

}  // namespace loopspec::tools
