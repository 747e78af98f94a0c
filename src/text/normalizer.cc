#include "text/normalizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/pattern.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr size_t kMostNormalizers = 100;
constexpr size_t kLongestNormalized = size_t{1} << 30;

// Steps that multiply text could otherwise fill the memory from a short file.
void CheckGrowth(size_t size) {
  if (size > kLongestNormalized)
    Fail("the normalizers make the text longer than {} bytes", kLongestNormalized);
}

class UnicodeForm : public NormalizerStep {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void Apply(NormalizedText& value) const override {
    const std::string start = Normalize(std::string_view(value.text).substr(0, value.zero), form_);
    value.text = Normalize(value.text, form_);
    value.zero = std::min(start.size(), value.text.size());
  }

 private:
  NormalForm form_;
};

class Lowercase : public NormalizerStep {
 public:
  void Apply(NormalizedText& value) const override {
    std::string out;
    out.reserve(value.text.size());
    size_t zero = 0;
    for (size_t i = 0; i < value.text.size();) {
      const CodePoint c = DecodeUtf8(value.text, i);
      AppendLowercase(c.value, out);
      if (i < value.zero) zero = out.size();
      i += static_cast<size_t>(c.length);
    }
    value.text = std::move(out);
    value.zero = zero;
  }
};

class Strip : public NormalizerStep {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void Apply(NormalizedText& value) const override {
    std::string& text = value.text;
    size_t begin = 0, end = text.size();
    while (left_ && begin < end) {
      const CodePoint c = DecodeUtf8(text, begin);
      if (!HasClass(c.value, kSpace)) break;
      begin += static_cast<size_t>(c.length);
    }
    while (right_ && end > begin) {
      const size_t previous = PreviousCharacter(text, end);
      if (!HasClass(DecodeUtf8(text, previous).value, kSpace)) break;
      end = previous;
    }
    text = text.substr(begin, end - begin);
    value.zero = std::min(value.zero - std::min(value.zero, begin), text.size());
  }

 private:
  bool left_, right_;
};

class StripAccents : public NormalizerStep {
 public:
  void Apply(NormalizedText& value) const override {
    std::string out;
    size_t zero = 0;
    for (size_t i = 0; i < value.text.size();) {
      const CodePoint c = DecodeUtf8(value.text, i);
      if (!HasClass(c.value, kAccent)) {
        out.append(value.text, i, static_cast<size_t>(c.length));
        if (i < value.zero) zero = out.size();
      }
      i += static_cast<size_t>(c.length);
    }
    value.text = std::move(out);
    value.zero = zero;
  }
};

class PrependNormalizer : public NormalizerStep {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void Apply(NormalizedText& value) const override {
    if (value.text.empty()) return;
    CheckGrowth(value.text.size() + prefix_.size());
    value.text.insert(0, prefix_);
    if (value.zero > 0) value.zero += prefix_.size();
  }

 private:
  std::string prefix_;
};

class Replace : public NormalizerStep {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(NormalizedText& value) const override {
    CheckGrowth((value.text.size() + 1) * std::max<size_t>(1, content_.size()) / 64);
    value.text = pattern_.Replace(value.text, content_, &value.zero);
    CheckGrowth(value.text.size());
  }

 private:
  Pattern pattern_;
  std::string content_;
};

}  // namespace

Normalizer Normalizer::FromJson(const Json& json, std::string_view what) {
  Normalizer normalizer;
  if (!json.is_null()) normalizer.Add(json, what);
  return normalizer;
}

void Normalizer::Add(const Json& json, std::string_view what) {
  const std::string type = TypeOf(json, what, "normalizer");
  const std::string name = fmt::format("{}: normalizer {}", what, type);
  if (steps_.size() >= kMostNormalizers)
    Fail("{}: has more than {} normalizers", what, kMostNormalizers);
  if (type == "Sequence") {
    for (const Json& part : RequireArray(json, "normalizers", name)) Add(part, what);
  } else if (type == "NFC") {
    steps_.push_back(std::make_unique<UnicodeForm>(NormalForm::kNfc));
  } else if (type == "NFD") {
    steps_.push_back(std::make_unique<UnicodeForm>(NormalForm::kNfd));
  } else if (type == "NFKC") {
    steps_.push_back(std::make_unique<UnicodeForm>(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    steps_.push_back(std::make_unique<UnicodeForm>(NormalForm::kNfkd));
  } else if (type == "Lowercase") {
    steps_.push_back(std::make_unique<Lowercase>());
  } else if (type == "Strip") {
    steps_.push_back(std::make_unique<Strip>(RequireBool(json, "strip_left", name),
                                             RequireBool(json, "strip_right", name)));
  } else if (type == "StripAccents") {
    steps_.push_back(std::make_unique<StripAccents>());
  } else if (type == "Prepend") {
    steps_.push_back(std::make_unique<PrependNormalizer>(RequireString(json, "prepend", name)));
  } else if (type == "Replace") {
    steps_.push_back(
        std::make_unique<Replace>(Pattern::FromJson(RequireMember(json, "pattern", name), name),
                                  RequireString(json, "content", name)));
  } else {
    Fail("{}: the normalizer has type {}, which is not supported", what, type);
  }
}

}  // namespace loopspec
