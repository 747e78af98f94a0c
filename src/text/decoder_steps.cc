// Each decoder twice: over a list of tokens, as the PyPI library defines it, and as a stream that
// holds back only what later tokens may still change.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/pattern.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

std::string Join(const std::vector<std::string>& tokens) {
  std::string joined;
  for (const std::string& token : tokens) joined.append(token);
  return joined;
}

// Collects the pieces of a token for steps that must see it whole.
class WholeTokens : public DecoderStream {
 public:
  void Feed(std::string_view piece, bool last) final {
    if (last && held_.empty()) return Token(piece);
    held_.append(piece);
    if (!last) return;
    Token(held_);
    held_.clear();
  }

 protected:
  virtual void Token(std::string_view token) = 0;

 private:
  std::string held_;
};

// --- ByteLevel: characters of the byte-level alphabet become the bytes they stand for, all tokens
// one text.

void AppendBytes(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  for (size_t i = 0; i < token.size();) {
    const CodePoint c = DecodeUtf8(token, i);
    const int byte = ByteAlphabet::Get().Byte(c.value);
    if (byte < 0) {  // a token with any other character stands for itself
      bytes.resize(before);
      bytes.append(token);
      return;
    }
    bytes.push_back(static_cast<char>(byte));
    i += static_cast<size_t>(c.length);
  }
}

class ByteLevelStream : public WholeTokens {
 public:
  explicit ByteLevelStream(DecoderStream& next) : next_(next) {}
  void Finish() override {
    text_.clear();
    AppendLossyUtf8(bytes_, text_);
    next_.Feed(text_, true);
    next_.Finish();
  }

 protected:
  void Token(std::string_view token) override {
    AppendBytes(token, bytes_);
    text_.clear();
    const size_t left = AppendLossyUtf8Prefix(bytes_, text_);
    bytes_.erase(0, bytes_.size() - left);
    if (!text_.empty()) next_.Feed(text_, false);
  }

 private:
  DecoderStream& next_;
  std::string bytes_;  // an unfinished character
  std::string text_;
};

class ByteLevel : public DecoderStep {
 public:
  void Apply(std::vector<std::string>& tokens) const override {
    std::string bytes, text;
    for (const std::string& token : tokens) AppendBytes(token, bytes);
    AppendLossyUtf8(bytes, text);
    tokens.assign(1, text);
  }
  std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const override {
    return std::make_unique<ByteLevelStream>(next);
  }
};

// --- ByteFallback: runs of tokens like <0xE2> become text when they are valid UTF-8 together, else
// one U+FFFD each.

std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char c = token[i];
    if (c == '+' && i == 3) continue;  // Rust reads "+F" as a number
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      value = value * 16 + ((c | 0x20) - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<char>(value);
}

class ByteFallbackStream : public DecoderStream {
 public:
  explicit ByteFallbackStream(DecoderStream& next) : next_(next) {}
  void Feed(std::string_view piece, bool last) override {
    if (!passing_) {
      held_.append(piece);
      if (!last && held_.size() <= 6) return;  // may still be a byte
      if (const auto byte = last ? FallbackByte(held_) : std::nullopt) {
        bytes_.push_back(*byte);
      } else {
        FlushBytes();
        next_.Feed(held_, last);
        passing_ = true;
      }
      held_.clear();
    } else {
      next_.Feed(piece, last);
    }
    if (last) passing_ = false;
  }
  void Finish() override {
    FlushBytes();
    next_.Finish();
  }

 private:
  void FlushBytes() {
    if (bytes_.empty()) return;
    if (IsValidUtf8(bytes_)) {
      next_.Feed(bytes_, true);
    } else {
      for (size_t i = 0; i < bytes_.size(); ++i) next_.Feed(kReplacementCharacter, true);
    }
    bytes_.clear();
  }

  DecoderStream& next_;
  std::string held_;      // the beginning of a token
  bool passing_ = false;  // the token is known to be no byte
  std::string bytes_;     // the run so far
};

