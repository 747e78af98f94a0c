// loopspec experiment: the paper's tables and figures as declared runs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "engine/load/device.h"
#include "experiments/experiment.h"
#include "experiments/experiment_report.h"
#include "experiments/experiment_run.h"
#include "experiments/run_totals.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/progress.h"
#include "tools/provenance.h"

namespace loopspec::tools {
namespace {

namespace fs = std::filesystem;
using experiments::Experiment;
using Experiments = std::map<std::string, Experiment>;

constexpr const char* kDemo = "demo-";

// The declarations: in the folder where we are, or beside the program, where a build folder has a
// link to them.
fs::path FindExperiments(const std::string& given) {
  if (!given.empty()) {
    if (!fs::is_directory(given))
      Fail("--experiments {}: no such folder, expected one of declared experiments", given);
    return given;
  }
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& folder :
       {fs::path("experiments"), binary / "../share/loopspec/experiments"}) {
    if (fs::exists(folder / "base-models.json", error)) return folder;
  }
  Fail("there is no folder experiments here or beside the program: name it with --experiments DIR");
}

// NAME is a declared experiment, a file of one, or a set: "demo" or "paper".
std::vector<Experiment> Choose(const Experiments& known, const std::vector<std::string>& names) {
  std::vector<Experiment> chosen;
  for (const std::string& name : names) {
    if (known.contains(name)) {
      chosen.push_back(known.at(name));
    } else if (name == "demo" || name == "paper") {
      for (const auto& [each, experiment] : known) {
        if (each.starts_with(kDemo) == (name == "demo")) chosen.push_back(experiment);
      }
    } else if (name.ends_with(".json")) {
      chosen.push_back(experiments::ReadExperiment(name));
    } else {
      std::vector<std::string> all;
      for (const auto& [each, experiment] : known) all.push_back(each);
      Fail("experiment {} is unknown, expected one of {}, the sets demo or paper, or a .json file",
           name, fmt::join(all, ", "));
    }
  }
  return chosen;
}

// ---- list

struct ListOptions {
  std::string experiments;
};

void List(const ListOptions& options) {
  const fs::path folder = FindExperiments(options.experiments);
  for (const auto& [name, experiment] : experiments::ReadExperiments(folder)) {
    std::vector<std::string> models, tasks;
    for (const auto& model : experiment.models) models.push_back(model.name);
    for (const auto& task : experiment.tasks) tasks.push_back(task.name);
    fmt::print("{:<24}{}\n{:<24}models: {}\n{:<24}tasks: {}\n", name, experiment.title, "",
               fmt::join(models, ", "), "", fmt::join(tasks, ", "));
  }
}

// ---- run

struct RunOptions {
  ModelOptions model;
  std::vector<std::string> names;
  std::string experiments, benchmarks, output = "loopspec-results", as;
  int limit = 0, max_tokens = 0, repeat = 3;
};

// What a task showed, a line for each way of decoding.
void ShowGroup(const Experiment& experiment, const std::string& group,
               const experiments::Records& records, int recurrence) {
  std::map<std::string, experiments::RunTotals> totals;
  for (const experiments::RunRecord& record : records.all()) {
    if (record.group == group) totals[record.way].Add(record);
  }
  fmt::print("  {}\n", group);
  for (const experiments::ExperimentDecode& decode : experiments::SpecsOf(experiment, recurrence)) {
    const std::string spec = experiments::SpecName(decode);
    if (!totals.contains(spec)) continue;
    const experiments::RunTotals& t = totals.at(spec);
    const experiments::SpecFigures f =
        experiments::FiguresOf(t, totals["ar"], decode.depths, recurrence, 0);
    fmt::print("    {:<28}{:>9.1f} tokens/s", spec, f.rate);
    if (f.speedup > 0 && f.Enough()) fmt::print("  {:>5.2f}x", f.speedup);
    if (f.spread && f.Enough()) fmt::print(" ({})", f.spread->Words());
    fmt::print("  {} texts, {} tokens;", f.texts, f.tokens);
    fmt::print("  gamma {:.2f}, {:.2f} tokens per pass", f.gamma, f.tokens_per_pass);
    if (t.compared > 0) fmt::print("; {} of {} texts equal", t.equal, t.compared);
    if (t.answered > 0) fmt::print("; {} of {} right", t.correct, t.answered);
    fmt::print("\n");
  }
  std::fflush(stdout);
}

void RunExperiments(const RunOptions& options) {
  CatchInterrupt();
  const Experiments known = experiments::ReadExperiments(FindExperiments(options.experiments));
  const std::vector<Experiment> chosen = Choose(known, options.names);
  if (!options.benchmarks.empty() && !fs::is_directory(options.benchmarks))
    Fail("--benchmarks {}: no such folder", options.benchmarks);
  EngineOptions engine = options.model.ToEngineOptions();
  const auto loaded = std::make_shared<const LoadedModel>(engine);
  loaded->tokenizer();  // throws now where there is none
  const Model& model = loaded->model();
  const experiments::ExperimentSubject subject{
      options.model.model, fs::weakly_canonical(loaded->folder()), loaded,
      [&](std::span<const int> depths, int64_t positions) {
        engine.kv_positions = std::min<int64_t>(positions, model.spec.max_positions);
        return MakeBackend(model, engine, depths);
      }};
  experiments::ExperimentOptions how;
  how.output = options.output;
  how.benchmarks = options.benchmarks;
  how.max_tokens = options.max_tokens;
  how.repeats = options.repeat;
  how.as = options.as;
  how.version = VersionText();
  how.date = Today();
  how.command = CommandLine();
  if (options.limit > 0) how.limit = static_cast<size_t>(options.limit);
  int64_t compared = 0, equal = 0;
  std::string unequal;
  for (const Experiment& experiment : chosen) {
    if (Interrupted()) break;
    bool begun = false;  // what is refused prints nothing before
    const auto heading = [&] {
      if (!begun) fmt::print("{}: {}\n", experiment.name, experiment.title);
      begun = true;
    };
    ProgressLine progress(0.5);
    experiments::ExperimentHooks hooks;
    hooks.interrupted = Interrupted;
    hooks.progress = [&](int64_t done, int64_t total) {
      progress.Show(experiment.name, done, total, "runs");
    };
    hooks.finished = [&](const std::string& group, const experiments::Records& records) {
      progress.Clear();
      heading();
      ShowGroup(experiment, group, records, model.spec.recurrence);
    };
    const std::string demo_of =
        experiment.name.starts_with(kDemo) ? experiment.name.substr(5) : experiment.name;
    const auto paper = known.find(demo_of);
    const experiments::ExperimentOutcome outcome = experiments::RunExperiment(
        experiment, paper == known.end() ? nullptr : &paper->second, subject, how, hooks);
    progress.Clear();
    heading();
    compared += outcome.compared;
    equal += outcome.equal;
    if (unequal.empty()) unequal = outcome.first_unequal;
    fmt::print("  {}{}\n", outcome.complete ? "written to " : "INTERRUPTED; what is done is in ",
               outcome.file.string());
  }
  if (equal < compared) {
    Fail("{} of {} texts differ from autoregressive decoding, expected none: the first is {}",
         compared - equal, compared, unequal);
  }
  if (compared > 0)
    fmt::print("{} of {} greedy texts equal autoregressive ones\n", equal, compared);
  fmt::print("{} {}\n", Interrupted() ? "the same command goes on; so far:" : "see it with:",
             fmt::format("loopspec experiment report {}", options.output));
}

// ---- report

struct ReportOptions {
  std::string folder, output;
};

void Report(const ReportOptions& options) {
  if (!fs::is_directory(options.folder))
    Fail("{}: no such folder, expected one that loopspec experiment run has written",
         options.folder);
  const std::string output =
      options.output.empty() ? (fs::path(options.folder) / "report.html").string() : options.output;
  CheckOutputFile(output, "--output");
  WriteTextFile(output, experiments::ReportExperiments(options.folder));
  if (output != "-") fmt::print("{}\n", output);
}

void AddList(Command app, const std::shared_ptr<ListOptions>& options) {
  const Command command = app.AddCommand("list", "List the declared experiments");
  command.AddOption("--experiments", options->experiments, "Folder of declared experiments");
  command.SetAction([options] { List(*options); });
}

void AddRun(Command app, const std::shared_ptr<RunOptions>& options) {
  const Command command =
      app.AddCommand("run", "Run experiments; a second start goes on where the first ended");
  command
      .AddOption("NAME", options->names,
                 "Experiments by name, a .json file, or a set: demo (those of the demo models), "
                 "paper (all others)")
      .Required();
  command.AddOption("--limit", options->limit, "Texts of each task; 0 is all")
      .Range(0, 1 << 30)
      .ShowDefault();
  command
      .AddOption(
          "--max-tokens,-n", options->max_tokens,
          "Maximum tokens to generate for a text, for a trial; prompts are cut on the left to the "
          "model's context; 0 is as declared")
      .Range(0, 1 << 30)
      .ShowDefault();
  command
      .AddOption("--repeat", options->repeat,
                 "Times that every text is decoded where speed is measured")
      .Range(1, 1000)
      .ShowDefault();
  command.AddOption("--benchmarks", options->benchmarks,
                    "Folder of benchmark files, as scripts/fetch-benchmarks.py makes it");
  command.AddOption("--output,-o", options->output, "Folder for records, one file for each run")
      .ShowDefault();
  command.AddOption(
      "--as", options->as,
      "The declared model whose figures stand beside; else found by the folder's name");
  command.AddOption("--experiments", options->experiments, "Folder of declared experiments");
  options->model.AddTo(command, /*may_lead=*/false);
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec experiment run demo --model models/ouro-demo --limit 4\n"
      "  loopspec experiment run base-models --model ByteDance/Ouro-1.4B --benchmarks benchmarks\n"
      "\nThe records keep every answer: python -m loopspec.evaluate DIR --benchmarks DIR scores "
      "them.");
  command.SetAction([options] { RunExperiments(*options); });
}

void AddReport(Command app, const std::shared_ptr<ReportOptions>& options) {
  const Command command = app.AddCommand(
      "report", "Make one page of all records in a folder, beside the paper's figures");
  command.AddOption("DIR", options->folder, "Folder that experiment run has written").Required();
  command.AddOption("--output,-o", options->output, "HTML file to write; - is standard output")
      .ShowDefault("DIR/report.html");
  command.SetAction([options] { Report(*options); });
}

}  // namespace

void AddExperimentCommand(Command app) {
  const Command command =
      app.AddCommand("experiment", "Repeat the paper's tables and figures on a model");
  AddList(command, std::make_shared<ListOptions>());
  AddRun(command, std::make_shared<RunOptions>());
  AddReport(command, std::make_shared<ReportOptions>());
}

}  // namespace loopspec::tools
