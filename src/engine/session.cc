#include "engine/session.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory_limit.h"
#include "decode/depths.h"
#include "engine/device.h"
#include "engine/model_path.h"
#include "engine/step_cost.h"
#include "kv/planes.h"

namespace loopspec {
namespace {

constexpr int kDefaultTokens = 256;  // of an answer whose length is not given
constexpr int kMostTexts = 32;       // of full length, that memory is taken for

ConfigOverrides Overrides(const EngineOptions& options) {
  ConfigOverrides overrides;
  for (const std::string& entry : options.config) overrides.push_back(ParseOverride(entry));
  return overrides;
}

// 53 bits: a seed that survives every JSON reader.
uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> 11;
}

OrderedJson ToJson(const std::vector<Message>& messages) {
  OrderedJson json = OrderedJson::array();
  for (const Message& message : messages)
    json.push_back({{"role", message.role}, {"content", message.content}});
  return json;
}

// A quarter of the memory there is, as positions of this model.
int64_t CpuPositions(const ModelSpec& spec, const BackendOptions& options) {
  const PlaneMap planes(spec, static_cast<int>(options.readout_depths.size()));
  const int64_t position = int64_t{planes.count()} * spec.kv_size() * 2 * 4;  // float32 at most
  const int64_t texts = GetMemoryLimit().bytes / 4 / position / spec.max_positions;
  // Less than one text: the backend knows best what it can do.
  return std::min<int64_t>(texts, kMostTexts) * spec.max_positions;
}

}  // namespace

Session::Session(const EngineOptions& options)
    : options_(options),
      folder_(ResolveModel(options.model)),
      model_(Model::Load(folder_, Overrides(options), options.recurrence)),
      depths_(options.depths) {
  ChosenDepths chosen = ChooseDefaultDepths(folder_, model_, options.device);
  if (depths_.empty()) depths_.push_back(chosen.depths);
  calibration_ = std::move(chosen.calibration);
  for (const std::vector<int>& depths : depths_) CheckDepths(depths, spec().recurrence);
  if (FileExists(folder_ / "tokenizer.json")) tokenizer_ = Tokenizer::FromFolder(folder_);
  special_ = ReadSpecialTokens(folder_, tokenizer_ ? &*tokenizer_ : nullptr, spec().vocab,
                               Overrides(options));
  chat_template_ = ChatTemplate::FromFolder(folder_);
  defaults_ = ReadGenerationDefaults(folder_);
  if (!defaults_.ignored.empty())
    LogWarning("generation_config.json of {} asks for what is not done here: {}", folder_.string(),
               fmt::join(defaults_.ignored, ", "));
  backend_ = MakeBackend(model_, MakeBackendOptions(), options.device);
  cost_ = LoadStepCost(*backend_);
}

BackendOptions Session::MakeBackendOptions() const {
  BackendOptions backend;
  std::vector<int> all;
  for (const std::vector<int>& depths : depths_)
    all.insert(all.end(), depths.begin(), depths.end());
  backend.readout_depths = ReadoutDepths(all, spec().recurrence);
  if (options_.cells < 1) Fail("cells is {}, expected 1 or more", options_.cells);
  backend.cells = options_.cells;
  backend.kv_memory = options_.kv_memory;
  backend.kv_positions = options_.kv_positions;
  backend.threads = options_.threads;
  backend.state_seed = options_.state_seed;
  backend.compute = ParseCompute(options_.compute);
  if (backend.kv_memory == 0 && backend.kv_positions == 0 && IsCpu(options_.device))
    backend.kv_positions = CpuPositions(spec(), backend);
  return backend;
}

SchedulerOptions Session::scheduler_options() const {
  SchedulerOptions scheduler;
  scheduler.max_running = options_.max_running;
  scheduler.max_queued = options_.max_queued;
  scheduler.max_rows = options_.max_rows;
  scheduler.prefill_chunk = options_.prefill_chunk;
  scheduler.cache_bytes = options_.cache_bytes;
  scheduler.cost = cost_;
  return scheduler;
}

double Session::GammaOf(const ChoiceResult& result, const std::vector<int>& depths) const {
  return Gamma(result.statistics.accepted, result.statistics.fallback, depths, spec().recurrence);
}

int64_t Session::longest() const {
  return std::min<int64_t>(spec().max_positions, int64_t{backend_->pages()} * kPageSize);
}

