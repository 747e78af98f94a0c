// Automata that look for a mark in a text that is otherwise free.
#pragma once

#include <cstddef>
#include <string_view>

#include "grammar/regular.h"

namespace loopspec::grammar {

// Bytes of a mark at most.
inline constexpr size_t kLongestMark = 1024;

enum class FreeText {
  kBytes,       // any bytes
  kCharacters,  // valid UTF-8; the mark must be valid too
};

// The texts that end with their first `mark`. Those that begin with `but`, after white space or
// not, are left out.
Table UpToMark(std::string_view mark, FreeText text, std::string_view but = "");
// The texts in which `mark` does not occur, and which do not begin with `but`.
Table WithoutMark(std::string_view mark, FreeText text, std::string_view but = "");
// The mark alone. Unlike Regular::Text it is a table of its own, whose states are told from those
// of the same text elsewhere.
Table MarkAlone(std::string_view mark);

}  // namespace loopspec::grammar
