// loopspec quantize: a model's weights in 8 or 4 bits, and what that changes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "engine/load/device.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "model/gguf_model.h"
#include "quantize/calibration_texts.h"
#include "quantize/fit_or_round.h"
#include "quantize/quantize.h"
#include "quantize/quantize_report.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/prompts.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct QuantizeOptions {
  ModelOptions model;
  std::string to, output;
  std::string prompts = "built-in", judge = "built-in";
  double damping = QuantizeRequest().damping;
  int tokens = 4096;
};

using Texts = std::vector<std::vector<int32_t>>;

// As tokens, cut: each text to 512 tokens, all together to --max-tokens.
Texts Tokenize(const QuantizeOptions& options, const Model& model, const std::string& name,
               const std::vector<std::string>& texts) {
  const Tokenizer tokenizer = ReadTokenizer(ResolveModel(options.model.model));
  const int64_t longest = std::min<int64_t>(model.spec.max_positions, 512);
  int64_t left = options.tokens;
  Texts result;
  for (const std::string& text : texts) {
    std::vector<int32_t> tokens = tokenizer.Encode(text);
    const int64_t count = std::min<int64_t>({std::ssize(tokens), longest, left});
    if (count < 2) continue;
    tokens.resize(static_cast<size_t>(count));
    left -= count;
    result.push_back(std::move(tokens));
    if (left < 2) break;
  }
  if (result.empty()) Fail("{} holds no text of two tokens or more", name);
  return result;
}

// What the weights are fitted to, and what they are judged by.
struct ChosenTexts {
  Texts fitted;  // int4 alone
  Texts alike;   // of the user's own, those that nothing is fitted to
  Texts judged;  // of another kind
};

ChosenTexts ChooseTexts(const QuantizeOptions& options, const Model& model) {
  ChosenTexts chosen;
  const bool int4 = options.to == "int4";
  if (options.prompts == "built-in") {
    if (int4) chosen.fitted = Tokenize(options, model, "the built-in set", CalibrationPassages());
  } else if (options.prompts != "none") {
    // int4 is fitted to every second text.
    for (auto& text : Tokenize(options, model, options.prompts, ReadTexts(options.prompts))) {
      const bool fits = int4 && chosen.fitted.size() == chosen.alike.size();
      (fits ? chosen.fitted : chosen.alike).push_back(std::move(text));
    }
  }
  if (options.judge == "built-in") {
    chosen.judged = Tokenize(options, model, "the built-in set", JudgingPassages());
  } else if (options.judge != "none") {
    chosen.judged = Tokenize(options, model, options.judge, ReadTexts(options.judge));
  }
  return chosen;
}

void PrintReport(const QuantizeReport& report, const std::string& to, const std::string& texts) {
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<28}{}\n", name, value);
  };
  fmt::print("{} against the source, over {} positions of {}:\n", to, report.positions, texts);
  row("perplexity",
      fmt::format("{:.4f}, source {:.4f}", report.perplexity, report.source_perplexity));
  row("total variation distance", fmt::format("{:.4f}", report.distance));
  row("same likeliest token", fmt::format("{:.2f} %", 100 * report.agreed));
  for (size_t i = 0; i < report.depths.size(); ++i) {
    row(fmt::format("depth {} agrees with last", report.depths[i]).c_str(),
        fmt::format("{:.2f} %, source {:.2f} %", 100 * report.accepted[i],
                    100 * report.source_accepted[i]));
  }
  row("gamma of greedy drafts",
      fmt::format("{:.2f}, source {:.2f}", report.gamma, report.source_gamma));
  if (report.agreed < 0.97)
    LogWarning(
        "{} changes the likeliest token at {:.1f} % of positions: compare answers before use", to,
        100 * (1 - report.agreed));
  for (size_t i = 0; i < report.depths.size(); ++i) {
    if (report.accepted[i] < report.source_accepted[i] - 0.03)
      LogWarning("drafts of depth {} hold less often than the source's: run loopspec calibrate",
                 report.depths[i]);
  }
}

