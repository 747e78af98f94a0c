#include "text/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/bpe.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr size_t kMostPreTokenizers = 100;  // each one is a level of calls

Piece Slice(const Piece& piece, size_t begin, size_t end) {
  return {piece.text.substr(begin, end - begin), piece.zero > begin ? piece.zero - begin : 0};
}

SplitBehavior ReadBehavior(const Json& json, std::string_view what,
                           std::optional<SplitBehavior> missing) {
  constexpr std::array<std::string_view, 5> names = {"Removed", "Isolated", "MergedWithPrevious",
                                                     "MergedWithNext", "Contiguous"};
  if (missing && (!json.contains("behavior") || json["behavior"].is_null())) return *missing;
  const std::string name = RequireString(json, "behavior", what);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    Fail(
        "{}: behavior is {}, expected Removed, Isolated, MergedWithPrevious, MergedWithNext or "
        "Contiguous",
        what, name);
  }
  return static_cast<SplitBehavior>(found - names.begin());
}

// Every character of some classes is a match of its own.
void FindCharacters(std::string_view text, uint8_t classes, std::vector<Span>& spans) {
  spans.clear();
  uint32_t done = 0;
  for (uint32_t i = 0; i < text.size();) {
    const CodePoint c = DecodeUtf8(text, i);
    const uint32_t end = i + static_cast<uint32_t>(c.length);
    if (HasClass(c.value, classes)) {
      if (done != i) spans.push_back({done, i, false});
      spans.push_back({i, end, true});
      done = end;
    }
    i = end;
  }
  if (done != text.size()) spans.push_back({done, static_cast<uint32_t>(text.size()), false});
}

