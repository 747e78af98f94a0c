// What tests of wire formats made of blocks share: a model that calls tools in a form of its own,
// and answers made of its words.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/openai/text_call.h"
#include "text/answer_parts.h"

namespace loopspec::test {

// "@name{arguments}@" is a call; everything else is text. Reads byte by byte.
class AtSignReader final : public CallReader {
 public:
  void Push(std::string_view text, std::vector<AnswerPart>& parts) override {
    using Kind = AnswerPart::Kind;
    for (const char c : text) {
      if (state_ == kText && c == '@') {
        state_ = kName;
        name_.clear();
      } else if (state_ == kText) {
        parts.push_back({Kind::kText, std::string(1, c)});
      } else if (state_ == kName && c == '{') {
        parts.push_back({Kind::kCall, name_, ++calls_});
        parts.push_back({Kind::kArguments, "{", calls_});
        state_ = kArguments;
      } else if (state_ == kName) {
        name_ += c;
      } else if (c == '@') {
        state_ = kText;
      } else {
        parts.push_back({Kind::kArguments, std::string(1, c), calls_});
      }
    }
  }
  void Finish(std::vector<AnswerPart>&) override {}

 private:
  enum { kText, kName, kArguments } state_ = kText;
  std::string name_;
  int calls_ = -1;
};

inline serve::AnswerSetup BlockSetup(bool in_reasoning = false) {
  serve::AnswerSetup setup;
  setup.prompts = {{1, 100, ""}};
  setup.max_tokens = 50;
  setup.split.split_reasoning = true;
  setup.split.in_reasoning = in_reasoning;
  setup.split.calls = [] { return std::make_unique<AtSignReader>(); };
  return setup;
}

// Says `text` in tokens of so many bytes; after each of them `events` gets what is new.
inline void Say(serve::AnswerWriter& answer, const std::string& text, Statistics end,
                size_t bytes = 3, std::string* events = nullptr) {
  for (size_t at = 0; at < text.size(); at += bytes) {
    Token token;
    token.text = text.substr(at, bytes);
    answer.AddToken(0, token);
    if (events != nullptr) *events += answer.Events(0);
    ++end.decoded_tokens;
  }
  answer.AddEnd(0, Token(), end);
  if (events != nullptr) *events += answer.Events(0);
}

inline Statistics EndedBy(FinishReason reason) {
  Statistics statistics;
  statistics.finish_reason = reason;
  statistics.cached_tokens = 90;
  return statistics;
}

// The data of named events. Throws where an event has another name than its type.
inline std::vector<Json> NamedEvents(const std::string& stream) {
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    const std::string event = stream.substr(at, end - at);
    const size_t line = event.find("\ndata: ");
    Json data = Json::parse(event.substr(line + 7));
    if (event.substr(0, line) != "event: " + data.at("type").get<std::string>())
      throw std::runtime_error("an event's name is not its type: " + event);
    events.push_back(std::move(data));
    at = end + 2;
  }
  return events;
}

}  // namespace loopspec::test
