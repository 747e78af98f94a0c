// The real engine over a backend that knows what to say: made-up tokens at a given pace, and
// failures on request. Scheduler, decoders, sampling, pages and text are those of every engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "loopspec/engine.h"

namespace loopspec::test {

// Token b is the byte b, 256 begins a text, 257 ends one, 258 is a long word; `words` follow, which
// no text is encoded into. The answer to every prompt is `answer`, over and over, unless it ends by
// itself. (A prompt that ends like the beginning of the answer is continued from there.)
struct ScriptedOptions {
  std::string answer = "abcdefghij";
  std::vector<int32_t> tokens = {};  // the answer as ids instead
  std::vector<std::string> words = {};
  bool special_words = false;  // they are special tokens
  bool endless = true;         // false: the end of the answer is the end of the text
  double token_seconds = 0;
  int fail_at = -1;  // the step that decides this token fails
  int max_running = 64;
  int max_queued = 1024;
  int64_t context = 4096;
  bool background = true;
};

inline constexpr int32_t kScriptBegin = 256, kScriptEnd = 257, kScriptWord = 258;
inline constexpr int32_t kScriptWords = 259;  // the first of `words`
inline constexpr size_t kScriptWordBytes = 1000;

std::shared_ptr<Engine> MakeScriptedEngine(const ScriptedOptions& options = {});

// Choices that are under way, in the queue or not.
int64_t Running(const Engine& engine);
int64_t Submitted(const Engine& engine);  // since the start
// Waits until nothing runs; false when that takes longer than `seconds`.
bool WaitIdle(const Engine& engine, double seconds);

}  // namespace loopspec::test
