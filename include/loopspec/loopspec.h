// libloopspec: load a looped transformer and generate with it.
//
//   loopspec::Engine engine({.model = "models/ouro-demo"});
//   engine.Generate("Once upon a time", {.max_tokens = 64}, [](const loopspec::Token& token) {
//     std::cout << token.text << std::flush;
//     return true;
//   });
//
// Link with find_package(loopspec) and loopspec::loopspec. Bad files and requests throw
// std::runtime_error with one sentence that names the thing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loopspec/sampling.h"

namespace loopspec {

struct EngineOptions {
  std::string model;             // folder of a checkpoint, or ORG/NAME in the Hugging Face cache
  std::string device = "auto";   // auto, cpu, cuda, cuda:N
  std::string compute = "auto";  // auto, f32, bf16
  int threads = 0;               // CPU: 0 takes every usable core
  int recurrence = 0;            // run this many recurrences instead of the model's own
  std::vector<int> depths;       // proposal depths; empty: chosen by the model's depth
  int64_t context = 0;           // positions to hold; 0: the model's context, or what memory holds
};

struct GenerateOptions {
  int max_tokens = 256;
  bool speculative = true;  // false: plain autoregressive decoding, the same text more slowly
  bool chat = false;        // the prompt is a user's message, put into the model's chat template
  SamplingParams sampling;  // greedy unless told otherwise
  uint64_t seed = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;  // end before any of these
};

struct Token {
  int32_t id;
  int source;  // 0: decided at full depth, j: accepted from proposal j
  std::string
      text;  // what may be shown now; empty while a character or a stop string is incomplete
};

struct Statistics {
  std::string finish_reason;  // stop, length
  int64_t prompt_tokens = 0;
  int64_t decoded_tokens = 0;
  std::vector<int64_t> accepted;  // by proposal
  int64_t fallback = 0;
  double gamma = 0;      // tokens per R recurrences, the paper's measure
  double rows_mean = 0;  // branches computed together
  double prefill_seconds = 0;
  double decode_seconds = 0;  // after the first token
  double tokens_per_second = 0;
};

struct Result {
  std::string text;
  std::vector<int32_t> ids;
  Statistics statistics;
};

// Called for every token; return false to stop.
using OnToken = std::function<bool(const Token&)>;

// One loaded model. Not for several threads at once.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  Result Generate(std::string_view prompt, const GenerateOptions& options = {},
                  const OnToken& on_token = {});
  Result Generate(std::span<const int32_t> prompt, const GenerateOptions& options = {},
                  const OnToken& on_token = {});

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace loopspec
