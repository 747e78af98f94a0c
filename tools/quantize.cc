// loopspec quantize: a model's weights in 8 or 4 bits, and what that changes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "engine/load/device.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "model/gguf_model.h"
#include "quantize/quantize.h"
#include "quantize/quantize_report.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/prompts.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct QuantizeOptions {
  ModelOptions model;
  std::string to, output, prompts;
  int tokens = 4096;
};

// The texts, cut: each to 512 tokens, all together to --max-tokens.
std::vector<std::vector<int32_t>> ReadTexts(const QuantizeOptions& options, const Model& model) {
  std::vector<std::vector<int32_t>> texts;
  if (options.prompts.empty()) return texts;
  const Tokenizer tokenizer = ReadTokenizer(ResolveModel(options.model.model));
  int64_t left = options.tokens;
  const int64_t longest = std::min<int64_t>(model.spec.max_positions, 512);
  for (const PromptEntry& entry : ReadPrompts(options.prompts, 0)) {
    std::string text = entry.prompt;
    if (entry.answer) text += "\n" + *entry.answer;
    std::vector<int32_t> tokens = tokenizer.Encode(text);
    const int64_t count = std::min<int64_t>({std::ssize(tokens), longest, left});
    if (count < 2) continue;
    tokens.resize(static_cast<size_t>(count));
    left -= count;
    texts.push_back(std::move(tokens));
    if (left < 2) break;
  }
  if (texts.empty()) Fail("{} holds no text of two tokens or more", options.prompts);
  return texts;
}

void PrintReport(const QuantizeReport& report, const std::string& to) {
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<28}{}\n", name, value);
  };
  fmt::print("{} against the source, over {} positions:\n", to, report.positions);
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

void RunQuantize(const QuantizeOptions& options) {
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
  // int4 is fitted to every second text and judged by the others.
  std::vector<std::vector<int32_t>> judged;
  for (std::vector<int32_t>& text : ReadTexts(options, source)) {
    const bool fits = request.bits == 4 && request.texts.size() == judged.size();
    (fits ? request.texts : judged).push_back(std::move(text));
  }
  if (judged.empty()) judged = request.texts;
  ProgressLine progress(0.5, ProgressLine::Otherwise::kPlainLines);
  request.progress = [&](const std::string& what, int64_t done, int64_t total) {
    progress.Show(what, done, total, what == "reading texts" ? "tokens" : "matrices");
  };
  request.make_backend = [&](const Model& model, BackendOptions backend) {
    backend.threads = options.model.threads;
    backend.state_seed = options.model.state_seed;
    return MakeBackend(model, backend, "cpu");
  };
  const QuantizeResult result = QuantizeModel(source, request);
  progress.Clear();
  fmt::print("{}: {} matrices as {}{}, {} instead of {}\n", options.output, result.matrices,
             options.to,
             result.resumed > 0 ? fmt::format(" ({} of an earlier run)", result.resumed) : "",
             HumanBytes(static_cast<double>(result.bytes)),
             HumanBytes(static_cast<double>(result.source_bytes)));

  if (request.bits == 4 && request.texts.empty())
    LogWarning("without --prompts the weights were rounded as they are; texts make int4 better");

  // Read back as any other model would be.
  EngineOptions engine = options.model.ToEngineOptions();
  engine.model = options.output;
  const Model quantized = LoadModel(engine);
  if (judged.empty()) {
    fmt::print("not compared with the source: --prompts FILE gives texts to do so\n");
    return;
  }
  size_t longest = 0;
  for (const auto& text : judged) longest = std::max(longest, text.size());
  engine.kv_positions = static_cast<int64_t>(longest);
  engine.cells = 1;
  const std::vector<int> depths = options.model.ChooseDepths(source).depths;
  EngineOptions plain = engine;
  plain.kv_type = "auto";
  const auto reference = MakeBackend(source, plain, depths);
  const auto compare = [&](const Model& model, const std::string& name) {
    const auto backend = MakeBackend(model, engine, depths);
    ProgressLine line(0.5, ProgressLine::Otherwise::kPlainLines);
    const QuantizeReport report = CompareModels(
        *reference, *backend, judged,
        [&](int64_t done, int64_t total) { line.Show("comparing", done, total, "positions"); });
    line.Clear();
    PrintReport(report, name);
  };
  if (engine.kv_type == "int8") compare(source, "int8 keys and values alone");
  compare(quantized, options.to + (engine.kv_type == "int8" ? ", int8 keys and values" : ""));
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
  command.AddOption(
      "--prompts", options->prompts,
      "Texts, one per line or JSONL: both models read them for the report; int4 is fitted "
      "to every second one (GPTQ) and read against the others");
  command.AddOption("--max-tokens", options->tokens, "Tokens of them to use")
      .Range(2, 1 << 24)
      .TypeName("N")
      .ShowDefault();
  options->model.AddTo(command);
  command.SetFooter(
      "\nExample:\n  loopspec quantize -m models/ouro-demo --to int8 -o ouro-int8 --prompts "
      "bench/stories.txt");
  command.SetAction([options] { RunQuantize(*options); });
}

}  // namespace loopspec::tools
