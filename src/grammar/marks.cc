#include "grammar/marks.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/trimmed.h"

namespace loopspec::grammar {
namespace {

struct Utf8Edge {
  uint8_t from, low, high, to;
};
// Valid UTF-8: in state 0 between two characters, in the others within one.
constexpr Utf8Edge kUtf8[] = {
    {0, 0x00, 0x7F, 0}, {0, 0xC2, 0xDF, 1}, {0, 0xE0, 0xE0, 2}, {0, 0xE1, 0xEC, 3},
    {0, 0xED, 0xED, 4}, {0, 0xEE, 0xEF, 3}, {0, 0xF0, 0xF0, 5}, {0, 0xF1, 0xF3, 6},
    {0, 0xF4, 0xF4, 7}, {1, 0x80, 0xBF, 0}, {2, 0xA0, 0xBF, 1}, {3, 0x80, 0xBF, 1},
    {4, 0x80, 0x9F, 1}, {5, 0x90, 0xBF, 3}, {6, 0x80, 0xBF, 3}, {7, 0x80, 0x8F, 3},
};
constexpr Utf8Edge kAnyBytes[] = {{0, 0x00, 0xFF, 0}};

// Before each byte of the mark: how much of the mark the text ends with when that byte does not
// come (Knuth, Morris and Pratt).
std::vector<size_t> Fallbacks(std::string_view mark) {
  std::vector<size_t> fallback(mark.size() + 1, 0);
  for (size_t i = 1, k = 0; i < mark.size(); ++i) {
    while (k > 0 && mark[i] != mark[k]) k = fallback[k];
    if (mark[i] == mark[k]) ++k;
    fallback[i + 1] = k;
  }
  return fallback;
}

// `without`: the texts that never come to the end of the mark; else those that end there.
Table Search(std::string_view mark, FreeText text, std::string_view but, bool without) {
  const std::vector<size_t> fallback = Fallbacks(mark);
  const std::span<const Utf8Edge> characters =
      text == FreeText::kBytes ? std::span<const Utf8Edge>(kAnyBytes) : kUtf8;
  // How much of the mark the text ends with, where it stands within a character, and how much of
  // `but` it is so far, which is all of it when it can no longer be its beginning.
  using Place = std::tuple<size_t, uint8_t, size_t>;
  std::map<Place, uint32_t> numbers{{{0, 0, 0}, 0}};
  std::vector<Place> places{{0, 0, 0}};
  Table table;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [begun, within, start] = places[i];
    Table::State& state = table.states.emplace_back();
    state.accepts = without ? within == 0 : begun == mark.size();
    if (begun == mark.size()) continue;
    for (const Utf8Edge& edge : characters) {
      if (edge.from != within) continue;
      for (int byte = edge.low; byte <= edge.high; ++byte) {
        size_t k = begun;
        while (k > 0 && static_cast<uint8_t>(mark[k]) != byte) k = fallback[k];
        if (static_cast<uint8_t>(mark[k]) == byte) ++k;
        if (without && k == mark.size()) continue;
        size_t started = but.size();
        if (start < but.size() && static_cast<uint8_t>(but[start]) == byte) {
          started = start + 1;
          if (started == but.size()) continue;
        } else if (start == 0 && IsWhite(byte)) {
          started = 0;
        }
        const auto [found, added] =
            numbers.emplace(Place{k, edge.to, started}, static_cast<uint32_t>(places.size()));
        if (added) places.push_back(found->first);
        auto& edges = state.edges;
        if (!edges.empty() && edges.back().next == found->second && edges.back().high + 1 == byte) {
          edges.back().high = static_cast<uint8_t>(byte);
        } else {
          const auto only = static_cast<uint8_t>(byte);
          edges.push_back({only, only, found->second});
        }
      }
    }
  }
  return table;
}

}  // namespace

Table UpToMark(std::string_view mark, FreeText text, std::string_view but) {
  return Search(mark, text, but, false);
}

Table WithoutMark(std::string_view mark, FreeText text, std::string_view but) {
  return Search(mark, text, but, true);
}

Table MarkAlone(std::string_view mark) {
  Table table;
  table.states.resize(mark.size() + 1);
  for (size_t i = 0; i < mark.size(); ++i) {
    const auto byte = static_cast<uint8_t>(mark[i]);
    table.states[i].edges.push_back({byte, byte, static_cast<uint32_t>(i + 1)});
  }
  table.states.back().accepts = true;
  return table;
}

}  // namespace loopspec::grammar
