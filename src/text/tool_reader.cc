#include "text/tool_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/escape_json.h"
#include "base/trimmed.h"
#include "text/tool_values.h"

namespace loopspec {
namespace {

using Kind = AnswerPart::Kind;
using Parts = std::vector<AnswerPart>;

// Whether `text` begins with `mark`; none: it ends before that is known.
std::optional<bool> BeginsWith(std::string_view text, std::string_view mark) {
  const size_t common = std::min(text.size(), mark.size());
  if (text.substr(0, common) != mark.substr(0, common)) return false;
  if (text.size() < mark.size()) return std::nullopt;
  return true;
}

// What the readers of all forms share: the text that is not told yet, and the calls' numbers.
class Reader : public CallReader {
 public:
  void Push(std::string_view text, Parts& parts) final {
    held_ += text;
    Advance(false, parts);
  }
  void Finish(Parts& parts) final { Advance(true, parts); }

 protected:
  // Tells what is decided of `held_`; `last`: nothing follows.
  virtual void Advance(bool last, Parts& parts) = 0;

  static void TellText(std::string_view text, Parts& parts) {
    if (!text.empty()) parts.push_back({Kind::kText, std::string(text)});
  }
  void TellCall(std::string name, Parts& parts) {
    parts.push_back({Kind::kCall, std::move(name), ++call_});
  }
  void TellArguments(std::string text, Parts& parts) const {
    if (!text.empty()) parts.push_back({Kind::kArguments, std::move(text), call_});
  }
  void Drop(size_t bytes) { held_.erase(0, bytes); }
  void DropWhite() { Drop(std::min(held_.find_first_not_of(kWhite), held_.size())); }

  std::string held_;
  int call_ = -1;
};

// ---- Arguments as JSON ----

// {"name": "f", "arguments": {...}}, as far as it has come.
class JsonCall {
 public:
  explicit JsonCall(std::string_view key) : key_(key) {}

  enum class State { kMore, kDone, kNone };
  struct Told {
    State state = State::kMore;
    std::optional<std::string> name;  // when it has just become known
    std::string arguments;
    size_t taken = 0;  // bytes of the text
  };
  // kNone: it is no call, and nothing of it was told.
  Told Take(std::string_view text) {
    Told told;
    if (!named_) {
      const Scan name = ScanName(text);
      if (name.state != State::kDone) return {name.state, std::nullopt, "", 0};
      told.name = Json::parse(text.substr(name.begin, name.end - name.begin)).get<std::string>();
      told.taken = name.end;
      named_ = true;
    }
    while (told.taken < text.size() && told.state == State::kMore) {
      const char c = text[told.taken++];
      if (depth_ == 0) {
        // Between the name and the arguments, and after them.
        if (finished_ && c == '}') told.state = State::kDone;
        if (!finished_ && c == '{') depth_ = 1;
        if (depth_ == 0) continue;
      } else if (quoted_) {
        if (escaped_) {
          escaped_ = false;
        } else if (c == '\\') {
          escaped_ = true;
        } else if (c == '"') {
          quoted_ = false;
        }
      } else if (c == '"') {
        quoted_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        finished_ = --depth_ == 0;
      }
      told.arguments += c;
    }
    return told;
  }

 private:
  struct Scan {
    State state;
    size_t begin = 0, end = 0;  // of the name, with its quotes
  };
  // The head up to the value of "name", which is the first member.
  Scan ScanName(std::string_view text) const {
    size_t at = 0;
    const auto expect = [&](std::string_view mark) {
      while (at < text.size() && IsWhite(text[at])) ++at;
      const std::optional<bool> begins = BeginsWith(text.substr(at), mark);
      at += begins == true ? mark.size() : 0;
      return begins;
    };
    for (const std::string_view mark : {"{", "\"name\"", ":", "\""}) {
      const std::optional<bool> found = expect(mark);
      if (!found) return {State::kMore};
      if (!*found) return {State::kNone};
    }
    const size_t begin = at - 1;
    while (at < text.size() && text[at] != '"') {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (byte < 0x20 || byte == '\\') return {State::kNone};  // no tool has such a name
      ++at;
    }
    if (at == text.size()) return {State::kMore};
    const size_t end = ++at;
    // What follows belongs to the call once its key is there.
    for (const std::string_view mark :
         {std::string_view(","), key_, std::string_view(":"), std::string_view("{")}) {
      const std::optional<bool> found = expect(mark);
      if (!found) return {State::kMore};
      if (!*found) return {State::kNone};
    }
    return {State::kDone, begin, end};
  }

