// Sets of many characters, such as the letters of Unicode, as an automaton over bytes. Places from
// which the same may follow are one state, so that it stays small.
#pragma once

#include "grammar/characters.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

// One character of the set, which must have some.
Table CharacterTable(const CharacterSet& set, Writing writing);

}  // namespace loopspec::grammar