// Which of the two ways to int4 was kept, and by how much it is the better one.
void PrintChoice(const FitOrRound& choice) {
  const auto line = [](const char* name, const QuantizeReport& report) {
    fmt::print("  {:<12}perplexity {:.4f}, distance {:.4f}, same likeliest token {:.2f} %\n", name,
               report.perplexity, report.distance, 100 * report.agreed);
  };
  fmt::print("over {} positions of another kind of text, source's perplexity {:.4f}:\n",
             choice.fitted.positions, choice.fitted.source_perplexity);
  line("by GPTQ", choice.fitted);
  line("rounded", choice.rounded);
  fmt::print("kept: {}\n", choice.keeps_fitted ? "GPTQ" : "rounded");
  if (!choice.keeps_fitted)
    LogWarning(
        "GPTQ loses to rounding on text of another kind than it was fitted to: the weights were "
        "rounded. More, and more kinds of, --prompts may help");
}

// Before config.json is there the output is no model yet, and the parts of it are kept.
void StopWhereInterrupted(const QuantizeOptions& options) {
  const bool whole = FileExists(std::filesystem::path(options.output) / "config.json");
  StopIfInterrupted(whole ? options.output +
                                " is whole, comparing it with the source was not finished"
                          : "the same command goes on from here");
}

void RunQuantize(const QuantizeOptions& options) {
  CatchInterrupt();
  if (options.to != "int8" && options.to != "int4")
    Fail("--to is {}, expected int8 or int4", options.to);
  if (IsGguf(ResolveModel(options.model.model)))
    Fail("--model {} is a GGUF file, expected a folder of safetensors", options.model.model);
  const Model source = options.model.Load();
  QuantizeRequest request;
  request.source = ResolveModel(options.model.model);
  request.output = options.output;
  request.bits = options.to == "int8" ? 8 : 4;
  request.threads = options.model.threads;
  request.damping = options.damping;
  ChosenTexts texts = ChooseTexts(options, source);
  request.texts = std::move(texts.fitted);
  ProgressLine progress(0.5, ProgressLine::Otherwise::kPlainLines);
  request.progress = [&](const std::string& what, int64_t done, int64_t total) {
    StopWhereInterrupted(options);
    progress.Show(what, done, total, what == "reading texts" ? "tokens" : "matrices");
  };
  request.make_backend = [&](const Model& model, BackendOptions backend) {
    backend.threads = options.model.threads;
    backend.state_seed = options.model.state_seed;
    return MakeBackend(model, backend, "cpu");
  };

  // Models are read back as any other would be.
  EngineOptions engine = options.model.ToEngineOptions();
  engine.cells = 1;
  const KvChoice choice_of_keys =
      ParseKvType(engine.kv_type, ParseCompute(engine.compute), source.spec,
                  IsCpu(engine) ? DeviceClass::kCpu : DeviceClass::kGpu);
  for (const Texts* part : {&texts.alike, &texts.judged}) {
    for (const auto& text : *part)
      engine.kv_positions = std::max(engine.kv_positions, static_cast<int64_t>(text.size()));
  }
  const std::vector<int> depths = options.model.ChooseDepths(source).depths;
  EngineOptions plain = engine;
  plain.kv_type = "auto";
  const auto reference = MakeBackend(source, plain, depths);
  const auto compare = [&](const Model& model, const Texts& over) {
    const auto backend = MakeBackend(model, engine, depths);
    QuantizeReport report =
        CompareModels(*reference, *backend, over, [&](int64_t done, int64_t total) {
          StopWhereInterrupted(options);
          progress.Show("comparing", done, total, "positions");
        });
    progress.Clear();
    return report;
  };
  const auto load = [&](const std::filesystem::path& folder) {
    EngineOptions written = engine;
    written.model = folder.string();
    return LoadModel(written);
  };

  const bool fits = request.bits == 4 && !request.texts.empty();
  const bool chooses = fits && !texts.judged.empty();
  std::optional<FitOrRound> choice;
  if (chooses) {
    choice = FitOrRoundModel(source, request, [&](const std::filesystem::path& folder) {
      return compare(load(folder), texts.judged);
    });
  }
  const QuantizeResult result = choice ? choice->written : QuantizeModel(source, request);
  progress.Clear();
  fmt::print("{}: {} matrices as {}{}, {} instead of {}\n", options.output, result.matrices,
             options.to,
             result.resumed > 0 ? fmt::format(" ({} of an earlier run)", result.resumed) : "",
             HumanBytes(static_cast<double>(result.bytes)),
             HumanBytes(static_cast<double>(result.source_bytes)));
  if (choice) PrintChoice(*choice);
  if (request.bits == 4 && !fits)
    LogWarning("with --prompts none the weights were rounded as they are; texts make int4 better");

  const Model quantized = load(options.output);
  const std::string other = fits ? "text of another kind than it was fitted to" : "mixed text";
  const std::string alike = fits ? "text of the kind it was fitted to" : options.prompts;
  const bool own_keys = choice_of_keys.type != KvType::kCompute;
  const std::string keys =
      choice_of_keys.plan ? fmt::format("keys and values as loops:{}", choice_of_keys.plan->text())
                          : "int8 keys and values";
  const auto report = [&](const Texts& over, const std::string& kind, const auto& of_quantized) {
    if (over.empty()) return;
    if (own_keys) PrintReport(compare(source, over), keys + " alone", kind);
    PrintReport(of_quantized(), options.to + (own_keys ? ", " + keys : ""), kind);
  };
  report(texts.alike, alike, [&] { return compare(quantized, texts.alike); });
  report(texts.judged, other, [&] {
    if (choice) return choice->keeps_fitted ? choice->fitted : choice->rounded;
    return compare(quantized, texts.judged);
  });
  if (texts.alike.empty() && texts.judged.empty())
    fmt::print("not compared with the source: --judge FILE gives texts to do so\n");
}

}  // namespace