const Tokenizer& Session::tokenizer() const {
  if (!tokenizer_)
    Fail("{} has no tokenizer.json: text cannot be read or written, token ids can",
         folder_.string());
  return *tokenizer_;
}

const ChatTemplate& Session::chat_template() const {
  if (!chat_template_)
    Fail("{} has no chat template, which a conversation needs", folder_.string());
  return *chat_template_;
}

std::vector<int32_t> Session::EncodeMessages(const OrderedJson& messages,
                                             const OrderedJson& arguments) const {
  if (!messages.is_array() || messages.empty() ||
      !std::all_of(messages.begin(), messages.end(),
                   [](const OrderedJson& message) { return message.is_object(); }))
    Fail("messages: expected a list of objects such as {{\"role\": \"user\", \"content\": ...}}");
  if (!arguments.is_object()) Fail("template arguments: expected a JSON object");
  ChatTemplate::Options how;
  how.arguments = arguments;
  // The template writes the special tokens itself.
  return tokenizer().Encode(chat_template().Render(messages, how), false);
}

std::vector<int32_t> Session::EncodePrompt(const Request& request) const {
  const int forms = (request.prompt.empty() ? 0 : 1) + (request.messages.empty() ? 0 : 1) +
                    (request.messages_json.empty() ? 0 : 1) + (request.tokens.empty() ? 0 : 1);
  if (forms > 1)
    Fail("a request has one prompt: text, messages or token ids; this one has {}", forms);
  if (!request.tokens.empty()) return request.tokens;
  if (request.messages.empty() && request.messages_json.empty())
    return tokenizer().Encode(request.prompt, request.add_special_tokens);
  return EncodeMessages(request.messages.empty()
                            ? ParseOrderedJson(request.messages_json, "messages")
                            : ToJson(request.messages),
                        request.template_arguments.empty()
                            ? OrderedJson::object()
                            : ParseOrderedJson(request.template_arguments, "template arguments"));
}

std::vector<int> Session::ChooseDepths(const Request& request) const {
  if (request.decoding != Decoding::kLoopSpec) {
    if (request.depths && !request.depths->empty())
      Fail("depths {} go with LoopSpec decoding alone", fmt::join(*request.depths, ","));
    return {};
  }
  if (!request.depths) return depths_[0];
  if (std::find(depths_.begin(), depths_.end(), *request.depths) == depths_.end()) {
    std::vector<std::string> known;
    for (const std::vector<int>& depths : depths_)
      known.push_back(fmt::format("{}", fmt::join(depths, ",")));
    Fail("depths {} are not loaded, expected {}", fmt::join(*request.depths, ","),
         fmt::join(known, " or "));
  }
  return *request.depths;
}

Submission Session::Prepare(const Request& request) const {
  Submission submission;
  DecodeRequest& decode = submission.request;
  decode.prompt = EncodePrompt(request);
  const auto prompt = static_cast<int64_t>(decode.prompt.size());
  decode.sampling = request.sampling.value_or(defaults_.sampling);
  decode.depths = ChooseDepths(request);
  decode.prior = calibration_.Prior(decode.depths, decode.sampling.greedy());
  decode.group = 0;
  if (request.decoding != Decoding::kAutoregressive) decode.early = EarlyChildren::kLookup;
  decode.max_tokens = request.max_tokens.value_or(
      static_cast<int>(std::clamp<int64_t>(longest() - prompt, 1, kDefaultTokens)));
  decode.seed = request.seed ? *request.seed : RandomSeed();
  decode.logprobs = request.logprobs;
  for (const int32_t token : request.stop_tokens) {
    if (token < 0 || token >= spec().vocab)
      Fail("stop token {} is outside the vocabulary of {}", token, spec().vocab);
  }
  decode.stop_tokens = request.stop_tokens;
  if (!request.ignore_eos)
    decode.stop_tokens.insert(decode.stop_tokens.end(), special_.eos.begin(), special_.eos.end());
  submission.choices = request.choices;
  submission.prompt_logprobs = request.prompt_logprobs;
  if (!request.stop.empty()) submission.tokenizer = &tokenizer();  // or says why not
  if (tokenizer_) submission.tokenizer = &*tokenizer_;
  submission.text.skip_special = !request.show_special;
  submission.text.stop = request.stop;
  return submission;
}

}  // namespace loopspec