  const std::string_view key_;  // with its quotes
  bool named_ = false;
  int depth_ = 0;
  bool quoted_ = false, escaped_ = false, finished_ = false;
};

// ---- Calls between marks ----

// Text, then calls that each stand between <tool_call> and </tool_call>.
class MarkedReader : public Reader {
 public:
  std::string_view mark() const final { return kToolCall; }

 protected:
  enum class Step {
    kMore,  // nothing is decided without more text
    kDone,  // the call is read, up to its closing mark
    kNone,  // it is no call, and nothing of it was told
  };
  virtual void BeginCall() = 0;
  // Tells what is decided of the call at the beginning of `held_`, and drops that.
  virtual Step TakeCall(Parts& parts) = 0;

 private:
  enum class Place { kText, kCall, kClose, kBetween };

  void Advance(bool last, Parts& parts) final {
    while (true) {
      if (place_ == Place::kText && !TakeText(last, parts)) return;
      if (place_ == Place::kCall) {
        const Step step = TakeCall(parts);
        if (step == Step::kMore) return;
        if (step == Step::kNone) {
          TellText(space_ + std::string(kToolCall), parts);
          place_ = Place::kText;
          continue;
        }
        place_ = Place::kClose;
      }
      if (place_ == Place::kClose) {
        const size_t close = held_.find(kToolCallEnd);
        if (close == held_.npos) return Drop(held_.size() - BegunTag(held_, kToolCallEnd));
        Drop(close + kToolCallEnd.size());
        place_ = Place::kBetween;
      }
      if (place_ == Place::kBetween) {
        DropWhite();
        if (held_.empty()) return;
        place_ = Place::kText;
      }
    }
  }

  // Whether a call begins.
  bool TakeText(bool last, Parts& parts) {
    const size_t mark = held_.find(kToolCall);
    const bool found = mark != held_.npos;
    size_t end = found ? mark : held_.size() - (last ? 0 : BegunTag(held_, kToolCall));
    // White space before a mark is known as such only when the mark has come.
    if (found || !last)
      while (end > 0 && IsWhite(held_[end - 1])) --end;
    TellText(std::string_view(held_).substr(0, end), parts);
    if (found) space_ = held_.substr(end, mark - end);
    Drop(found ? mark + kToolCall.size() : end);
    if (!found) return false;
    place_ = Place::kCall;
    BeginCall();
    return true;
  }

  Place place_ = Place::kText;
  std::string space_;  // before the last mark
};

class HermesReader final : public MarkedReader {
  void BeginCall() override { call_text_.emplace("\"arguments\""); }

  Step TakeCall(Parts& parts) override {
    JsonCall::Told told = call_text_->Take(held_);
    if (told.state == JsonCall::State::kNone) return Step::kNone;
    if (told.name) TellCall(std::move(*told.name), parts);
    TellArguments(std::move(told.arguments), parts);
    Drop(told.taken);
    return told.state == JsonCall::State::kDone ? Step::kDone : Step::kMore;
  }

  std::optional<JsonCall> call_text_;
};

// What the arguments of each tool may be read as.
using ToolTypes = std::map<std::string, std::map<std::string, unsigned>>;

class XmlReader final : public MarkedReader {
 public:
  explicit XmlReader(std::shared_ptr<const ToolTypes> types) : types_(std::move(types)) {}

 private:
  enum class In { kFunction, kParameters, kValueStart, kValue };

  void BeginCall() override {
    in_ = In::kFunction;
    first_ = true;
  }

  Step TakeCall(Parts& parts) override {
    while (true) {
      if (in_ == In::kValueStart || in_ == In::kValue) {
        if (!TakeValue(parts)) return Step::kMore;
        continue;
      }
      // A tag, after white space that stays while it is not known whether it is one.
      const size_t begin = held_.find_first_not_of(kWhite);
      if (begin == held_.npos) return Step::kMore;
      const std::string_view rest = std::string_view(held_).substr(begin);
      if (in_ == In::kFunction) {
        const std::optional<bool> found = BeginsWith(rest, kFunction);
        if (found == false) return Step::kNone;
        const size_t end = found ? rest.find('>') : rest.npos;
        if (end == rest.npos) return Step::kMore;
        function_ = std::string(rest.substr(kFunction.size(), end - kFunction.size()));
        TellCall(function_, parts);
        Drop(begin + end + 1);
        in_ = In::kParameters;
        continue;
      }
      const std::optional<bool> parameter = BeginsWith(rest, kParameter);
      if (parameter == true) {
        const size_t end = rest.find('>');
        if (end == rest.npos) return Step::kMore;
        BeginValue(std::string(rest.substr(kParameter.size(), end - kParameter.size())), parts);
        Drop(begin + end + 1);
        continue;
      }
      if (!parameter) return Step::kMore;
      const std::optional<bool> over = BeginsWith(rest, kFunctionEnd);
      if (!over) return Step::kMore;
      // Anything else is dropped with what comes before the closing mark: the call has been told.
      TellArguments(first_ ? "{}" : "}", parts);
      return Step::kDone;
    }
  }

