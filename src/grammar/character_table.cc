#include "grammar/character_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace loopspec::grammar {
namespace {

constexpr uint32_t kNoState = ~0u;

// A digit of a number, in one byte.
struct DigitByte {
  int bits;         // 0: always the same byte
  uint32_t offset;  // what is added to the digit's value: the byte, or the hexadecimal digit
  bool hex;         // in either case
};

// A way to write the numbers from `first` to `last`: the number less `base`, the highest digit
// first.
struct Form {
  char32_t first, last, base;
  std::vector<DigitByte> digits;
};

const std::vector<Form>& Utf8Forms() {
  static const std::vector<Form> forms = {
      {0x0, 0x7F, 0, {{7, 0, false}}},
      {0x80, 0x7FF, 0, {{5, 0xC0, false}, {6, 0x80, false}}},
      {0x800, 0xFFFF, 0, {{4, 0xE0, false}, {6, 0x80, false}, {6, 0x80, false}}},
      {0x10000,
       0x10FFFF,
       0,
       {{3, 0xF0, false}, {6, 0x80, false}, {6, 0x80, false}, {6, 0x80, false}}}};
  return forms;
}

// \uXXXX, and two of them: surrogates of ten bits each.
const std::vector<Form>& EscapeForms() {
  static const std::vector<Form> forms = {
      {0x0,
       0xFFFF,
       0,
       {{0, '\\', false}, {0, 'u', false}, {4, 0, true}, {4, 0, true}, {4, 0, true}, {4, 0, true}}},
      {0x10000,
       0x10FFFF,
       0x10000,
       {{0, '\\', false},
        {0, 'u', false},
        {0, 0xD, true},
        {2, 0x8, true},
        {4, 0, true},
        {4, 0, true},
        {0, '\\', false},
        {0, 'u', false},
        {0, 0xD, true},
        {2, 0xC, true},
        {4, 0, true},
        {4, 0, true}}}};
  return forms;
}

class TableMaker {
 public:
  using Edges = std::vector<std::array<uint32_t, 3>>;  // low, high, next

  TableMaker() {
    table_.states.resize(2);  // the start, and the end of a character
    table_.states[kEnd].accepts = true;
  }

  // Adds the members of the set that have this form.
  void Add(const CharacterSet& set, const Form& form) {
    std::vector<std::pair<uint32_t, uint32_t>> numbers;
    for (const auto& [low, high] : set.ranges()) {
      const char32_t from = std::max(low, form.first);
      const char32_t to = std::min(high, form.last);
      if (from <= to) numbers.emplace_back(from - form.base, to - form.base);
    }
    start_ = Union(start_, State(numbers, 0, form.digits));
  }
  // A backslash and a letter.
  void AddShortEscape(char letter) {
    const auto byte = static_cast<uint32_t>(letter);
    const uint32_t end = Intern({{byte, byte, kEnd}});
    start_ = Union(start_, Intern({{'\\', '\\', end}}));
  }
  Table Finish() {
    table_.states[0] = table_.states[start_];
    return std::move(table_);
  }

 private:
  static constexpr uint32_t kEnd = 1;

  uint32_t Intern(const Edges& edges) {
    if (edges.empty()) return kNoState;
    const auto [it, added] = known_.emplace(edges, static_cast<uint32_t>(table_.states.size()));
    if (added) {
      Table::State& state = table_.states.emplace_back();
      for (const auto& [low, high, next] : edges) {
        state.edges.push_back({static_cast<uint8_t>(low), static_cast<uint8_t>(high), next});
      }
    }
    return it->second;
  }

  // Numbers from `first` on that the digits can write, as far as they are among `numbers`, which
  // are ascending ranges within what the digits can write.
  uint32_t State(std::span<const std::pair<uint32_t, uint32_t>> numbers, uint32_t first,
                 std::span<const DigitByte> digits) {
    if (numbers.empty()) return kNoState;
    if (digits.empty()) return kEnd;
    int rest_bits = 0;
    for (const DigitByte& digit : digits.subspan(1)) rest_bits += digit.bits;
    std::vector<uint32_t> next(size_t{1} << digits[0].bits, kNoState);
    for (uint32_t value = 0; value < next.size(); ++value) {
      const uint32_t low = first + (value << rest_bits);
      const uint32_t high = low + ((1u << rest_bits) - 1);
      while (!numbers.empty() && numbers.front().second < low) numbers = numbers.subspan(1);
      if (numbers.empty()) break;
      if (numbers.front().first > high) continue;
      // The same as for the value before: all that there is.
      if (value > 0 && next[value - 1] != kNoState &&
          numbers.front().first + (1u << rest_bits) <= low && numbers.front().second >= high) {
        next[value] = next[value - 1];
        continue;
      }
      std::vector<std::pair<uint32_t, uint32_t>> part;
      for (const auto& [from, to] : numbers) {
        if (from > high) break;
        part.emplace_back(std::max(from, low), std::min(to, high));
      }
      next[value] = State(part, low, digits.subspan(1));
    }
    return Intern(EdgesOf(digits[0], next));
  }

  // The bytes of a digit, with the state after each of its values.
  static Edges EdgesOf(const DigitByte& digit, std::span<const uint32_t> next) {
    std::array<uint32_t, 256> by_byte;
    by_byte.fill(kNoState);
    for (uint32_t value = 0; value < next.size(); ++value) {
      const uint32_t number = value + digit.offset;
      if (digit.hex) {
        by_byte[static_cast<uint8_t>("0123456789abcdef"[number])] = next[value];
        by_byte[static_cast<uint8_t>("0123456789ABCDEF"[number])] = next[value];
      } else {
        by_byte[number] = next[value];
      }
    }
    return EdgesOf(by_byte);
  }
  static Edges EdgesOf(const std::array<uint32_t, 256>& by_byte) {
    Edges edges;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (by_byte[byte] == kNoState) continue;
      if (!edges.empty() && edges.back()[1] + 1 == byte && edges.back()[2] == by_byte[byte]) {
        edges.back()[1] = byte;
      } else {
        edges.push_back({byte, byte, by_byte[byte]});
      }
    }
    return edges;
  }

  // A state that takes what either takes.
  uint32_t Union(uint32_t a, uint32_t b) {
    if (a == kNoState || a == b) return b;
    if (b == kNoState) return a;
    std::array<uint32_t, 256> by_byte;
    by_byte.fill(kNoState);
    for (const uint32_t state : {a, b}) {
      const std::vector<Table::Edge> edges = table_.states[state].edges;
      for (const Table::Edge& edge : edges) {
        for (uint32_t byte = edge.low; byte <= edge.high; ++byte) {
          by_byte[byte] = Union(by_byte[byte], edge.next);
        }
      }
    }
    return Intern(EdgesOf(by_byte));
  }

  Table table_;
  std::map<Edges, uint32_t> known_;
  uint32_t start_ = kNoState;
};

}  // namespace

Table CharacterTable(const CharacterSet& set, Writing writing) {
  TableMaker maker;
  if (writing == Writing::kUtf8) {
    for (const Form& form : Utf8Forms()) maker.Add(set, form);
    return maker.Finish();
  }
  const CharacterSet as_it_is = set.Intersect(PlainInJson());
  for (const Form& form : Utf8Forms()) maker.Add(as_it_is, form);
  for (const Form& form : EscapeForms()) maker.Add(set, form);
  for (const ShortEscape& escape : kShortEscapes) {
    if (set.Has(escape.value)) maker.AddShortEscape(escape.letter);
  }
  return maker.Finish();
}

}  // namespace loopspec::grammar
