// loopspec logits: the readout of every asked depth at every position, for those who compare or
// calibrate.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "base/memory_limit.h"
#include "decode/depths.h"
#include "engine/load/device.h"
#include "engine/load/model_path.h"
#include "kv/ledger.h"
#include "sampling/filters.h"
#include "tensor/safetensors.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/report.h"
#include "tools/token_list.h"

namespace loopspec::tools {
namespace {

struct LogitsOptions {
  ModelOptions model;
  std::string tokens, prompt, depths = "all", output;
};

std::vector<int> ParseReadouts(const std::string& text, int recurrence) {
  std::vector<int> depths;
  if (text == "all") {
    depths.resize(static_cast<size_t>(recurrence));
    std::iota(depths.begin(), depths.end(), 1);
    return depths;
  }
  depths = ParseDepths(text);
  int last = 0;
  for (const int depth : depths) {
    if (depth <= last || depth > recurrence)
      Fail("--depths {}: expected rising numbers from 1 to {}", text, recurrence);
    last = depth;
  }
  if (depths.empty()) Fail("--depths is empty, expected all or numbers such as 1,2,4");
  return depths;
}

void RunLogits(const LogitsOptions& options) {
  CheckOutputFile(options.output, "--output");
  std::error_code ignored;
  const bool to_stdout = options.output == "-";
  if (!to_stdout && std::filesystem::exists(options.output, ignored) &&
      !std::filesystem::is_regular_file(options.output, ignored)) {
    Fail(
        "--output {} is no regular file: a safetensors file is put in place as a whole when it is "
        "complete",
        options.output);
  }
  EngineOptions engine = options.model.ToEngineOptions();
  const Model model = LoadModel(engine);
  const std::vector<int> depths = ParseReadouts(options.depths, model.spec.recurrence);
  std::vector<int32_t> tokens;
  if (!options.tokens.empty()) {
    tokens = ParseTokenList(options.tokens);
  } else {
    tokens = Tokenizer::FromFolder(ResolveModel(engine.model)).Encode(options.prompt);
  }
  if (tokens.empty()) Fail("no tokens given, expected at least one");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.spec.vocab)
      Fail("token {} is outside the vocabulary of {}", token, model.spec.vocab);
  }
  const auto positions = static_cast<int64_t>(tokens.size());
  if (positions > model.spec.max_positions)
    Fail("{} tokens are more than the model's context of {}", positions, model.spec.max_positions);

  CheckMemory(static_cast<double>(depths.size()) * static_cast<double>(positions) *
                  model.spec.vocab * sizeof(float),
              fmt::format("logits of {} depths, {} positions and {} tokens", depths.size(),
                          positions, model.spec.vocab));
  engine.kv_positions = positions;
  engine.cells = 1;
  const auto backend = MakeBackend(model, engine, depths);
  const std::vector<int>& computed = backend->options().readout_depths;  // R is always among them
  const int64_t vocab = model.spec.vocab;
  std::vector<float> logits(depths.size() * static_cast<size_t>(positions * vocab));
  int32_t bad_position = -1, bad_depth = 0;
  KvLedger ledger(backend->pages(), 1);
  const SequencePages pages(ledger, positions);
  backend->Score({{pages.pages().data()}, 0, tokens}, [&](int32_t position, int32_t readout,
                                                          std::span<const float> row) {
    const auto it = std::find(depths.begin(), depths.end(), computed[static_cast<size_t>(readout)]);
    if (it == depths.end()) return;
    if (bad_position < 0 && !AllFinite(row)) {
      bad_position = position;
      bad_depth = *it;
    }
    std::memcpy(logits.data() + ((it - depths.begin()) * positions + position) * vocab, row.data(),
                row.size_bytes());
  });
  const NamedTensor tensor = {"logits",
                              {reinterpret_cast<const std::byte*>(logits.data()),
                               DType::kF32,
                               {static_cast<int64_t>(depths.size()), positions, vocab}}};
  // Written all the same: this is the way to look at them.
  if (bad_position >= 0) {
    LogWarning("the logits at position {}, depth {} hold NaN or infinity: are the weights damaged?",
               bad_position, bad_depth);
  }
  if (to_stdout) return WriteSafetensors(std::cout, {&tensor, 1}, "standard output");
  WriteSafetensors(options.output, {&tensor, 1});
  fmt::print("wrote {}: logits {} ({}) at depths {}\n", options.output,
             ShapeText(tensor.view.shape), HumanBytes(static_cast<double>(tensor.view.bytes())),
             fmt::join(depths, ","));
}

}  // namespace

void AddLogitsCommand(Command app) {
  auto options = std::make_shared<LogitsOptions>();
  const Command command = app.AddCommand(
      "logits", "Write the logits of every depth and position to a safetensors file");
  const Option tokens = command.AddOption("--tokens", options->tokens, "Token ids to read: 1,2,3");
  const Option prompt = command.AddOption("--prompt,-p", options->prompt, "Text to read instead");
  command.AddOption("--depths", options->depths, "Depths to read out: all, or 1,2,4").ShowDefault();
  command
      .AddOption("--output,-o", options->output,
                 "File to write: tensor `logits`, float32 [depths, tokens, vocabulary]; - is "
                 "standard output")
      .Required();
  options->model.AddTo(command);
  command.SetFooter(
      "\nExample:\n  loopspec logits -m models/ouro-demo --tokens 1,2,3 --depths 1,2,4 -o "
      "logits.safetensors");
  command.SetAction([=] {
    if (tokens.Count() + prompt.Count() != 1)
      Fail("logits needs one input: --tokens 1,2,3 or --prompt TEXT");
    RunLogits(*options);
  });
}

}  // namespace loopspec::tools
