// A loaded model that serves requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loopspec/encode_limits.h"
#include "loopspec/metrics.h"
#include "loopspec/queue_full.h"
#include "loopspec/request.h"
#include "loopspec/stream.h"

namespace loopspec {

struct EngineOptions {
  std::string model;             // folder of a checkpoint, or ORG/NAME in the Hugging Face cache
  std::string device = "auto";   // auto, cpu, cuda, cuda:N
  std::string compute = "auto";  // auto, f32, bf16
  // Keys and values: auto (as compute), bf16, int8, or loops:PLAN, where PLAN says for each loop
  // but the last whether it keeps its own int8 keys or is read from the last loop's:
  // "loops:int8*8,last".
  std::string kv_type = "auto";
  int threads = 0;     // CPU: 0 takes every usable core
  int recurrence = 0;  // run this many recurrences instead of the model's own
  // Fewer recurrences that a request may ask for. A model whose readout has no layers offers every
  // depth without; in others each takes memory for keys and values of its own, and proposal depths
  // are among them.
  std::vector<int> recurrences = {};
  std::vector<std::string> config = {};  // overrides of config.json: "key=value", dots descend
  uint64_t state_seed = 0;               // of Raven's random initial states

  // Proposal depths that requests may choose from; the first are used unless they say. None: chosen
  // by the model's depth.
  std::vector<std::vector<int>> depths = {};
  // Special tokens that stand in messages of users and tools (<|im_end|>) are tokens, not text.
  bool trust_special_tokens = false;
  bool calibration = true;  // false: a calibration file of the model is ignored

  // Key/value memory, over all requests. Neither: what 32 texts of full length need, but no more
  // than 45 % of a GPU with the weights, or a quarter of the machine's memory on a CPU.
  int64_t kv_memory = 0;     // bytes
  double kv_share = 0;       // or a share, up to 1, of what is free beside the weights
  int64_t kv_positions = 0;  // or positions
  // How much of it may hold prefixes for later requests while none uses them: -1 all, 0 none.
  int64_t cache_bytes = -1;

  int cells = 256;      // branches alive at once
  int max_running = 0;  // texts (choices of requests) at once, at most half the cells; 0: a quarter
  int max_queued = 1024;  // more than these are refused with QueueFull
  int max_rows = 0;       // rows of a step at most, but one for every text; 0: by what they cost
  int prefill_chunk = 0;  // positions of a prompt between two steps; 0: what the device does well

  // A thread of the engine's own takes its steps. Off: those who read streams take them, which
  // saves a single reader a thread switch per token.
  bool background = true;
};

// What is known of a loaded model.
struct ModelFacts {
  std::string name;  // as EngineOptions::model has it
  std::string device, compute;
  std::string kv_type;     // of keys and values: f32, bf16, int8, loops:PLAN@SPAN
  int64_t context = 0;     // positions of prompt and answer: the model's, or what memory holds
  int64_t parameters = 0;  // numbers that it consists of
  int vocab = 0;
  int recurrence = 0;                    // R
  int trained_recurrence = 0;            // what the checkpoint's config says
  std::vector<int> recurrences;          // that requests may ask for, R the last of them
  std::vector<std::vector<int>> depths;  // sets of proposal depths that requests may choose from
  SamplingParams sampling;       // what generation_config.json asks for; greedy where it has none
  bool sampling_chosen = false;  // it says whether to sample
  std::optional<std::string> bos_token, eos_token, pad_token;
  std::vector<int32_t> eos_ids;
  std::optional<std::string> chat_template;
  int max_queued = 0;          // choices that may wait; a request for more is never taken
  int64_t weight_bytes = 0;    // memory that the weights take, as the device reads them
  int64_t kv_bytes = 0;        // key/value memory that was taken
  int64_t device_bytes = 0;    // memory of the device, whoever has taken it
  bool has_tokenizer = false;  // without: ids alone
};

struct Choice {
  std::string text;
  std::vector<Token> tokens;
  Statistics statistics;
  std::vector<TraceEvent> trace;  // where asked for
};

struct Result {
  std::vector<Choice> choices;
  uint64_t seed = 0;
  std::vector<int> depths;             // of its proposals; none: without drafts
  std::vector<Token> prompt_logprobs;  // where asked for

  const std::string& text() const { return choices[0].text; }
  const Statistics& statistics() const { return choices[0].statistics; }
};

// Called for every token, and with Request::progress while the prompt is read. Return false to stop
// there: neither is called again then, and what was decided beyond is no part of the result.
using OnToken = std::function<bool(const Token&)>;
using OnProgress = std::function<bool(const Stream::Progress&)>;

struct ChatJson;
class LoadedModel;
class Session;

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  // Cancels what is under way; streams stay readable.
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  Stream Submit(const Request& request);
  // Submits and waits. Throws what the request fails of.
  Result Generate(const Request& request, const OnToken& on_token = {},
                  const OnProgress& on_progress = {});
  // With EngineOptions::background off: one scheduling step for all requests; false when there was
  // nothing to do.
  bool Step();

  const ModelFacts& facts() const;
  EngineMetrics metrics() const;

  // Text. Any thread.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = true,
                              const EncodeLimits& limits = {}) const;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  // A token's own bytes, perhaps half a character.
  std::string_view Piece(int32_t id) const;
  // The prompt that the model's template makes of a conversation, both as JSON.
  std::string Render(std::string_view messages_json,
                     std::string_view template_arguments = {}) const;
  // Its ids: special tokens in messages of users and tools stay text, unless the engine is to trust
  // them. `text`: the prompt as well.
  std::vector<int32_t> EncodeChat(std::string_view messages_json,
                                  std::string_view template_arguments = {},
                                  std::string* text = nullptr,
                                  const EncodeLimits& limits = {}) const;

  // Compiles a grammar, as a request that has it would; such a request then finds it compiled.
  // Keywords of its schema that are ignored, where that is allowed. Throws what is wrong with it.
  std::vector<std::string> CheckGrammar(const GrammarSource& grammar) const;

  // For this repository: these types are no part of the library's interface. A model that is loaded
  // already is asked for its generation_config.json all the same.
  Engine(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded);
  explicit Engine(std::unique_ptr<Session> session);
  Session& session();
  std::string Render(const ChatJson& chat) const;
  std::vector<int32_t> EncodeChat(const ChatJson& chat, std::string* text = nullptr,
                                  const EncodeLimits& limits = {}) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace loopspec
