#include "text/decoder.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer_json.h"

namespace loopspec {
namespace {

constexpr size_t kMostDecoders = 64;

// The end of a stream: joins tokens with `separator`.
class TextSink : public DecoderStream {
 public:
  TextSink(std::string& text, std::string_view separator) : text_(text), separator_(separator) {}
  void Feed(std::string_view piece, bool last) override {
    if (between_) text_.append(separator_);
    text_.append(piece);
    between_ = last;
  }
  void Finish() override {}

 private:
  std::string& text_;
  std::string_view separator_;
  bool between_ = false;  // a token has ended and none has begun
};

}  // namespace

Decoder Decoder::FromJson(const Json& json, std::string_view what) {
  Decoder decoder;
  if (json.is_null()) return decoder;
  decoder.missing_ = false;
  decoder.Add(json, what);
  return decoder;
}

void Decoder::Add(const Json& json, std::string_view what) {
  const std::string type = TypeOf(json, what, "decoder");
  const std::string name = fmt::format("{}: decoder {}", what, type);
  if (type == "Sequence") {
    for (const Json& part : RequireArray(json, "decoders", name)) Add(part, what);
    return;
  }
  if (steps_.size() >= kMostDecoders) Fail("{}: has more than {} decoders", what, kMostDecoders);
  auto step = ReadDecoderStep(type, json, name);
  if (step == nullptr) Fail("{}: the decoder has type {}, which is not supported", what, type);
  steps_.push_back(std::move(step));
}

std::string Decoder::Decode(const std::vector<std::string_view>& tokens) const {
  std::vector<std::string> parts(tokens.begin(), tokens.end());
  for (const auto& step : steps_) step->Apply(parts);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (missing_ && i > 0) text.push_back(' ');
    text.append(parts[i]);
  }
  return text;
}

Decoder::Pipeline Decoder::Stream(std::string& text) const {
  Pipeline pipeline;
  pipeline.sink = std::make_unique<TextSink>(text, missing_ ? " " : "");
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    pipeline.steps.push_back((*step)->Stream(pipeline.front()));
  }
  return pipeline;
}

}  // namespace loopspec