class ByteFallback : public DecoderStep {
 public:
  void Apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (IsValidUtf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), std::string(kReplacementCharacter));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = FallbackByte(token)) {
        bytes.push_back(*byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }
  std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const override {
    return std::make_unique<ByteFallbackStream>(next);
  }
};

// --- Fuse: all tokens one.

class FuseStream : public DecoderStream {
 public:
  explicit FuseStream(DecoderStream& next) : next_(next) {}
  void Feed(std::string_view piece, bool) override {
    if (!piece.empty()) next_.Feed(piece, false);
  }
  void Finish() override {
    next_.Feed("", true);
    next_.Finish();
  }

 private:
  DecoderStream& next_;
};

class Fuse : public DecoderStep {
 public:
  void Apply(std::vector<std::string>& tokens) const override { tokens.assign(1, Join(tokens)); }
  std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const override {
    return std::make_unique<FuseStream>(next);
  }
};

// --- Metaspace: the mark becomes a space; in the first token it goes away.

void AppendMetaspace(std::string_view token, std::string_view mark, bool drop, std::string& out) {
  for (size_t i = 0; i < token.size();) {
    const size_t found = std::min(token.find(mark, i), token.size());
    out.append(token.substr(i, found - i));
    if (found < token.size() && !drop) out.push_back(' ');
    i = found + mark.size();
  }
}

class MetaspaceStream : public DecoderStream {
 public:
  MetaspaceStream(std::string mark, bool drop_first, DecoderStream& next)
      : mark_(std::move(mark)), drop_(drop_first), next_(next) {}
  void Feed(std::string_view piece, bool last) override {
    std::string out;
    AppendMetaspace(piece, mark_, drop_, out);
    next_.Feed(out, last);
    if (last) drop_ = false;
  }
  void Finish() override { next_.Finish(); }

 private:
  std::string mark_;
  bool drop_;  // still in the first token
  DecoderStream& next_;
};

class MetaspaceDecoder : public DecoderStep {
 public:
  MetaspaceDecoder(std::string mark, bool drop_first)
      : mark_(std::move(mark)), drop_first_(drop_first) {}
  void Apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string out;
      AppendMetaspace(tokens[i], mark_, drop_first_ && i == 0, out);
      tokens[i] = std::move(out);
    }
  }
  std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const override {
    return std::make_unique<MetaspaceStream>(mark_, drop_first_, next);
  }

 private:
  std::string mark_;
  bool drop_first_;
};

// --- Replace: in each token.

class ReplaceStringStream : public DecoderStream {
 public:
  ReplaceStringStream(std::string_view needle, std::string_view content, DecoderStream& next)
      : needle_(needle), content_(content), next_(next) {}
  void Feed(std::string_view piece, bool last) override {
    held_.append(piece);
    std::string out;
    size_t done = 0;
    for (size_t found; (found = held_.find(needle_, done)) != std::string::npos;
         done = found + needle_.size()) {
      out.append(held_, done, found - done);
      out.append(content_);
    }
    const size_t keep = last ? 0 : UnfinishedMatch(std::string_view(held_).substr(done));
    out.append(held_, done, held_.size() - keep - done);
    held_.erase(0, held_.size() - keep);
    if (last || !out.empty()) next_.Feed(out, last);
  }
  void Finish() override { next_.Finish(); }

 private:
  // How many bytes at the end of `text` begin the needle.
  size_t UnfinishedMatch(std::string_view text) const {
    for (size_t n = std::min(needle_.size() - 1, text.size()); n > 0; --n) {
      if (text.ends_with(needle_.substr(0, n))) return n;
    }
    return 0;
  }
  std::string_view needle_, content_;
  DecoderStream& next_;
  std::string held_;
};

class ReplaceWholeStream : public WholeTokens {
 public:
  ReplaceWholeStream(const Pattern& pattern, std::string_view content, DecoderStream& next)
      : pattern_(pattern), content_(content), next_(next) {}
  void Finish() override { next_.Finish(); }

