#include "grammar/characters.h"

#include <algorithm>

#include "base/escape_json.h"
#include "base/utf8.h"
#include "grammar/character_table.h"

namespace loopspec::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;
// A set with more ranges is a table: an expression with so many choices is slow to follow.
constexpr size_t kManyRanges = 16;

// Numbers from low to high as `digits` digits of base 2^bits, the most significant first. `digit`
// makes the node of a range of values of one digit, told how many digits follow.
template <typename Digit>
Node DigitRange(Regular& regular, uint32_t low, uint32_t high, int digits, int bits,
                const Digit& digit) {
  if (digits == 0) return kEmpty;
  const int shift = bits * (digits - 1);
  const uint32_t rest = (1u << shift) - 1;
  const uint32_t first = low >> shift;
  const uint32_t last = high >> shift;
  const auto within = [&](uint32_t from, uint32_t to, uint32_t rest_low, uint32_t rest_high) {
    return regular.Concat(digit(from, to, digits - 1),
                          DigitRange(regular, rest_low, rest_high, digits - 1, bits, digit));
  };
  if (first == last) return within(first, first, low & rest, high & rest);
  std::vector<Node> choices;
  uint32_t from = first;
  uint32_t to = last;
  if ((low & rest) != 0) choices.push_back(within(from++, first, low & rest, rest));
  if ((high & rest) != rest) choices.push_back(within(to--, last, 0, high & rest));
  if (from <= to) choices.push_back(within(from, to, 0, rest));
  return regular.Or(std::move(choices));
}

Node Utf8Range(Regular& regular, char32_t low, char32_t high) {
  struct Length {
    char32_t last;
    int bytes;
    uint8_t lead;
  };
  static constexpr Length kLengths[] = {
      {0x7F, 1, 0}, {0x7FF, 2, 0xC0}, {0xFFFF, 3, 0xE0}, {kLastCodePoint, 4, 0xF0}};
  std::vector<Node> choices;
  char32_t first = 0;
  for (const Length& length : kLengths) {
    const char32_t from = std::max(low, first);
    const char32_t to = std::min(high, length.last);
    first = length.last + 1;
    if (from > to) continue;
    if (length.bytes == 1) {
      choices.push_back(regular.Range(static_cast<uint8_t>(from), static_cast<uint8_t>(to)));
      continue;
    }
    choices.push_back(
        DigitRange(regular, from, to, length.bytes, 6, [&](uint32_t a, uint32_t b, int following) {
          const uint32_t mark = following == length.bytes - 1 ? length.lead : 0x80;
          return regular.Range(static_cast<uint8_t>(mark | a), static_cast<uint8_t>(mark | b));
        }));
  }
  return regular.Or(std::move(choices));
}

// Four hexadecimal digits, in either case.
Node HexRange(Regular& regular, uint32_t low, uint32_t high) {
  return DigitRange(regular, low, high, 4, 4, [&](uint32_t a, uint32_t b, int) {
    ByteSet set;
    for (uint32_t value = a; value <= b; ++value) {
      set.set(static_cast<size_t>("0123456789abcdef"[value]));
      set.set(static_cast<size_t>("0123456789ABCDEF"[value]));
    }
    return regular.Bytes(set);
  });
}

Node EscapeRange(Regular& regular, char32_t low, char32_t high) {
  std::vector<Node> choices;
  const Node u = regular.Text("\\u");
  if (low <= 0xFFFF) {
    choices.push_back(regular.Concat(u, HexRange(regular, low, std::min<char32_t>(high, 0xFFFF))));
  }
  if (high > 0xFFFF) {
    // A pair of surrogates, ten bits each: two digits of base 2^10.
    const char32_t from = std::max<char32_t>(low, 0x10000) - 0x10000;
    choices.push_back(DigitRange(regular, from, high - 0x10000, 2, 10,
                                 [&](uint32_t a, uint32_t b, int following) {
                                   const uint32_t base = following == 1 ? 0xD800 : 0xDC00;
                                   return regular.Concat(u, HexRange(regular, base + a, base + b));
                                 }));
  }
  return regular.Or(std::move(choices));
}

// The table of a set, made once.
Node TableNode(Regular& regular, const CharacterSet& set, Writing writing) {
  std::vector<uint32_t> key{static_cast<uint32_t>(writing)};
  for (const auto& [low, high] : set.ranges()) {
    key.push_back(low);
    key.push_back(high);
  }
  const Node kept = regular.FindKept(key);
  if (kept != kNothing) return kept;
  const Node made = regular.FromTable(CharacterTable(set, writing));
  regular.Keep(std::move(key), made);
  return made;
}

}  // namespace

