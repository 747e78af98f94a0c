#include "quantize/calibration_texts.h"

#include <algorithm>
#include <string_view>

namespace loopspec {
namespace {

// Passages, with an empty line between two.
constexpr std::string_view kStories =
#include "quantize/texts/stories.inc"
    ;
constexpr std::string_view kProblems =
#include "quantize/texts/problems.inc"
    ;
constexpr std::string_view kProse =
#include "quantize/texts/prose.inc"
    ;
constexpr std::string_view kDialogue =
#include "quantize/texts/dialogue.inc"
    ;
constexpr std::string_view kNotes =
#include "quantize/texts/notes.inc"
    ;

std::vector<std::string> Passages(std::string_view text) {
  text.remove_prefix(1);  // the line ends after R"( and before )" are no text
  text.remove_suffix(1);
  std::vector<std::string> passages;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    passages.emplace_back(text.substr(begin, end - begin));
    begin = end + 2;
  }
  return passages;
}

}  // namespace

std::vector<std::string> CalibrationPassages() {
  std::vector<std::vector<std::string>> kinds;
  for (const std::string_view text : {kStories, kProblems, kProse, kDialogue})
    kinds.push_back(Passages(text));
  // The next passage is always of the kind of which the smallest share was taken.
  std::vector<std::string> mixed;
  std::vector<size_t> taken(kinds.size());
  for (;;) {
    size_t next = 0;
    for (size_t kind = 1; kind < kinds.size(); ++kind) {
      if (taken[kind] * kinds[next].size() < taken[next] * kinds[kind].size()) next = kind;
    }
    if (taken[next] == kinds[next].size()) return mixed;
    mixed.push_back(std::move(kinds[next][taken[next]++]));
  }
}

std::vector<std::string> JudgingPassages() {
  return Passages(kNotes);
}

}  // namespace loopspec
