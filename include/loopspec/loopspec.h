// libloopspec: load a looped transformer and serve requests with it.
//
//   loopspec::Engine engine({.model = "models/ouro-demo"});
//   engine.Generate({.prompt = "Once upon a time"}, [](const loopspec::Token& token) {
//     std::cout << token.text << std::flush;
//     return true;
//   });
//
// Any number of threads may use one engine; requests that run at the same time share its steps, and
// each gets the text that it gets alone. Link with find_package(loopspec) and loopspec::loopspec.
// Bad files and requests throw std::runtime_error with one sentence that names the thing; a request
// that comes when too many wait already throws QueueFull, which is one too.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loopspec/queue_full.h"

namespace loopspec {

struct EngineOptions {
  std::string model;             // folder of a checkpoint, or ORG/NAME in the Hugging Face cache
  std::string device = "auto";   // auto, cpu, cuda, cuda:N
  std::string compute = "auto";  // auto, f32, bf16
  int threads = 0;               // CPU: 0 takes every usable core
  int recurrence = 0;            // run this many recurrences instead of the model's own
  std::vector<std::string> config = {};  // overrides of config.json: "key=value", dots descend
  uint64_t state_seed = 0;               // of Raven's random initial states

  // Proposal depths that requests may choose from; the first are used unless they say. None: chosen
  // by the model's depth.
  std::vector<std::vector<int>> depths = {};

  // Key/value memory, over all requests. Neither: most of what is free on a GPU, a quarter of the
  // machine's memory on a CPU, but no more than 32 texts of full length need.
  int64_t kv_memory = 0;     // bytes
  int64_t kv_positions = 0;  // or positions
  // How much of it may hold prefixes for later requests while nobody uses them: -1 all, 0 none.
  int64_t cache_bytes = -1;

  int cells = 256;        // branches alive at once
  int max_running = 0;    // requests decoded at once; 0: a quarter of the cells
  int max_queued = 1024;  // more than these are refused with QueueFull
  int max_rows = 0;       // branches computed together; 0: what the device does well
  int prefill_chunk = 0;  // positions of a prompt between two steps; 0: what the device does well
};

struct Sampling {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, what is added
  bool coupled = false;  // sampled text that does not depend on the decoder
};

struct Message {
  std::string role;  // system, user, assistant, or what the model's template knows
  std::string content;
};

enum class Decoding {
  kLoopSpec,        // the paper's pipelined self-speculation
  kAutoregressive,  // the same text, more slowly
  kLookup,          // the same text, with guesses from what the text repeats instead of drafts
};

struct Request {
  // The text to go on from, in one of these forms.
  std::string prompt = {};
  std::vector<Message> messages = {};  // put into the model's chat template
  std::string messages_json = {};      // the same as JSON, for messages with more to them
  std::vector<int32_t> tokens = {};    // ids as they are

  std::string template_arguments = {};  // a JSON object: {"enable_thinking": false}
  bool add_special_tokens = true;       // those that the tokenizer puts around a prompt

  std::optional<Sampling> sampling = {};  // none: what generation_config.json says
  std::optional<uint64_t> seed = {};      // none: a random one, see Stream::seed
  int choices = 1;                        // texts, each with draws of its own

  std::optional<int> max_tokens = {};     // none: 256, or what there is room for; 0: only score
  std::vector<std::string> stop = {};     // end before any of these
  std::vector<int32_t> stop_tokens = {};  // end with any of these
  bool ignore_eos = false;
  bool show_special = false;  // special tokens as text

  int logprobs = -1;         // -1: none; n: of each token, and the n likeliest ones
  int prompt_logprobs = -1;  // the same for the prompt's own tokens

  Decoding decoding = Decoding::kLoopSpec;
  std::optional<std::vector<int>> depths = {};  // among EngineOptions::depths
};

struct Alternative {
  int32_t id = 0;
  float logprob = 0.0f;
};

struct Token {
  int choice = 0;
  int32_t id = 0;
  int source = 0;      // 0: decided at full depth, j: accepted from proposal j
  bool early = false;  // its computation had begun on a guess
  // What may be shown now; empty while a character or a stop string is incomplete.
  std::string text = {};
  float logprob = 0.0f;  // of the unfiltered distribution, where asked for
  std::vector<Alternative> top = {};
};

struct Statistics {
  std::string finish_reason;  // stop, length, cancelled, error
  std::string error;          // what went wrong, if something did
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of these, found computed
  int64_t decoded_tokens = 0;
  std::vector<int64_t> accepted;  // by proposal
  int64_t fallback = 0;
  double gamma = 0;      // tokens per R recurrences, the paper's measure
  double rows_mean = 0;  // branches of this request computed together
  double queue_seconds = 0;
  double prefill_seconds = 0;      // from admission on
  double first_token_seconds = 0;  // likewise
  double decode_seconds = 0;       // after the first token
  double tokens_per_second = 0;
};

class TokenStream;

// A request under way. What it has produced is kept until it is read, so a slow reader delays
// nobody. A stream that goes away cancels its request.
class Stream {
 public:
  enum class Status {
    kToken,    // there is a token
    kPrompt,   // the prompt is scored: see prompt_logprobs
    kEnd,      // token.choice has ended: see statistics
    kTimeout,  // nothing yet
    kDone,     // all choices have ended and all has been read
  };
  // Waits for what comes next, forever or for a time.
  Status Next(Token& token);
  Status Next(Token& token, std::chrono::milliseconds timeout);
  // Stops within a step, at whatever stage the request is. What was produced can still be read.
  void Cancel();
  // Calls `ready` whenever there is something to read, at once if there is; by the engine's thread,
  // so it must not wait.
  void OnReady(std::function<void()> ready);

  int choices() const;
  uint64_t seed() const { return seed_; }
  const std::vector<int32_t>& prompt() const { return prompt_; }  // ids
  // After a choice's kEnd.
  Statistics statistics(int choice = 0) const;
  // After kPrompt: for every token of the prompt but the first.
  std::vector<Token> prompt_logprobs() const;

  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

 private:
  friend class Engine;
  Stream(std::shared_ptr<TokenStream> tokens, uint64_t seed, std::vector<int32_t> prompt,
         std::vector<int> depths, int recurrence);

  std::shared_ptr<TokenStream> tokens_;
  uint64_t seed_;
  std::vector<int32_t> prompt_;
  std::vector<int> depths_;
  int recurrence_;
};

struct Choice {
  std::string text;
  std::vector<Token> tokens;
  Statistics statistics;
};

struct Result {
  std::vector<Choice> choices;
  uint64_t seed = 0;
  std::vector<Token> prompt_logprobs;  // where asked for

  const std::string& text() const { return choices[0].text; }
  const Statistics& statistics() const { return choices[0].statistics; }
};

// Called for every token; return false to stop. It is not called again then.
using OnToken = std::function<bool(const Token&)>;

// One loaded model.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  // Cancels what is under way; streams stay readable.
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  Stream Submit(const Request& request);
  // Submits and waits. Throws what the request fails of.
  Result Generate(const Request& request, const OnToken& on_token = {});

  // What the model's generation_config.json asks for; greedy where it has none.
  Sampling default_sampling() const;
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = true) const;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace loopspec