  void BeginValue(const std::string& name, Parts& parts) {
    TellArguments((first_ ? "{\"" : ", \"") + EscapedJson(name) + "\": ", parts);
    first_ = false;
    value_types_ = kAnyValue;
    if (const auto tool = types_->find(function_); tool != types_->end()) {
      if (const auto known = tool->second.find(name); known != tool->second.end())
        value_types_ = known->second;
    }
    in_ = In::kValueStart;
  }

  // A string is told as it comes; what may be something else when it is complete.
  bool TakeValue(Parts& parts) {
    const bool string = value_types_ == kStringValue;
    if (in_ == In::kValueStart) {
      if (held_.empty()) return false;
      if (held_[0] == '\n') Drop(1);
      if (string) TellArguments("\"", parts);
      in_ = In::kValue;
    }
    const size_t close = held_.find(kParameterEnd);
    const bool closed = close != held_.npos;
    if (!closed && !string) return false;
    const size_t end = closed ? close : held_.size() - BegunTag(held_, kParameterEnd);
    const std::string_view text = std::string_view(held_).substr(0, end);
    if (string) {
      TellArguments(EscapedJson(text) + (closed ? "\"" : ""), parts);
    } else {
      TellArguments(ReadPlainValue(text, value_types_), parts);
    }
    Drop(closed ? close + kParameterEnd.size() : end);
    if (closed) in_ = In::kParameters;
    return closed;
  }

  const std::shared_ptr<const ToolTypes> types_;
  In in_ = In::kFunction;
  bool first_ = true;
  std::string function_;
  unsigned value_types_ = kAnyValue;
};

// ---- A call that is the whole answer ----

class LlamaReader final : public Reader {
  enum class Place { kStart, kText, kCall, kAfter };

  void Advance(bool last, Parts& parts) override {
    if (place_ == Place::kStart) {
      const size_t begin = std::min(held_.find_first_not_of(kWhite), held_.size());
      const std::optional<bool> tag = BeginsWith(std::string_view(held_).substr(begin), kPythonTag);
      if (!last && (begin == held_.size() || !tag)) return;
      size_t call = begin;
      if (tag == true) {
        call = held_.find_first_not_of(kWhite, begin + kPythonTag.size());
        if (call == held_.npos && !last) return;
        call = std::min(call, held_.size());
      }
      // What it is that begins with a brace is known when the call's name and key are there.
      if (call < held_.size() && held_[call] == '{') {
        JsonCall::Told told = call_text_.Take(std::string_view(held_).substr(call));
        if (told.state == JsonCall::State::kMore && !told.name) {
          if (last) held_.clear();
          return;
        }
        if (told.name) {
          Drop(call + told.taken);
          place_ = told.state == JsonCall::State::kDone ? Place::kAfter : Place::kCall;
          TellCall(std::move(*told.name), parts);
          TellArguments(std::move(told.arguments), parts);
        }
      }
      if (place_ == Place::kStart) place_ = Place::kText;
    }
    if (place_ == Place::kCall) {
      JsonCall::Told told = call_text_.Take(held_);
      TellArguments(std::move(told.arguments), parts);
      Drop(told.taken);
      if (told.state == JsonCall::State::kDone) place_ = Place::kAfter;
    }
    if (place_ == Place::kAfter) {
      DropWhite();
      if (!held_.empty()) place_ = Place::kText;
    }
    if (place_ != Place::kText) return;
    TellText(held_, parts);
    held_.clear();
  }

  Place place_ = Place::kStart;
  JsonCall call_text_{"\"parameters\""};
};

ToolTypes TypesOf(std::span<const Tool> tools) {
  ToolTypes types;
  for (const Tool& tool : tools) {
    auto& own = types[tool.name];
    const OrderedJson* root = Referred(tool.parameters, tool.parameters);
    if (root == nullptr || !root->is_object() || !root->contains("properties")) continue;
    for (const auto& [name, schema] : (*root)["properties"].items())
      own[name] = PlainValueOf(schema, tool.parameters).types;
  }
  return types;
}

}  // namespace

MakeCallReader MakeToolReader(ToolFormat format, std::span<const Tool> tools) {
  if (format == ToolFormat::kLlama3) return [] { return std::make_unique<LlamaReader>(); };
  if (format != ToolFormat::kXml) return [] { return std::make_unique<HermesReader>(); };
  auto types = std::make_shared<const ToolTypes>(TypesOf(tools));
  return [types = std::move(types)] { return std::make_unique<XmlReader>(types); };
}

}  // namespace loopspec