CharacterSet::CharacterSet(std::initializer_list<std::pair<char32_t, char32_t>> ranges)
    : ranges_(ranges) {
  Normalize();
}

CharacterSet::CharacterSet(std::vector<std::pair<char32_t, char32_t>> ranges)
    : ranges_(std::move(ranges)) {
  Normalize();
}

bool CharacterSet::Has(char32_t c) const {
  return std::ranges::any_of(
      ranges_, [&](const auto& range) { return range.first <= c && c <= range.second; });
}

void CharacterSet::Normalize() {
  std::ranges::sort(ranges_);
  std::vector<std::pair<char32_t, char32_t>> merged;
  for (const auto& [low, high] : ranges_) {
    if (!merged.empty() && low <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, high);
    } else {
      merged.emplace_back(low, high);
    }
  }
  ranges_.clear();
  for (const auto& [low, high] : merged) {
    if (low < kFirstSurrogate)
      ranges_.emplace_back(low, std::min<char32_t>(high, kFirstSurrogate - 1));
    if (high > kLastSurrogate)
      ranges_.emplace_back(std::max<char32_t>(low, kLastSurrogate + 1), high);
  }
}

void CharacterSet::Add(char32_t low, char32_t high) {
  ranges_.emplace_back(low, high);
  Normalize();
}

void CharacterSet::Add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  Normalize();
}

CharacterSet CharacterSet::Complement() const {
  CharacterSet result;
  char32_t next = 0;
  for (const auto& [low, high] : ranges_) {
    if (low > next) result.ranges_.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) result.ranges_.emplace_back(next, kLastCodePoint);
  result.Normalize();
  return result;
}

CharacterSet CharacterSet::Intersect(const CharacterSet& other) const {
  CharacterSet result;
  for (const auto& [low, high] : ranges_) {
    for (const auto& [from, to] : other.ranges_) {
      if (std::max(low, from) <= std::min(high, to)) {
        result.ranges_.emplace_back(std::max(low, from), std::min(high, to));
      }
    }
  }
  result.Normalize();
  return result;
}

CharacterSet CharacterSet::FoldCase() const {
  CharacterSet result = *this;
  for (char32_t c = 'a'; c <= 'z'; ++c) {
    const char32_t upper = c - 'a' + 'A';
    for (const auto& [low, high] : ranges_) {
      if ((low <= c && c <= high) || (low <= upper && upper <= high)) {
        result.ranges_.emplace_back(c, c);
        result.ranges_.emplace_back(upper, upper);
      }
    }
  }
  result.Normalize();
  return result;
}

const CharacterSet& PlainInJson() {
  static const CharacterSet plain{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCodePoint}};
  return plain;
}

Node CharacterNode(Regular& regular, const CharacterSet& set, Writing writing) {
  if (set.ranges().size() > kManyRanges) {
    const Node node = TableNode(regular, set, writing);
    if (writing == Writing::kJsonString) regular.MarkCharacter(node);
    return node;
  }
  std::vector<Node> choices;
  if (writing == Writing::kUtf8) {
    for (const auto& [low, high] : set.ranges()) choices.push_back(Utf8Range(regular, low, high));
    return regular.Or(std::move(choices));
  }
  const CharacterSet as_it_is = set.Intersect(PlainInJson());
  for (const auto& [low, high] : as_it_is.ranges()) {
    choices.push_back(Utf8Range(regular, low, high));
  }
  for (const auto& [low, high] : set.ranges()) choices.push_back(EscapeRange(regular, low, high));
  for (const ShortEscape& escape : kShortEscapes) {
    if (set.Has(escape.value)) choices.push_back(regular.Text(std::string{'\\', escape.letter}));
  }
  const Node node = regular.Or(std::move(choices));
  regular.MarkCharacter(node);
  return node;
}

Node SpelledText(Regular& regular, std::string_view text, Writing writing) {
  if (writing == Writing::kUtf8) return regular.Text(text);
  std::vector<Node> parts;
  for (size_t i = 0; i < text.size();) {
    const CodePoint character = DecodeUtf8(text, i);
    Node node = regular.FindKept(character.value);
    if (node == kNothing) {
      node = CharacterNode(regular, {{character.value, character.value}}, writing);
      regular.Keep(character.value, node);
    }
    parts.push_back(node);
    i += static_cast<size_t>(character.length);
  }
  Node node = kEmpty;
  for (size_t i = parts.size(); i-- > 0;) node = regular.Concat(parts[i], node);
  return node;
}

std::string QuotedJson(std::string_view text) {
  return '"' + EscapedJson(text) + '"';
}

}  // namespace loopspec::grammar
