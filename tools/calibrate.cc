// loopspec calibrate: which depths are best for a model on this machine, and why.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/json.h"
#include "calibrate/calibration_files.h"
#include "calibrate/calibration_run.h"
#include "calibrate/calibration_text.h"
#include "engine/load/calibration.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "tools/bench_concurrency.h"
#include "tools/calibrate_keys.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/progress.h"
#include "tools/prompts.h"
#include "tools/provenance.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

namespace fs = std::filesystem;

struct CommandOptions {
  ModelOptions model;
  CalibrationOptions run;
  CalibrateKeysOptions of_keys;
  std::string prompts, output, measure = "6", view = "both";
  bool chat = false, json = false, force = false, reset = false, keys = false;
  int prompt_tokens = 0;  // of made prompts; 0: prompts are from a file
  bool max_tokens_given = false;
};

std::vector<int32_t> EncodePrompt(const CommandOptions& options, const PromptEntry& entry,
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

std::vector<CalibrationPrompt> ReadCalibrationPrompts(const CommandOptions& options,
                                                      const LoadedModel& loaded) {
  const ModelSpec& spec = loaded.spec();
  std::vector<CalibrationPrompt> prompts;
  if (options.prompt_tokens > 0) {
    for (auto& made : MadePrompts(options.run.measure_prompts, options.prompt_tokens, spec.vocab))
      prompts.push_back({std::move(made), "--prompt-tokens"});
    return prompts;
  }
  loaded.tokenizer();
  if (options.chat) loaded.chat_template();
  int64_t sum = 0;
  for (const PromptEntry& entry : ReadPrompts(options.prompts, 0)) {
    prompts.push_back({EncodePrompt(options, entry, loaded), entry.where});
    sum += LookedAt(options.run, prompts.back());
    if (sum >= options.run.positions) break;  // nobody will look at more
  }
  return prompts;
}

// The prompts, each of which fits into the context with the tokens after it. Unless their number
// was asked for, it is what the context has room for.
std::vector<CalibrationPrompt> MakePrompts(CommandOptions& options, const LoadedModel& loaded) {
  std::vector<CalibrationPrompt> prompts = ReadCalibrationPrompts(options, loaded);
  size_t longest = 0;
  for (const CalibrationPrompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  const int64_t room = loaded.spec().max_positions - static_cast<int64_t>(longest);
  if (!options.max_tokens_given)
    options.run.max_tokens =
        static_cast<int>(std::clamp<int64_t>(room, 2, std::max(2, options.run.max_tokens)));
  for (const CalibrationPrompt& prompt : prompts) CheckPrompt(options.run, prompt, loaded.spec());
  return prompts;
}

int SetsToMeasure(const std::string& measure) {
  if (measure == "all") return INT32_MAX;
  int count = 0;
  const char* end = measure.data() + measure.size();
  const auto [at, error] = std::from_chars(measure.data(), end, count);
  if (error != std::errc() || at != end || count < 0)
    Fail("--measure {}: expected a number of sets of depths, or all", measure);
  return count;
}

std::vector<RatesView> ViewsOf(const std::string& view) {
  if (view == "greedy") return {RatesView::kGreedy};
  if (view == "sampling") return {RatesView::kSampled};
  return {RatesView::kGreedy, RatesView::kSampled};
}

CalibrationFiles FilesOf(const CommandOptions& options, const LoadedModel& loaded) {
  return options.output.empty() ? CalibrationFiles::Of(loaded.folder())
                                : CalibrationFiles(std::vector<fs::path>{options.output});
}

// Before anything is measured: a folder that cannot be.
void CheckOutputFolder(const fs::path& folder) {
  fs::path there = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error))
    Fail("--output {}: the calibration cannot be kept there, {} is not a folder", folder.string(),
         there.string());
}

// Writes the calibration with its step costs; returns the folder.
fs::path WriteResults(const CommandOptions& options, const LoadedModel& loaded,
                      const Backend& backend, const std::vector<CalibrationReport>& reports) {
  const fs::path place = FilesOf(options, loaded).Write(reports, loaded.model());
  if (options.output.empty())
    SaveStepCost(backend, reports[0].step_cost);
  else
    WriteTextFile((place / "step-cost.json").string(), StepCostText(reports[0].step_cost));
  return place;
}

// Decoding goes by rule again, and step costs are measured anew when they are next needed.
void Reset(const CommandOptions& options) {
  EngineOptions engine = options.model.ToEngineOptions();
  const LoadedModel loaded(engine);
  std::vector<fs::path> files = CalibrationFiles::Of(loaded.folder()).All();
  engine.kv_positions = 64;
  if (const auto cost = StepCostFile(*MakeBackend(loaded.model(), engine, {})))
    files.push_back(*cost);
  int removed = 0;
  for (const fs::path& file : files) {
    std::error_code error;
    const bool there = fs::exists(file, error);
    if (there && !fs::remove(file, error))
      Fail("{} cannot be removed: {}", file.string(), error.message());
    if (there) fmt::print("removed {}\n", file.string());
    removed += there ? 1 : 0;
  }
  if (removed == 0) fmt::print("{} has no calibration\n", options.model.model);
}

