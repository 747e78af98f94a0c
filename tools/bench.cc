// loopspec bench: the same prompts decoded by several specs, interleaved, side by side.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/laboratory.h"
#include "engine/load/device.h"
#include "engine/load/loaded_model.h"
#include "engine/load/model_path.h"
#include "engine/load/step_cost.h"
#include "experiments/bench_report.h"
#include "experiments/checkpoint_hash.h"
#include "experiments/record_log.h"
#include "tools/assumed_rates.h"
#include "tools/bench_concurrency.h"
#include "tools/bench_jobs.h"
#include "tools/commands.h"
#include "tools/decode_spec.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/progress.h"
#include "tools/provenance.h"

namespace loopspec::tools {
namespace {

struct BenchOptions {
  ModelOptions model;
  SamplingOptions sampling;
  BenchSource source;
  std::string assume, concurrency, tokenizer, records, csv, html;
  std::vector<std::string> decode = {"ar", "loopspec"};
  bool ignore_eos = false, json = false;
  int repeat = 3, cells = EngineOptions().cells;
  uint64_t seed = 0;
};

std::string SamplerName(const SamplingParams& params) {
  if (params.greedy()) return "greedy";
  return params.sampler == Sampler::kCoupled ? "coupled" : "cascade";
}

std::string LaterName(LaterProposal later) {
  return later == LaterProposal::kResidual      ? "residual"
         : later == LaterProposal::kNonResidual ? "non-residual"
                                                : "gated";
}

// The ways of decoding that were asked for, each with its request.
struct BenchSpecs {
  std::vector<DecodeSpec> parsed;
  std::vector<Request> requests;
  std::vector<int> depths;  // of all of them
};

BenchSpecs MakeSpecs(const BenchOptions& options, const Request& request, const Model& model,
                     const AssumedGuesses& guesses) {
  BenchSpecs specs;
  const ChosenDepths chosen = options.model.ChooseDepths(model);
  for (const std::string& text : options.decode) {
    const DecodeSpec spec = ParseDecodeSpec(text, model.spec.recurrence, "--decode",
                                            chosen.For(request.sampling->greedy()));
    for (const DecodeSpec& other : specs.parsed) {
      if (other.name == spec.name) Fail("--decode {} is given twice", text);
    }
    Request own = request;
    spec.Apply(own);
    ChangeLaboratory(own, [&](Laboratory& laboratory) {
      if (options.assume.empty())
        laboratory.prior = chosen.calibration.Prior(spec.depths, own.sampling->greedy());
      else if (!spec.depths.empty())
        laboratory.guess_source = &guesses;
    });
    specs.requests.push_back(own);
    specs.depths.insert(specs.depths.end(), spec.depths.begin(), spec.depths.end());
    specs.parsed.push_back(spec);
  }
  return specs;
}

// Greedy and coupled text does not depend on the decoder; cascade sampling only has the same
// distribution.
bool Comparable(const BenchOptions& options, const Request& request) {
  return options.assume.empty() && !request.sampling->needs_distributions();
}

experiments::Measurement MeasurementOf(const BenchOptions& options, const BenchSpecs& specs,
                                       const BenchJobs& jobs, Engine& engine) {
  experiments::Measurement m;
  m.jobs = jobs.jobs;
  m.stop = jobs.stop;
  m.repeats = options.repeat;
  for (size_t i = 0; i < specs.parsed.size(); ++i) {
    const Request& request = specs.requests[i];
    const bool same = Comparable(options, request);
    m.specs.push_back(
        {specs.parsed[i].name, request, &engine, same ? SamplerName(*request.sampling) : ""});
  }
  return m;
}

// What must not change between the two halves of a run that is taken up again.
OrderedJson Settings(const BenchOptions& options, const BenchJobs& jobs, const BenchSpecs& specs,
                     const Backend& backend) {
  OrderedJson prompts = OrderedJson::array();
  for (const experiments::MeasuredJob& job : jobs.jobs) prompts.push_back(job.tokens);
  OrderedJson settings = {
      {"model", ResolveModel(options.model.model).filename().string()},
      {"recurrence", backend.spec().recurrence},
      {"device", backend.device()},
      {"chip", backend.chip()},
      {"compute", backend.options().compute == ComputeMode::kF32 ? "f32" : "bf16"},
      {"kv_type", NameOfKvType(backend.options())},
      {"threads", backend.options().threads},
      {"state_seed", options.model.state_seed},
      {"max_tokens", jobs.max_tokens},
      {"stop", jobs.stop},
      {"ignore_eos", options.ignore_eos},
      {"assume", options.assume},
      {"seed", options.seed},
      {"sampling", ToJson(*specs.requests[0].sampling, [](const SamplingField&) { return true; })},
      {"logit_bias", options.sampling.bias},
      {"second_proposal", options.sampling.later},
      {"sampler", options.sampling.sampler},
      {"clock", "from the read prompt to the last token"},
      {"prompts", prompts}};
  if (!options.source.task.empty()) {
    settings["task"] = options.source.task;
    settings["chat"] = options.source.chat;
  }
  return settings;
}

// Runs everything that the records do not have. Ctrl-C ends it between two runs.
std::vector<experiments::RunRecord> RunAll(const BenchOptions& options, const BenchSpecs& specs,
                                           const BenchJobs& jobs,
                                           const std::shared_ptr<const LoadedModel>& loaded,
                                           const std::shared_ptr<Backend>& backend) {
  std::vector<std::vector<int>> sets;
  for (const DecodeSpec& spec : specs.parsed) sets.push_back(spec.depths);
  Engine engine = MakeLaboratoryEngine(loaded, backend, LoadStepCost(*backend), std::move(sets));
  const experiments::Measurement m = MeasurementOf(options, specs, jobs, engine);
  std::unique_ptr<experiments::RecordLog> log;
  if (!options.records.empty())
    log = std::make_unique<experiments::RecordLog>(options.records,
                                                   Settings(options, jobs, specs, *backend));
  experiments::Records records([&](const experiments::RunRecord& record) {
    if (log) log->Append(ToJson(record));
  });
  if (log) {
    for (const Json& found : log->found())
      records.Restore(experiments::ParseRunRecord(found, options.records));
  }
  ProgressLine progress(0.5);
  experiments::MeasureHooks hooks;
  hooks.interrupted = Interrupted;
  hooks.progress = [&](int64_t done, int64_t total) {
    // Nothing is said before something is done: who sees the line and stops has something to show.
    if (done > 0) progress.Show("bench", done, total, "runs");
  };
  RunMeasurement(m, hooks, records);
  return records.all();
}

experiments::BenchResult Summarise(const BenchOptions& options, const BenchSpecs& specs,
                                   const BenchJobs& jobs, const LoadedModel& loaded,
                                   Backend& backend, double bandwidth,
                                   const std::vector<experiments::RunRecord>& records,
                                   const AssumedAcceptance& assumed) {
  experiments::BenchResult result;
  result.model = options.model.model;
  result.device = backend.device();
  result.chip = backend.chip();
  result.compute = backend.options().compute == ComputeMode::kF32 ? "f32" : "bf16";
  result.kv_type = NameOfKvType(backend.options());
  result.parameters = loaded.model().weights.parameters;
  result.dtype = loaded.model().weights.head.parts[0].type_name();
  if (!options.html.empty()) result.weights = experiments::HashWeights(loaded.folder());
  if (result.device == "cpu") result.threads = backend.options().threads;
  result.seed = options.seed;
  result.version = VersionText();
  result.date = Today();
  result.command = CommandLine();
  result.what = jobs.what;
  if (!jobs.note.empty()) result.what += ". " + jobs.note;
  if (!options.assume.empty()) result.simulation = NameOf(assumed);
  result.recurrence = backend.spec().recurrence;
  result.cells = backend.options().cells;
  result.bandwidth = bandwidth;
  result.prompts = jobs.jobs.size();
  result.repeats = options.repeat;
  result.interrupted = Interrupted();
  for (size_t i = 0; i < specs.parsed.size(); ++i) {
    const SamplingParams& sampling = *specs.requests[i].sampling;
    experiments::BenchSpec spec{specs.parsed[i].name,
                                specs.parsed[i].depths,
                                SamplerName(sampling),
                                LaterName(sampling.later),
                                Comparable(options, specs.requests[i]),
                                {}};
    for (const experiments::RunRecord& record : records) {
      if (record.way == spec.name && record.repeat < options.repeat) spec.totals.Add(record);
    }
    if (spec.totals.runs > 0) result.specs.push_back(std::move(spec));
  }
  return result;
}

// Several requests at a time.
void RunConcurrently(const BenchOptions& options, const std::shared_ptr<const LoadedModel>& loaded,
                     const BenchSpecs& specs, const Request& request, const BenchJobs& jobs) {
  ConcurrencyBench bench;
  bench.model = options.model.model;
  bench.loaded = loaded;
  bench.concurrency = ParseConcurrency(options.concurrency);
  for (const experiments::MeasuredJob& job : jobs.jobs) bench.prompts.push_back(job.tokens);
  bench.specs = specs.parsed;
  bench.requests = specs.requests;
  bench.max_tokens = jobs.max_tokens;
  bench.comparable = Comparable(options, request);
  bench.assumed = !options.assume.empty();
  bench.repeat = options.repeat;
  bench.json = options.json;
  EngineOptions engine = options.model.ToEngineOptions();
  engine.kv_positions = PositionsFor(bench, loaded->spec().max_positions);
  RunConcurrencyBench(bench, MakeBackend(loaded->model(), engine, specs.depths));
}

void RunBench(const BenchOptions& options) {
  CatchInterrupt();
  if (!options.csv.empty()) CheckOutputFile(options.csv, "--csv");
  if (!options.html.empty()) CheckOutputFile(options.html, "--html");
  EngineOptions engine = options.model.ToEngineOptions();
  engine.cells = options.cells;
  const auto shared = std::make_shared<const LoadedModel>(engine, options.tokenizer);
  const LoadedModel& loaded = *shared;
  if (!options.tokenizer.empty() && !loaded.has_tokenizer())
    Fail("--tokenizer {} has no tokenizer.json", options.tokenizer);
  const Model& model = loaded.model();
  if (!options.source.stop.empty()) loaded.tokenizer();
  AssumedAcceptance assumed;
  if (!options.assume.empty()) assumed = ParseAssumedRates(options.assume, model.spec.recurrence);
  Request request;
  request.sampling = options.sampling.Over({});
  CheckSamplingParams(*request.sampling, model.spec.vocab);
  request.seed = options.seed;
  request.ignore_eos = options.ignore_eos || !options.assume.empty();
  if (!options.assume.empty())
    ChangeLaboratory(request, [&](Laboratory& laboratory) { laboratory.assumed = assumed; });
  // Specs first: a mistake in one of them needs no prompts to be read.
  const AssumedGuesses guesses(assumed, model.spec.vocab);
  MakeSpecs(options, request, model, guesses);
  const BenchJobs jobs = MakeBenchJobs(options.source, loaded);
  request.max_tokens = jobs.max_tokens;
  const BenchSpecs specs = MakeSpecs(options, request, model, guesses);
  if (!options.concurrency.empty()) return RunConcurrently(options, shared, specs, request, jobs);
  engine.kv_positions = std::min<int64_t>(
      static_cast<int64_t>(jobs.longest_prompt()) + jobs.max_tokens, model.spec.max_positions);
  const std::shared_ptr<Backend> backend = MakeBackend(model, engine, specs.depths);
  const double bandwidth = backend->ReadBandwidth();
  const std::vector<experiments::RunRecord> records = RunAll(options, specs, jobs, shared, backend);
  const experiments::BenchResult result =
      Summarise(options, specs, jobs, loaded, *backend, bandwidth, records, assumed);
  if (!options.csv.empty()) WriteTextFile(options.csv, BenchCsv(result));
  if (!options.html.empty()) WriteTextFile(options.html, BenchHtml(result));
  if (options.csv == "-" || options.html == "-") return;
  if (options.json) {
    fmt::print("{}\n",
               BenchJson(result).dump(2, ' ', false, OrderedJson::error_handler_t::replace));
    return;
  }
  fmt::print("{}", BenchTable(result));
}

void AddSourceOptions(Command command, BenchSource& source) {
  command.AddOption("--shots", source.shots, "Worked examples before each prompt of a task")
      .Range(0, 64);
  command.AddOption("--benchmarks", source.benchmarks,
                    "Folder of benchmark files, as scripts/fetch-benchmarks.py makes it");
  command.AddOption("--limit", source.limit, "Use the first N prompts only; 0 is all")
      .Range(0, 1 << 30)
      .ShowDefault();
  command
      .AddOption("--max-tokens,-n", source.max_tokens,
                 "Maximum tokens to generate per prompt; default: the task's number, or 256")
      .Range(2, 1 << 30);
  command
      .AddOption(
          "--max-length", source.max_length,
          "Maximum tokens of prompt and answer together: longer prompts lose their beginning")
      .Range(3, 1 << 30);
  command.AddFlag("--chat", source.chat, "Put prompts into the model's chat template");
  command
      .AddOption("--template-arg", source.template_args,
                 "Variable for the chat template: key=value, such as enable_thinking=false")
      .OneValueEach();
  command.AddOption("--stop", source.stop, "End a text before this; may be given several times")
      .OneValueEach();
}

void AddOutputOptions(Command command, BenchOptions& options) {
  command.AddFlag("--json", options.json, "Print JSON");
  command
      .AddOption("--csv", options.csv, "Write a line for each decoding spec; - is standard output")
      .TypeName("FILE");
  command.AddOption("--html", options.html, "Write a page with charts; - is standard output")
      .TypeName("FILE");
  command
      .AddOption("--records", options.records,
                 "Keep every finished run here, and take up a run that was broken off")
      .TypeName("FILE");
}

}  // namespace

void AddBenchCommand(Command app) {
  auto options = std::make_shared<BenchOptions>();
  const Command command =
      app.AddCommand("bench", "Compare decoding specs on the same prompts: speed, text, memory");
  const Option prompts = command.AddOption(
      "--prompts", options->source.prompts,
      "A file with one prompt per line, or JSONL with prompt, question or text (and answer); - is "
      "standard input; default: a few prompts of its own");
  const Option task = command.AddOption(
      "--task", options->source.task,
      "A benchmark instead, with its prompts, budgets and stop strings: gsm8k_cot, "
      "minerva_math500, stories, ...; --records keeps the answers for python -m loopspec.evaluate");
  const Option made =
      command
          .AddOption("--prompt-tokens", options->source.prompt_tokens,
                     "Made prompts of N tokens instead, which mean nothing: 8 of them, or --limit")
          .Range(1, 1 << 30);
  command
      .AddOption("--decode", options->decode,
                 "ar, lookup, loopspec, loopspec:1,2; then @16 (at most 16 rows), /g2, /early, "
                 "/noearly, /paper, /residual, /non-residual, /coupled; several, the first is the "
                 "baseline")
      .ShowDefault("ar loopspec");
  AddSourceOptions(command, options->source);
  command.AddOption("--concurrency", options->concurrency,
                    "Requests at a time, through the scheduler: numbers such as 1,2,4,8");
  command
      .AddOption("--cells", options->cells,
                 "Branches alive at once; more than 256 are for /paper, which has one per draft")
      .Range(1, 4096)
      .ShowDefault();
  command.AddOption("--repeat", options->repeat, "Times that everything is run")
      .Range(1, 1000)
      .ShowDefault();
  command.AddFlag("--ignore-eos", options->ignore_eos, "Do not stop at end-of-text tokens");
  command.AddOption(
      "--assume-acceptance", options->assume,
      "TIMING SIMULATION: draw verification outcomes at these rates instead of letting the model "
      "decide: paper, or 0.90,0.075/0.10 (of each proposal / how often the gate opens in all)");
  command.AddOption("--tokenizer", options->tokenizer,
                    "Folder of another model whose tokenizer and chat template to use");
  options->model.AddTo(command);
  options->sampling.AddTo(command, false);
  command
      .AddOption("--seed", options->seed,
                 "Seed of sampling. Cascade text depends on it and on the depths, coupled text on "
                 "it alone")
      .ShowDefault();
  AddOutputOptions(command, *options);
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec bench models/ouro-demo\n"
      "  loopspec bench -m models/ouro-demo --prompts models/heldout_problems.jsonl --limit 8 "
      "--chat --decode ar --decode loopspec:1,2\n"
      "  loopspec bench -m models/raven-demo --task stories --temperature 1 --top-p 0.7 --decode "
      "ar --decode loopspec:2,8 --decode loopspec:2,8/residual --html stories.html");
  command.SetAction([=] {
    if (prompts.Count() + made.Count() + task.Count() > 1)
      Fail("--prompts, --task and --prompt-tokens exclude each other");
    if (options->source.shots && task.Count() == 0) Fail("--shots goes with --task");
    if (!options->concurrency.empty()) {
      ParseConcurrency(options->concurrency);
      if (!options->records.empty() || !options->csv.empty() || !options->html.empty())
        Fail(
            "--concurrency prints a table or --json; --records, --csv and --html are for one "
            "request at a time");
    }
    RunBench(*options);
  });
}

}  // namespace loopspec::tools
