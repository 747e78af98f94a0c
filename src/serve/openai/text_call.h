// What a wire format makes of a request for text: requests for the engine, and the answer's bytes.
//
// A format is a function that reads a body (ReadTextCall in resolve.h is OpenAI's and SGLang's) and
// an AnswerWriter. The server does the rest alike for all of them: see server/transport.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loopspec/engine.h"
#include "serve/openai/error.h"
#include "serve/openai/types.h"
#include "text/answer_parts.h"

namespace loopspec::serve {

// What is written about an answer in log and metrics.
struct AnswerCounts {
  int64_t completion_tokens = 0, cached_tokens = 0;
  double gamma = 0;
  std::string outcome;  // what ended the first choice; empty while nothing did
};

// Events in, bytes out. `prompt` counts the requests of the call; a token names its choice. Knows
// no socket and no clock: `seconds` are those since the request came.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The prompt's scores, for every token but the first.
  virtual void AddPrompt(size_t prompt, std::vector<Token> scores) = 0;
  virtual void AddToken(size_t prompt, Token token) = 0;
  virtual void AddTrace(size_t prompt, int choice, const std::vector<TraceEvent>& trace) = 0;
  // `last`: its text is what was held back, its time that of the end.
  virtual void AddEnd(size_t prompt, const Token& last, Statistics statistics) = 0;
  virtual bool complete() const = 0;

  // The body, when complete.
  virtual std::string Body(double seconds) = 0;
  // Server-sent events for what is new, and the end of the stream when complete; empty: nothing.
  virtual std::string Events(double seconds) = 0;
  // The last events of a stream that fails.
  virtual std::string ErrorEvents(const ApiError& error) const = 0;
  virtual AnswerCounts counts() const = 0;
};

// What an AnswerWriter for text is made of.
struct AnswerSetup {
  struct Prompt {
    int32_t first_token = 0;
    int64_t tokens = 0;
    std::string echo;  // its text, where it comes back before the answer
  };
  std::vector<Prompt> prompts;
  int n = 1;  // choices of each
  uint64_t seed = 0;
  int max_tokens = 0;             // of an answer to the first prompt
  AnswerSplitter::Options split;  // of every choice
};

struct TextCall {
  std::vector<Request> requests;  // one for each prompt, as ids
  bool stream = false;
  std::unique_ptr<AnswerWriter> answer;
  IgnoredFields ignored_keywords;  // of a schema
  int64_t prompt_tokens = 0;
  int choices = 0;             // of all prompts
  std::optional<int> clamped;  // what max_tokens was cut to, where more was asked for
  std::string prompt;          // text of the first; only where the log is to have it
};

// What a call is held against.
struct CallContext {
  std::shared_ptr<const Engine> engine;
  std::string model;                       // its name in answers
  std::optional<SamplingParams> sampling;  // where a request says nothing; none: the model's own
  std::optional<uint64_t> seed = {};       // the same; none: a random one
  std::string id;                          // a fresh name for the answer
  int64_t created = 0;                     // seconds since 1970
  bool reproducible = false;               // nothing in the answer but what the request decides
  int max_tokens_limit = 0;                // tokens of an answer at most; 0: what the context holds
  int64_t max_scores = 0;                  // log-probabilities of echoed prompts at most
  bool keep_prompt = false;                // the log wants its text
  std::function<bool()> cancelled = {};    // nobody waits for the answer any more
};

// The second half of reading a body: the first needs no model. Throws ApiException.
using ResolveCall = std::function<TextCall(const CallContext& context)>;

}  // namespace loopspec::serve
