// loopspec logits: the readout of every asked depth at every position, for those who compare,
// calibrate or want to see how a model makes up its mind.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory_limit.h"
#include "calibrate/exit_gate.h"
#include "decode/depths.h"
#include "engine/load/device.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "kv/ledger.h"
#include "lens/lens.h"
#include "sampling/filters.h"
#include "tensor/safetensors.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/report.h"
#include "tools/token_list.h"

namespace loopspec::tools {
namespace {

struct LogitsOptions {
  ModelOptions model;
  std::string tokens, prompt, depths = "all", output, lens;
  int top = 5;
  bool exit_gate = false;
};

// A text to be read, and a backend that reads it out at these depths (and at R).
struct Reading {
  EngineOptions engine;
  Model model;
  std::vector<int> depths;
  std::vector<int32_t> tokens;
  std::unique_ptr<Backend> backend;
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

Reading Open(const LogitsOptions& options) {
  Reading reading;
  reading.engine = options.model.ToEngineOptions();
  reading.model = LoadModel(reading.engine);
  const ModelSpec& spec = reading.model.spec;
  reading.depths = ParseReadouts(options.depths, spec.recurrence);
  if (reading.engine.kv_type.starts_with("loops")) {
    constexpr const char* kWhy =
        "since what earlier depths read by a plan of keys is not what a text of fewer loops reads";
    if (options.exit_gate) {
      Fail(
          "--kv-type {} and --exit-gate, which looks at every depth: expected bf16 or int8 keys, "
          "{}",
          reading.engine.kv_type, kWhy);
    }
    if (reading.depths != std::vector<int>{spec.recurrence}) {
      Fail("--kv-type {} and depths {}: expected --depths {}, {}", reading.engine.kv_type,
           fmt::join(reading.depths, ","), spec.recurrence, kWhy);
    }
  }
  std::vector<int32_t>& tokens = reading.tokens;
  if (!options.tokens.empty()) {
    tokens = ParseTokenList(options.tokens);
  } else {
    tokens = ReadTokenizer(ResolveModel(reading.engine.model)).Encode(options.prompt);
  }
  if (tokens.empty()) Fail("no tokens given, expected at least one");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= spec.vocab)
      Fail("token {} is outside the vocabulary of {}", token, spec.vocab);
  }
  const auto positions = static_cast<int64_t>(tokens.size());
  if (positions > spec.max_positions)
    Fail("{} tokens are more than the model's context of {}", positions, spec.max_positions);
  reading.engine.kv_positions = positions;
  reading.engine.cells = 1;
  return reading;
}

void CheckRegularFile(const std::string& path, const char* option, const char* what) {
  CheckOutputFile(path, option);
  std::error_code ignored;
  if (path != "-" && std::filesystem::exists(path, ignored) &&
      !std::filesystem::is_regular_file(path, ignored))
    Fail("{} {} is no regular file: {} is put in place as a whole when it is complete", option,
         path, what);
}

constexpr size_t kPart = 64;  // positions between two looks at whether Ctrl-C was pressed
constexpr const char* kNotWritten = " was not written, the text was read in part";

void WriteLogits(const LogitsOptions& options, Reading& reading) {
  const Model& model = reading.model;
  const std::vector<int>& depths = reading.depths;
  const auto positions = static_cast<int64_t>(reading.tokens.size());
  CheckMemory(static_cast<double>(depths.size()) * static_cast<double>(positions) *
                  model.spec.vocab * sizeof(float),
              fmt::format("logits of {} depths, {} positions and {} tokens", depths.size(),
                          positions, model.spec.vocab));
  reading.backend = MakeBackend(model, reading.engine, depths);
  Backend& backend = *reading.backend;
  const std::vector<int>& computed = backend.options().readout_depths;  // R is always among them
  const int64_t vocab = model.spec.vocab;
  std::vector<float> logits(depths.size() * static_cast<size_t>(positions * vocab));
  int32_t bad_position = -1, bad_depth = 0;
  KvLedger ledger(backend.pages(), 1, backend.window_pages());
  const SequencePages pages(ledger, positions);
  const auto take = [&](int32_t position, int32_t readout, std::span<const float> row) {
    const auto it = std::find(depths.begin(), depths.end(), computed[static_cast<size_t>(readout)]);
    if (it == depths.end()) return;
    if (bad_position < 0 && !AllFinite(row)) {
      bad_position = position;
      bad_depth = *it;
    }
    std::memcpy(logits.data() + ((it - depths.begin()) * positions + position) * vocab, row.data(),
                row.size_bytes());
  };
  for (size_t at = 0; at < reading.tokens.size(); at += kPart) {
    StopIfInterrupted(options.output + kNotWritten);
    const auto rest = std::span<const int32_t>(reading.tokens).subspan(at);
    backend.Score(
        {PlanOf(pages), static_cast<int32_t>(at), rest.first(std::min(kPart, rest.size()))}, take);
  }
  const NamedTensor tensor = {"logits",
                              {reinterpret_cast<const std::byte*>(logits.data()),
                               DType::kF32,
                               {static_cast<int64_t>(depths.size()), positions, vocab}}};
  // Written all the same: this is the way to look at them.
  if (bad_position >= 0) {
    LogWarning("the logits at position {}, depth {} hold NaN or infinity: are the weights damaged?",
               bad_position, bad_depth);
  }
  if (options.output == "-") return WriteSafetensors(std::cout, {&tensor, 1}, "standard output");
  WriteSafetensors(options.output, {&tensor, 1});
  fmt::print("wrote {}: logits {} ({}) at depths {}\n", options.output,
             ShapeText(tensor.view.shape), HumanBytes(static_cast<double>(tensor.view.bytes())),
             fmt::join(depths, ","));
}

// Tokens as text, or by number where the folder has no tokenizer.
TokenText TextOfTokens(const std::filesystem::path& model) {
  std::shared_ptr<Tokenizer> tokenizer;
  if (ModelText text = ReadModelText(model, INT32_MAX, {}); text.tokenizer)
    tokenizer = std::make_shared<Tokenizer>(std::move(*text.tokenizer));
  if (tokenizer == nullptr) return [](int32_t token) { return fmt::format("#{}", token); };
  return [tokenizer](int32_t token) { return tokenizer->Decode({&token, 1}, false); };
}

// --lens and --exit-gate: what each depth says and how it gets there.
void ShowLens(const LogitsOptions& options, Reading& reading) {
  const std::optional<ExitGate> gate = ExitGate::Of(reading.model);
  if (options.exit_gate && !gate)
    Fail("--exit-gate: {} has no exit gate (model.early_exit_gate.weight), which Ouro models have",
         options.model.model);
  // The gate's probabilities are of every depth.
  if (options.exit_gate) reading.depths = ParseReadouts("all", reading.model.spec.recurrence);
  reading.backend = MakeBackend(reading.model, reading.engine, reading.depths);
  const Lens lens =
      LookThrough(*reading.backend, reading.tokens, options.top, gate ? &*gate : nullptr, [&] {
        StopIfInterrupted((options.lens.empty() ? "the exit gate's report" : options.lens) +
                          kNotWritten);
      });
  if (options.exit_gate) {
    ExitReport report(lens.depths);
    for (size_t t = 0; t < lens.tokens.size(); ++t) {
      std::vector<double> lambdas;
      std::vector<int32_t> choices;
      for (size_t d = 0; d < lens.depths.size(); ++d) {
        lambdas.push_back(static_cast<double>(lens.At(t, d).exit));
        choices.push_back(lens.At(t, d).tokens[0]);
      }
      report.Add(lambdas, choices);
    }
    fmt::print("{}", report.ToText());
  }
  if (options.lens.empty()) return;
  const TokenText text_of = TextOfTokens(ResolveModel(reading.engine.model));
  if (options.lens.ends_with(".npz")) {
    WriteLensNpz(lens, options.lens);
  } else if (options.lens.ends_with(".html")) {
    WriteTextFile(options.lens, LensPage(lens, text_of, options.model.model));
  } else {
    WriteTextFile(
        options.lens,
        LensJson(lens, text_of).dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }
  fmt::print("wrote {}: {} positions at depths {}\n", options.lens, lens.tokens.size(),
             fmt::join(lens.depths, ","));
}

void RunLogits(const LogitsOptions& options) {
  CatchInterrupt();
  if (!options.output.empty()) CheckRegularFile(options.output, "--output", "a safetensors file");
  if (!options.lens.empty()) {
    CheckRegularFile(options.lens, "--lens", "the file");
    if (!options.lens.ends_with(".json") && !options.lens.ends_with(".npz") &&
        !options.lens.ends_with(".html"))
      Fail("--lens {}: expected a name that ends with .json, .npz or .html", options.lens);
  }
  Reading reading = Open(options);
  if (!options.output.empty()) WriteLogits(options, reading);
  if (options.exit_gate || !options.lens.empty()) {
    reading.backend.reset();  // the other one goes first: there may not be room for two
    ShowLens(options, reading);
  }
}

}  // namespace

void AddLogitsCommand(Command app) {
  auto options = std::make_shared<LogitsOptions>();
  const Command command = app.AddCommand(
      "logits", "Write the logits of every depth and position to a safetensors file");
  const Option tokens = command.AddOption("--tokens", options->tokens, "Token ids to read: 1,2,3");
  const Option prompt = command.AddOption("--prompt,-p", options->prompt, "Text to read instead");
  command.AddOption("--depths", options->depths, "Depths to read out: all, or 1,2,4").ShowDefault();
  command.AddOption("--output,-o", options->output,
                    "File to write: tensor `logits`, float32 [depths, tokens, vocabulary]; - is "
                    "standard output");
  command.AddOption("--lens", options->lens,
                    "Write what every depth says at every position (likeliest tokens, entropy, "
                    "margin, KL and cosine to the last depth) as .json, .npz or, as a heat map, "
                    ".html; on the CPU");
  command.AddOption("--top", options->top, "Likeliest tokens that --lens lists")
      .Range(1, 100)
      .ShowDefault();
  command.AddFlag("--exit-gate", options->exit_gate,
                  "Print what Ouro's exit gate says, and what leaving early would change");
  options->model.AddTo(command);
  const Option positional =
      command.AddOption("PROMPT", options->prompt, "Text to read, as --prompt gives it")
          .OrElse({tokens, prompt});
  command.SetFooter(
      "\nExamples:\n  loopspec logits -m models/ouro-demo --tokens 1,2,3 --depths 1,2,4 -o "
      "logits.safetensors\n  loopspec logits -m models/ouro-demo -p \"Once upon a time\" --lens "
      "lens.html");
  command.SetAction([=] {
    const size_t given = tokens.Count() + prompt.Count() + positional.Count();
    if (given != 1)
      Fail("logits needs one input: a text after the model, --prompt TEXT or --tokens 1,2,3{}",
           given == 0 ? TextInPlaceOfModel(options->model.model) : "");
    if (options->output.empty() && options->lens.empty() && !options->exit_gate)
      Fail("logits needs something to write: --output FILE, --lens FILE or --exit-gate");
    RunLogits(*options);
  });
}

}  // namespace loopspec::tools
