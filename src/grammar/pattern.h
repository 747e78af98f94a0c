// Regular expressions as people write them (ECMA-262, which JSON Schema names; what is in common
// with Python's `re` and PCRE) as languages over bytes.
#pragma once

#include <string_view>

#include "grammar/characters.h"
#include "grammar/regular.h"

namespace loopspec::grammar {

enum class Anchoring {
  kWhole,   // the pattern is the whole text, as in `guided_regex`
  kSearch,  // it is found somewhere in the text, as `pattern` in JSON Schema
};

// Throws Error naming what is wrong or cannot be enforced: backreferences, Unicode
// properties other than general categories and a few, lookahead whose end is not the pattern's,
// lookbehind and word boundaries within groups that do not stand at the pattern's edges.
Node ParsePattern(Regular& regular, std::string_view pattern, Writing writing, Anchoring anchoring);

}  // namespace loopspec::grammar