class PatternSplit : public PreTokenizerStep {
 public:
  PatternSplit(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void Split(const Piece& piece, const PieceSink& sink) const override {
    if (behavior_ == SplitBehavior::kRemoved || behavior_ == SplitBehavior::kIsolated) {
      // At once: whoever takes the pieces may not want all of a long text.
      return pattern_.ForEach(piece.text, [&](const Span& span) {
        if (behavior_ == SplitBehavior::kIsolated || span.match == invert_)
          sink(Slice(piece, span.begin, span.end));
      });
    }
    std::vector<Span> spans;
    pattern_.Find(piece.text, spans);
    if (invert_) {
      for (Span& span : spans) span.match = !span.match;
    }
    SplitSpans(piece, spans, behavior_, sink);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// A well-known expression whose matches cover the whole text and are kept as they are.
class WordSplit : public PreTokenizerStep {
 public:
  explicit WordSplit(WordMatcher match) : match_(match) {}
  void Split(const Piece& piece, const PieceSink& sink) const override {
    for (size_t i = 0; i < piece.text.size();) {
      const size_t length = match_(piece.text, i);
      sink(Slice(piece, i, i + length));
      i += length;
    }
  }

 private:
  WordMatcher match_;
};

class CharacterSplit : public PreTokenizerStep {
 public:
  CharacterSplit(uint8_t classes, SplitBehavior behavior)
      : classes_(classes), behavior_(behavior) {}
  void Split(const Piece& piece, const PieceSink& sink) const override {
    std::vector<Span> spans;
    FindCharacters(piece.text, classes_, spans);
    SplitSpans(piece, spans, behavior_, sink);
  }

 private:
  uint8_t classes_;
  SplitBehavior behavior_;
};

// Digits of their own, by far the most frequent use of Digits, without a list of spans.
class SingleDigits : public PreTokenizerStep {
 public:
  void Split(const Piece& piece, const PieceSink& sink) const override {
    const std::string_view text = piece.text;
    const uint8_t* classes = CharacterClasses();
    size_t begin = 0;
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = DecodeUtf8(text, i);
      const size_t end = i + static_cast<size_t>(c.length);
      if ((classes[c.value] & kNumeric) != 0) {
        if (begin != i) sink(Slice(piece, begin, i));
        sink(Slice(piece, i, end));
        begin = end;
      }
      i = end;
    }
    if (begin != text.size()) sink(Slice(piece, begin, text.size()));
  }
};

// \w+|[^\w\s]+, with the spaces between left out.
class Whitespace : public PreTokenizerStep {
 public:
  void Split(const Piece& piece, const PieceSink& sink) const override {
    size_t begin = 0;
    int kind = 0;  // of the run that began: 0 space, 1 word, 2 neither
    for (size_t i = 0; i < piece.text.size();) {
      const CodePoint c = DecodeUtf8(piece.text, i);
      const int now = HasClass(c.value, kWord) ? 1 : HasClass(c.value, kSpace) ? 0 : 2;
      if (now != kind) {
        if (kind != 0) sink(Slice(piece, begin, i));
        begin = i;
        kind = now;
      }
      i += static_cast<size_t>(c.length);
    }
    if (kind != 0) sink(Slice(piece, begin, piece.text.size()));
  }
};

class Metaspace : public PreTokenizerStep {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(replacement),
        prepend_(prepend),
        split_(split),
        space_(Pattern::String(" ")),
        mark_(Pattern::String(std::move(replacement))) {}

  void Split(const Piece& piece, const PieceSink& sink) const override {
    size_t zero = piece.zero;
    std::string text = space_.Replace(piece.text, replacement_, &zero);
    if (!text.starts_with(replacement_) &&
        (prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.zero > 0))) {
      text.insert(0, replacement_);
      if (zero > 0) zero += replacement_.size();
    }
    const Piece marked{text, zero};
    if (!split_) return sink(marked);
    std::vector<Span> spans;
    mark_.Find(text, spans);
    SplitSpans(marked, spans, SplitBehavior::kMergedWithNext, sink);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
  Pattern space_, mark_;
};

class PrefixSpace : public PreTokenizerStep {
 public:
  void Split(const Piece& piece, const PieceSink& sink) const override {
    if (piece.text.starts_with(' ')) return sink(piece);
    std::string text(1, ' ');
    text.append(piece.text);
    sink({text, piece.zero > 0 ? piece.zero + 1 : 0});
  }
};

// Spells the bytes in the byte-level alphabet, for when steps that look at characters follow.
class SpellBytes : public PreTokenizerStep {
 public:
  void Split(const Piece& piece, const PieceSink& sink) const override {
    std::string text;
    ByteAlphabet::Get().AppendMapped(piece.text.substr(0, piece.zero), text);
    const size_t zero = text.size();
    ByteAlphabet::Get().AppendMapped(piece.text.substr(std::min(piece.zero, piece.text.size())),
                                     text);
    sink({text, zero});
  }
};

std::unique_ptr<PreTokenizerStep> ReadSplit(const Json& json, const std::string& name,
                                            bool& keeps_all) {
  const SplitBehavior behavior = ReadBehavior(json, name, std::nullopt);
  const bool invert = RequireBool(json, "invert", name);
  const Json& pattern = RequireMember(json, "pattern", name);
  // Matches that cover all text stay whole when they are isolated, and when everything between them
  // is removed.
  if (behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert)) {
    if (const auto expression =
            pattern.is_object() ? FindString(pattern, "Regex", name) : std::nullopt) {
      if (const WordMatcher matcher = FindWordMatcher(*expression))
        return std::make_unique<WordSplit>(matcher);
    }
  }
  keeps_all = keeps_all && behavior != SplitBehavior::kRemoved;
  return std::make_unique<PatternSplit>(Pattern::FromJson(pattern, name), behavior, invert);
}

std::unique_ptr<PreTokenizerStep> ReadMetaspace(const Json& json, const std::string& name) {
  using Prepend = Metaspace::Prepend;
  const std::string replacement = RequireString(json, "replacement", name);
  if (CountCharacters(replacement) != 1)
    Fail("{}: replacement is \"{}\", expected one character", name, replacement);
  const auto prefix_space =
      FindBool(json, "add_prefix_space", name);  // what files said before there were schemes
  const auto scheme = FindString(json, "prepend_scheme", name);
  Prepend prepend = prefix_space.value_or(true) ? Prepend::kAlways : Prepend::kNever;
  if (scheme) {
    if (*scheme == "always") {
      prepend = Prepend::kAlways;
    } else if (*scheme == "first") {
      prepend = Prepend::kFirst;
    } else if (*scheme == "never") {
      prepend = Prepend::kNever;
    } else {
      Fail("{}: prepend_scheme is {}, expected always, first or never", name, *scheme);
    }
    if (prefix_space == false && prepend != Prepend::kNever) {
      Fail("{}: add_prefix_space is false and prepend_scheme is {}, which contradict each other",
           name, *scheme);
    }
  }
  return std::make_unique<Metaspace>(replacement, prepend,
                                     FindBool(json, "split", name).value_or(true));
}

}  // namespace