// What every report says of where it comes from.
CalibrationReport NewReport(const CommandOptions& options, const Backend& backend, RatesView view) {
  CalibrationReport report;
  report.model = options.model.model;
  report.Describe(backend);
  report.date = Today();
  report.version = VersionText();
  report.command = CommandLine();
  report.prompts = options.prompt_tokens > 0
                       ? fmt::format("made prompts of {} tokens", options.prompt_tokens)
                       : NameOfInput(options.prompts) + (options.chat ? ", as messages" : "");
  report.view = view;
  return report;
}

void SayWhereItIs(const CommandOptions& options, const fs::path& place) {
  const std::string file = (place / kCalibrationName).string();
  if (options.output.empty())
    fmt::print("decoding on this machine now uses these depths by default, from\n  {}\n", file);
  else
    fmt::print(
        "written to\n  {}\nwhere decoding does not look: it goes by a file of that name beside the "
        "model\n",
        file);
  fmt::print("charts: {}\n", (place / kCalibrationPageName).string());
}

void RunCalibrate(CommandOptions options) {
  CatchInterrupt();
  if (!options.output.empty()) CheckOutputFolder(options.output);
  EngineOptions engine = options.model.ToEngineOptions();
  const auto shared = std::make_shared<const LoadedModel>(engine);
  const LoadedModel& loaded = *shared;
  const Model& model = loaded.model();
  CalibrationOptions& run = options.run;
  CheckCalibration(run, model.spec, options.model.model);
  run.measure = SetsToMeasure(options.measure);  // a mistake is told before the work
  const std::vector<CalibrationPrompt> prompts = MakePrompts(options, loaded);
  const std::shared_ptr<Backend> backend =
      PrepareCalibration(model, options.model.ChooseDepths(model), prompts, engine, run);
  // After made prompts an end of the text means nothing either.
  if (options.prompt_tokens == 0) run.stop_tokens = loaded.special().eos;

  std::vector<CalibrationReport> reports;
  double spread = 1;
  bool noisy = false;  // the choice may be due to noise
  for (const RatesView view : ViewsOf(options.view)) {
    ProgressLine progress(kQuietSeconds, ProgressLine::Otherwise::kPlainLines);
    CalibrationHooks hooks;
    hooks.interrupted = Interrupted;
    hooks.progress = [&](const char* what, int64_t done, int64_t total, const char* unit) {
      progress.Show(what, done, total, unit);
    };
    reports.push_back(NewReport(options, *backend, view));
    RunCalibration(run, shared, prompts, backend, hooks, reports.back());
    spread = std::max(spread, reports.back().spread);
    noisy = noisy || reports.back().busy();
  }
  // A calibration of a busy machine is kept and not used. One that comes to the same choice later
  // is.
  const CalibrationFiles files = FilesOf(options, loaded);
  const bool confirmed = noisy && files.Confirm(reports);
  const bool busy = noisy && !confirmed && !options.force;
  const fs::path place =
      busy ? files.KeepPending(reports, model) : WriteResults(options, loaded, *backend, reports);
  if (options.json) {
    OrderedJson json = CalibrationJson(reports, model, "");
    json["used"] = !busy;
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print(
        "{} on {} ({}), {}; distances under temperature {:g}, top-p {:g}; read bandwidth {}/s\n\n",
        options.model.model, backend->device(), backend->chip(),
        NameOfPrecision(backend->options()), run.sampling.temperature, run.sampling.top_p,
        HumanBytes(reports[0].request.bandwidth));
    if (busy) fmt::print("NOT USED YET, the machine was busy; what was measured:\n\n");
    for (const CalibrationReport& report : reports) {
      fmt::print("{}\nchosen for {} decoding: {}\n\n", CalibrationTables(report),
                 report.view == RatesView::kGreedy ? "greedy" : "sampled",
                 report.chosen_depths.empty() ? std::string("no depth pays, n-gram guesses alone")
                                              : DepthsText(report.chosen_depths));
    }
    if (reports[0].exit_gate) fmt::print("{}\n", reports[0].exit_gate->ToText());
    if (confirmed) fmt::print("the machine was busy, as before, and the choice is the same\n");
    if (!busy) SayWhereItIs(options, place);
  }
  if (busy)
    Fail(
        "the machine was busy: the same work took {:.2f} times as long at one time as at another, "
        "and noise could have made the choice, so that it is not used{}; a second run that comes "
        "to the same is, or one with --force",
        spread, place.empty() ? "" : ", but kept in " + place.string());
}

void RunCalibrateKeys(const CommandOptions& options) {
  CatchInterrupt();
  CalibrateKeysOptions keys = options.of_keys;
  if (!options.prompts.empty()) keys.fit = options.prompts;
  keys.positions = options.run.positions;
  keys.json = options.json;
  CalibrateKeys(options.model, keys);
}

