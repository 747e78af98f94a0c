// Options that several commands share, and what they turn into.
#pragma once

#include "tools/command_line.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "decode/request.h"
#include "engine/calibration.h"
#include "loopspec/loopspec.h"
#include "text/chat_template.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace loopspec::tools {

// --model and how to run it.
struct ModelOptions {
  std::string model;
  int recurrence = 0;
  std::vector<std::string> set;
  std::string device = "auto";
  std::string compute = "auto";
  int threads = 0;
  uint64_t state_seed = 0;
  std::string kv_memory;

  void AddTo(Command command);
  ConfigOverrides Overrides() const;
  Model Load() const;
  // The same for an engine that serves requests.
  EngineOptions ToEngineOptions() const;
  // `depths`: every proposal depth that will be used. `positions`: committed positions to hold, 0
  // for the model's whole context, or as much of it as memory holds; of so many `texts` at a time.
  std::unique_ptr<Backend> MakeBackend(const Model& model_loaded, std::span<const int> depths,
                                       int64_t positions, int cells = 0, int texts = 1) const;
  // Proposal depths where the user names none: a calibration's, else by rule.
  ChosenDepths ChooseDepths(const Model& model_loaded) const;
};

// --temperature and its kin.
struct SamplingOptions {
  SamplingParams params;
  std::string sampler = "cascade";
  std::string later = "gated";
  std::vector<std::string> bias;

  void AddTo(Command command);
  SamplingParams Get() const;
};

// --decode, --depths, --max-rows, --group, --early.
struct DecodeOptions {
  std::string decode = "loopspec";
  std::string depths = "auto";
  int row_budget = 0;  // 0: by cost
  std::string group = "auto";
  std::string early = "lookup";

  void AddTo(Command command);
  // Proposal depths for a loaded model; empty for autoregressive decoding. Says on stderr when they
  // cannot batch.
  ChosenDepths Depths(const ModelOptions& options, const Model& model) const;
  // Sets the depths of `request`, whose sampling is set, and how it chooses its rows.
  void Apply(const ChosenDepths& chosen, DecodeRequest& request) const;
};

// What turns text into tokens and back, where the folder has it.
struct TextParts {
  std::optional<Tokenizer> tokenizer;
  SpecialTokens special;
  std::optional<ChatTemplate> chat_template;

  // `tokenizer`: a folder to take tokenizer and chat template from; empty: the model's own.
  static TextParts Load(const ModelOptions& options, const Model& model,
                        const std::filesystem::path& tokenizer = {});
  const Tokenizer& RequireTokenizer(const std::filesystem::path& folder) const;
  const ChatTemplate& RequireTemplate(const std::filesystem::path& folder) const;
};

// --seed and its kin: any whole number of 64 bits. (CLI11 alone would read -1 as 2^64 - 1.)
Option AddSeed(Command command, const std::string& name, uint64_t& seed, const std::string& help);

// "8G", "512M", "1000000": bytes.
int64_t ParseBytes(const std::string& text, const char* option);

}  // namespace loopspec::tools