void SplitSpans(const Piece& piece, std::vector<Span>& spans, SplitBehavior behavior,
                const PieceSink& sink) {
  const auto give = [&](uint32_t begin, uint32_t end) { sink(Slice(piece, begin, end)); };
  if (behavior == SplitBehavior::kRemoved || behavior == SplitBehavior::kIsolated) {
    for (const Span& span : spans) {
      if (!span.match || behavior == SplitBehavior::kIsolated) give(span.begin, span.end);
    }
    return;
  }
  // What is left are the behaviors that join neighbours. Merging with the next piece is merging
  // with the previous one from the other end.
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<Span> joined;
  bool previous_match = false;
  for (const Span& span : spans) {
    const bool join = behavior == SplitBehavior::kContiguous ? span.match == previous_match
                                                             : span.match && !previous_match;
    if (join && !joined.empty()) {
      if (backwards) {
        joined.back().begin = span.begin;
      } else {
        joined.back().end = span.end;
      }
    } else {
      joined.push_back(span);
    }
    previous_match = span.match;
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  for (const Span& span : joined) give(span.begin, span.end);
}

PreTokenizer PreTokenizer::FromJson(const Json& json, std::string_view what) {
  PreTokenizer result;
  if (!json.is_null()) result.Add(json, what);
  return result;
}

void PreTokenizer::Add(const Json& json, std::string_view what) {
  const std::string type = TypeOf(json, what, "pre_tokenizer");
  const std::string name = fmt::format("{}: pre_tokenizer {}", what, type);
  if (type == "Sequence") {
    for (const Json& part : RequireArray(json, "pretokenizers", name)) Add(part, what);
    return;
  }
  if (steps_.size() >= kMostPreTokenizers)
    Fail("{}: has more than {} pre_tokenizers", what, kMostPreTokenizers);
  if (byte_level_) {
    steps_.push_back(std::make_unique<SpellBytes>());
    byte_level_ = false;
  }
  if (type == "ByteLevel") {
    AddByteLevel(json, name);
  } else if (type == "Split") {
    steps_.push_back(ReadSplit(json, name, keeps_all_));
  } else if (type == "Digits") {
    if (RequireBool(json, "individual_digits", name)) {
      steps_.push_back(std::make_unique<SingleDigits>());
    } else {
      steps_.push_back(std::make_unique<CharacterSplit>(kNumeric, SplitBehavior::kContiguous));
    }
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_unique<Whitespace>());
    keeps_all_ = false;
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(std::make_unique<CharacterSplit>(kSpace, SplitBehavior::kRemoved));
    keeps_all_ = false;
  } else if (type == "Punctuation") {
    const SplitBehavior behavior = ReadBehavior(json, name, SplitBehavior::kIsolated);
    steps_.push_back(std::make_unique<CharacterSplit>(kPunctuation, behavior));
    keeps_all_ = keeps_all_ && behavior != SplitBehavior::kRemoved;
  } else if (type == "Metaspace") {
    steps_.push_back(ReadMetaspace(json, name));
  } else {
    Fail("{}: the pre_tokenizer has type {}, which is not supported", what, type);
  }
}

void PreTokenizer::AddByteLevel(const Json& json, std::string_view what) {
  if (RequireBool(json, "add_prefix_space", what))
    steps_.push_back(std::make_unique<PrefixSpace>());
  if (FindBool(json, "use_regex", what).value_or(true)) {
    steps_.push_back(std::make_unique<WordSplit>(FindWordMatcher(kGpt2Words)));
  }
  byte_level_ = true;
}

void PreTokenizer::Split(const Piece& piece, const PieceSink& sink) const {
  if (piece.text.empty()) return;
  // Each step hands its pieces straight to the next: no list of words is ever made.
  std::vector<PieceSink> sinks(steps_.size() + 1);
  sinks.back() = [&sink](const Piece& part) {
    if (!part.text.empty()) sink(part);
  };
  for (size_t i = steps_.size(); i-- > 0;) {
    const PreTokenizerStep* step = steps_[i].get();
    const PieceSink* next = &sinks[i + 1];
    sinks[i] = [step, next](const Piece& part) {
      if (!part.text.empty()) step->Split(part, *next);
    };
  }
  sinks.front()(piece);
}

}  // namespace loopspec
