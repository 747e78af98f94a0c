// An answer in the parts that wire formats tell apart: what the model thinks, what it says, and the
// tools that it calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/reasoning.h"

namespace loopspec {

struct AnswerPart {
  enum class Kind {
    kReasoning,
    kText,
    kCall,       // a call begins: `text` is the tool's name
    kArguments,  // a piece of the call's arguments, which are one JSON object
  };
  Kind kind = Kind::kText;
  std::string text = {};
  int call = 0;  // which call of the answer, from 0

  bool operator==(const AnswerPart&) const = default;
};

// Tells text from calls of tools in one model's form of them. What it has told does not depend on
// how the text is cut into pieces, but for how the parts of one kind are cut.
class CallReader {
 public:
  virtual ~CallReader() = default;
  virtual void Push(std::string_view text, std::vector<AnswerPart>& parts) = 0;
  // What was held back, when the answer is over.
  virtual void Finish(std::vector<AnswerPart>& parts) = 0;
  // What a call begins with wherever it stands; empty: there is no such mark.
  virtual std::string_view mark() const { return {}; }
};
using MakeCallReader = std::function<std::unique_ptr<CallReader>()>;

// The parts of one answer, in their order.
class AnswerSplitter {
 public:
  struct Options {
    bool split_reasoning = false;  // else <think> ... </think> is text
    bool in_reasoning = false;     // the prompt ended with <think>
    // The answer may begin with <think>, and then has no calls before </think>.
    bool may_open_reasoning = false;
    MakeCallReader calls = {};  // none: everything that is said is text
  };
  explicit AnswerSplitter(const Options& options);

  std::vector<AnswerPart> Push(std::string_view text);
  std::vector<AnswerPart> Finish();

 private:
  void Add(const ReasoningSplitter::Parts& parts, std::vector<AnswerPart>& out);
  void AddContent(std::string_view text, std::vector<AnswerPart>& out);
  void AddThinking(std::string_view text, bool last, std::vector<AnswerPart>& out);

  const bool split_reasoning_;
  std::unique_ptr<CallReader> calls_;
  // Where a grammar does not wait for the end of thinking it holds a call from its mark on, also
  // within thinking: the mark ends that.
  ReasoningSplitter reasoning_;
  // Thinking that stays text: what stands in it is no call, whatever it looks like.
  bool thinking_;
  std::string thought_;  // its end, which may be the beginning of </think>
};

}  // namespace loopspec