// --keys; returns the options that go with it alone.
std::vector<Option> AddKeyOptions(const Command& command, CommandOptions& options) {
  const char* const heading = "Keys across loops";
  command
      .AddFlag(
          "--keys", options.keys,
          "Measure instead what loops change in keys and values, and what keeping less of them "
          "costs, over built-in texts: the plan is fitted to --prompts and judged by --judge. "
          "--kv-type loops:PLAN decodes with such a plan, on a GPU with one of int8 and last alone")
      .Group(heading);
  return {
      command
          .AddOption("--judge", options.of_keys.judge,
                     "Texts of another kind than --prompts, one per line or JSONL")
          .Group(heading)
          .TypeName("FILE")
          .ShowDefault("a built-in set of letters, notices, recipes and verse"),
      command
          .AddOption(
              "--plan", options.of_keys.plans,
              "A plan to judge too: forms of the depths from 1 on, int8, r2 to r8 (bits of a "
              "residual) or last, as in int8*8,r4*8,last; may be repeated")
          .Group(heading)
          .TypeName("PLAN")
          .OneValueEach(),
      command
          .AddOption("--span", options.of_keys.span,
                     "Positions of a span: a query reads its own and the one before it exactly as "
                     "int8. Texts are joined to 16 spans; decoding would have a multiple of 64")
          .Group(heading)
          .Range(1, 4096)
          .ShowDefault()};
}

}  // namespace

void AddCalibrateCommand(Command app) {
  auto options = std::make_shared<CommandOptions>();
  CalibrationOptions& run = options->run;
  run.sampling.temperature = 1.0f;
  run.sampling.top_p = 0.7f;
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
          .Range(1, 1 << 30);
  const Option chat =
      command.AddFlag("--chat", options->chat, "Send each prompt as a user's message");
  add("--positions", run.positions, "Positions to look at, prompts and answers together")
      .Range(2, 1 << 24);
  command
      .AddOption("--prompt-positions", run.prompt_positions,
                 "Of each prompt only its last N positions: long prompts are there for the context")
      .Range(1, 1 << 24);
  const Option max_tokens =
      add("--max-tokens,-n", run.max_tokens,
          "Maximum tokens to generate after each prompt, as far as the context has room")
          .Range(2, 1 << 20);
  add("--view", options->view,
      "What decoding is tuned for: greedy, sampling, or both, each with depths of its own")
      .OneOf({"greedy", "sampling", "both"});
  AddSamplingNumbers(command, run.sampling, "Sampled view", [](const SamplingField& field) {
    return field.part != SamplingPart::kPenalty;
  });
  add("--proposals", run.proposals, "Depths in a set at most").Range(1, 3);
  add("--measure", options->measure,
      "Sets of depths to time, interleaved, the best predicted and others: a number, or all; the "
      "fastest measured is chosen");
  add("--measure-prompts", run.measure_prompts, "Prompts of each timing").Range(1, 1 << 20);
  command
      .AddOption("--measure-tokens", run.measure_tokens,
                 "Tokens of each timed text; default: --max-tokens")
      .Range(2, 1 << 20);
  add("--repeat", run.repeat, "Timings of each set; the median counts").Range(1, 1000);
  add("--seed", run.seed, "Seed of sampled texts");
  command.AddOption("--output,-o", options->output,
                    "Folder for the calibration, its page and the step costs, where decoding does "
                    "not look for them; default: beside the model, else the cache");
  command.AddFlag("--force", options->force, "Keep what was found even where the machine was busy");
  const Option reset = command.AddFlag(
      "--reset", options->reset,
      "Remove the model's calibration and step costs instead; --prompts is not needed");
  command.AddFlag("--json", options->json, "Print the calibration as JSON");
  const std::vector<Option> of_keys = AddKeyOptions(command, *options);
  options->model.AddTo(command);
  command.SetFooter(
      "\nExample:\n  loopspec calibrate -m models/raven-demo --chat --prompts "
      "models/heldout_problems.jsonl --positions 2048");
  const std::vector<Option> not_of_keys = {made, chat, reset};
  command.SetAction([=] {
    for (const Option& option : options->keys ? not_of_keys : of_keys) {
      if (option.Count() > 0 && options->keys)
        Fail("{} does not go with --keys, which measures keys alone and stores nothing",
             option.Name());
      if (option.Count() > 0) Fail("{} goes with --keys", option.Name());
    }
    if (options->keys) return RunCalibrateKeys(*options);
    if (options->reset) return Reset(*options);
    options->max_tokens_given = max_tokens.Count() > 0;
    if (prompts.Count() + made.Count() != 1)
      Fail("calibrate needs prompts: --prompts FILE or --prompt-tokens N");
    if (made.Count() > 0 && options->chat) Fail("--chat goes with --prompts");
    RunCalibrate(*options);
  });
}

}  // namespace loopspec::tools