void AddQuantizeCommand(Command app) {
  auto options = std::make_shared<QuantizeOptions>();
  const Command command =
      app.AddCommand("quantize", "Write a model with weights of 8 or 4 bits, and compare the two");
  command
      .AddOption("--to", options->to,
                 "int8: one scale per output, hardly any loss; int4: groups of 32, half the bytes, "
                 "some loss")
      .Examples({"int8", "int4"})
      .Required();
  command
      .AddOption("--output,-o", options->output,
                 "Folder to write; a run that was broken off goes on")
      .Required();
  command
      .AddOption(
          "--prompts", options->prompts,
          "Texts that int4 is fitted to (GPTQ), one per line or JSONL: every second one; both "
          "models are compared over the others. none: rounded")
      .TypeName("FILE|none")
      .ShowDefault("a built-in set of stories, problems, prose and dialogue");
  command
      .AddOption("--judge", options->judge,
                 "Texts of another kind: both models are compared over them, and int4 is rounded "
                 "where GPTQ is worse there. none: not compared")
      .TypeName("FILE|none")
      .ShowDefault("a built-in set of letters, notices, recipes and verse");
  command.AddOption("--damping", options->damping, "Of GPTQ: more is nearer to rounding")
      .ShowDefault();
  command.AddOption("--max-tokens", options->tokens, "Tokens of each set to use")
      .Range(2, 1 << 24)
      .ShowDefault();
  options->model.AddTo(command);
  command.SetFooter("\nExample:\n  loopspec quantize -m models/ouro-demo --to int8 -o ouro-int8");
  command.SetAction([options] { RunQuantize(*options); });
}

}  // namespace loopspec::tools