 protected:
  void Token(std::string_view token) override {
    next_.Feed(pattern_.Replace(token, content_), true);
  }

 private:
  const Pattern& pattern_;
  std::string_view content_;
  DecoderStream& next_;
};

class ReplaceDecoder : public DecoderStep {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = pattern_.Replace(token, content_);
  }
  std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const override {
    if (pattern_.is_string() && !pattern_.string().empty()) {
      return std::make_unique<ReplaceStringStream>(pattern_.string(), content_, next);
    }
    return std::make_unique<ReplaceWholeStream>(pattern_, content_, next);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// --- Strip: takes a limited number of one character off the start and the end of each token.

class StripStream : public DecoderStream {
 public:
  StripStream(std::string_view content, size_t start, size_t stop, DecoderStream& next)
      : content_(content), start_(start), stop_(stop), next_(next), left_(start) {}
  void Feed(std::string_view piece, bool last) override {
    std::string out;
    size_t i = 0;
    while (left_ > 0 && i < piece.size()) {
      if (!piece.substr(i).starts_with(content_)) {
        left_ = 0;
        break;
      }
      i += content_.size();
      --left_;
    }
    // Of the characters at the end that may be cut off, only their number has to be kept.
    for (; i < piece.size();) {
      const auto length = static_cast<size_t>(DecodeUtf8(piece, i).length);
      const std::string_view c = piece.substr(i, length);
      i += length;
      if (c == content_) {
        ++held_;
        if (held_ <= stop_) continue;
        --held_;
      } else {
        Release(out);
      }
      out.append(c);
    }
    if (last) {
      held_ = 0;
      left_ = start_;
    }
    if (last || !out.empty()) next_.Feed(out, last);
  }
  void Finish() override { next_.Finish(); }

 private:
  void Release(std::string& out) {
    for (; held_ > 0; --held_) out.append(content_);
  }
  std::string_view content_;
  size_t start_, stop_;
  DecoderStream& next_;
  size_t left_;      // how many may still go from the start
  size_t held_ = 0;  // how many at the end wait, at most stop_
};

class StripDecoder : public DecoderStep {
 public:
  StripDecoder(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (size_t n = 0; n < start_ && rest.starts_with(content_); ++n)
        rest.remove_prefix(content_.size());
      for (size_t n = 0; n < stop_ && rest.ends_with(content_); ++n)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }
  std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const override {
    return std::make_unique<StripStream>(content_, start_, stop_, next);
  }

 private:
  std::string content_;  // one character
  size_t start_, stop_;
};

std::string OneCharacter(const Json& json, std::string_view key, std::string_view what) {
  std::string value = RequireString(json, key, what);
  if (CountCharacters(value) != 1)
    Fail("{}: {} is \"{}\", expected one character", what, key, value);
  return value;
}

}  // namespace

std::unique_ptr<DecoderStep> ReadDecoderStep(const std::string& type, const Json& json,
                                             std::string_view what) {
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Metaspace") {
    const auto scheme = FindString(json, "prepend_scheme", what);
    if (scheme && *scheme != "always" && *scheme != "first" && *scheme != "never") {
      Fail("{}: prepend_scheme is {}, expected always, first or never", what, *scheme);
    }
    const bool prefix_space = FindBool(json, "add_prefix_space", what).value_or(true);
    const bool drop_first = scheme ? *scheme != "never" : prefix_space;
    return std::make_unique<MetaspaceDecoder>(OneCharacter(json, "replacement", what), drop_first);
  }
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(
        Pattern::FromJson(RequireMember(json, "pattern", what), what),
        RequireString(json, "content", what));
  }
  if (type == "Strip") {
    const auto count = [&](std::string_view key) {
      RequireMember(json, key, what);
      return static_cast<size_t>(*FindInt(json, key, what, 0, std::numeric_limits<int32_t>::max()));
    };
    return std::make_unique<StripDecoder>(OneCharacter(json, "content", what), count("start"),
                                          count("stop"));
  }
  return nullptr;
}

}  // namespace loopspec
