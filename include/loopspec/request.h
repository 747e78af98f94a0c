// What an engine is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "loopspec/sampling.h"

namespace loopspec {

struct Message {
  std::string role;  // system, user, assistant, or what the model's template knows
  std::string content;
};

// Called by the engine's thread with the logits of one position at one depth, one for every token
// of the vocabulary; they are gone after the call. It must not wait, nor throw.
using OnLogits = std::function<void(int64_t position, int depth, std::span<const float> logits)>;

enum class Decoding {
  kLoopSpec,        // the paper's pipelined self-speculation
  kAutoregressive,  // the same text, more slowly
  kLookup,          // the same text, with guesses from what the text repeats instead of drafts
};

struct Laboratory;

enum class GrammarKind { kNone, kJsonSchema, kRegex, kGbnf };

// What an answer must be: see docs/grammars.md.
struct GrammarSource {
  GrammarKind kind = GrammarKind::kNone;
  std::string text = {};  // a schema as JSON, a regular expression, or rules in llama.cpp's GBNF
  // A keyword of a schema that cannot be enforced is an error; false: it is ignored.
  bool strict = true;
  // The grammar holds from the byte after this mark on, such as the start of a tool call; before it
  // any text may come, and end. Empty: from the answer's first byte on.
  std::string after = {};
  // The answer may begin with <think>, and is free up to </think>, where the model's chat template
  // has these marks: for who tells the thinking from the answer. A request with messages has it
  // without saying so.
  bool thinking = false;
};

struct Request {
  // The text to go on from, in one of these forms.
  std::string prompt = {};
  std::vector<Message> messages = {};  // put into the model's chat template
  std::string messages_json = {};      // the same as JSON, for messages with more to them
  std::vector<int32_t> tokens = {};    // ids as they are

  std::string template_arguments = {};  // a JSON object: {"enable_thinking": false}
  bool add_special_tokens = true;       // those that the tokenizer puts around a prompt

  std::optional<SamplingParams> sampling = {};  // none: what generation_config.json says
  std::optional<uint64_t> seed = {};            // none: a random one, see Stream::seed
  int choices = 1;                              // texts, each with draws of its own

  std::optional<int> max_tokens = {};  // none: 256, or what the context holds; 0: only score
  // Where the prompt ends in <think>: after this many tokens </think> must come, if it has not.
  std::optional<int> max_thinking_tokens = {};
  std::vector<std::string> stop = {};     // end before any of these
  std::vector<int32_t> stop_tokens = {};  // end with any of these
  bool hide_stop_tokens = false;          // whose text is then no part of the answer's
  bool ignore_eos = false;
  // Tokens that would lead away from it have no probability. Where the prompt ends in <think> it
  // holds from </think> on. Not with ignore_eos.
  GrammarSource grammar = {};
  bool show_special = false;  // special tokens as text

  std::optional<int> logprobs = {};         // n: of each token, and the n likeliest ones
  std::optional<int> prompt_logprobs = {};  // the same for the prompt's own tokens
  // Of every position of the prompt but its last, at every depth of ModelFacts::recurrences up to
  // the request's own; with a plan of keys at the request's own alone, since what earlier depths
  // read there is not what a text of fewer loops reads. With max_tokens 0 nothing else is done.
  OnLogits on_logits = {};
  bool progress = false;  // tell how far a long prompt is
  bool trace = false;     // tell what becomes of the branches

  // Who asks, where many share an engine. It is divided between tenants by weight, whatever each
  // asks for; within a tenant the oldest request comes first.
  uint64_t tenant = 0;
  double weight = 1;  // of the tenant
  int priority = 0;   // within the tenant: a lower one comes first

  // Recurrences of a token, among ModelFacts::recurrences; none: R. Fewer are quicker and
  // give the text of a model that has only that number of recurrences.
  std::optional<int> recurrence = {};

  Decoding decoding = Decoding::kLoopSpec;
  std::optional<std::vector<int>> depths = {};  // among EngineOptions::depths

  // Which branches advance in a step. No text depends on these; they follow the decoder, and may
  // change with it.
  // Rows of a step at most; 0: as many as are worth their time. Counts only while the request is
  // alone in a step.
  int max_rows = 0;
  int group = 0;        // tokens that pass the later depths together; 0: chosen by cost
  bool guesses = true;  // begin tokens before they are drafted, on what the text repeats

  // Not stable: what this repository's measurements ask for (src/decode/laboratory.h).
  std::shared_ptr<const Laboratory> laboratory = {};
};

}  // namespace loopspec
