// A loaded model with all that serves it: weights, text, sampling defaults, backend. Built once,
// for the library, the tools and the server alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "base/json_fwd.h"
#include "decode/step_cost.h"
#include "engine/calibration.h"
#include "engine/generation_defaults.h"
#include "engine/scheduler.h"
#include "loopspec/loopspec.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace loopspec {

class Session {
 public:
  // Throws Error when the model cannot be loaded or run there.
  explicit Session(const EngineOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const Model& model() const { return model_; }
  const ModelSpec& spec() const { return model_.spec; }
  Backend& backend() { return *backend_; }
  const SpecialTokens& special() const { return special_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  // Sets of proposal depths that requests may choose from; the first is the default.
  const std::vector<std::vector<int>>& depths() const { return depths_; }
  // Positions that one text can have: the model's context, or less where memory holds less.
  int64_t longest() const;

  bool has_tokenizer() const { return tokenizer_.has_value(); }
  bool has_chat_template() const { return chat_template_.has_value(); }
  // These throw Error where the folder has none.
  const Tokenizer& tokenizer() const;
  const ChatTemplate& chat_template() const;

  // The ids of a conversation; `arguments` is an object of more variables for the template.
  std::vector<int32_t> EncodeMessages(const OrderedJson& messages,
                                      const OrderedJson& arguments) const;
  // The ids of a request's prompt, in whichever form it comes.
  std::vector<int32_t> EncodePrompt(const Request& request) const;

  // What the scheduler is asked for. Throws Error naming what is wrong with the request. Any number
  // of threads may prepare at once.
  Submission Prepare(const Request& request) const;

  // Tokens per R recurrences of a choice that was decoded with these depths, the paper's measure.
  double GammaOf(const ChoiceResult& result, const std::vector<int>& depths) const;

  SchedulerOptions scheduler_options() const;

 private:
  BackendOptions MakeBackendOptions() const;
  std::vector<int> ChooseDepths(const Request& request) const;

  const EngineOptions options_;
  const std::filesystem::path folder_;
  const Model model_;
  std::vector<std::vector<int>> depths_;
  Calibration calibration_;  // empty where there is none
  std::optional<Tokenizer> tokenizer_;
  SpecialTokens special_;
  std::optional<ChatTemplate> chat_template_;
  GenerationDefaults defaults_;
  std::unique_ptr<Backend> backend_;
  StepCost cost_;
};

}  // namespace loopspec
