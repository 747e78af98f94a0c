// One answer in blocks: what the model thinks, what it says and each call of a tool. What the wire
// formats that are made of such blocks share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai/text_call.h"
#include "serve/openai/write.h"
#include "text/answer_parts.h"

namespace loopspec::serve {

struct AnswerBlock {
  AnswerPart::Kind kind = AnswerPart::Kind::kText;  // kReasoning, kText or kCall
  std::string name = {};                            // of a call's tool
  std::string text = {};                            // a call: its arguments
};

class PartAnswer : public AnswerWriter {
 public:
  void AddPrompt(size_t, std::vector<Token>) override {}
  void AddToken(size_t prompt, Token token) override;
  void AddTrace(size_t, int, const std::vector<TraceEvent>&) override {}
  void AddEnd(size_t prompt, const Token& last, Statistics statistics) override;
  bool complete() const override { return end_.has_value(); }
  std::string Events(double seconds) override;
  AnswerCounts counts() const override;

 protected:
  explicit PartAnswer(AnswerSetup setup);

  // Each returns the events that tell of it.
  virtual std::string Begin() = 0;
  virtual std::string Open(size_t block) = 0;
  virtual std::string Delta(size_t block, std::string_view text) = 0;
  virtual std::string Close(size_t block) = 0;
  virtual std::string End() = 0;

  const AnswerSetup& setup() const { return setup_; }
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  const std::optional<Statistics>& end() const { return end_; }
  bool calls() const;     // whether a tool is called
  bool cut() const;       // whether the answer ended before it was complete
  bool call_cut() const;  // whether it ended, for whatever reason, in the arguments of a call
  Usage usage() const;    // so far
  int64_t reasoning_tokens() const { return reasoning_tokens_; }  // with the mark that ends it

 private:
  void Add(const std::vector<AnswerPart>& parts);

  const AnswerSetup setup_;
  AnswerSplitter splitter_;
  std::vector<AnswerBlock> blocks_;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
  std::optional<Statistics> end_;
  // What the events have told.
  bool begun_ = false;
  size_t open_ = 0;      // the block that is being told
  bool opened_ = false;  // its beginning was told
  size_t told_ = 0;      // bytes of it
};

// "event: NAME\ndata: ...\n\n", named by the event's type.
std::string NamedEvent(const OrderedJson& event);

}  // namespace loopspec::serve
