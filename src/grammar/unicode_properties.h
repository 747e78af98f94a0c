// The sets of characters that ECMA-262 writes as \p{...}: general categories, by the Unicode
// version of utf8proc, and the few other properties that follow from these or never change.
#pragma once

#include <optional>
#include <string_view>

#include "grammar/characters.h"

namespace loopspec::grammar {

// `name`: what stands between the braces, such as L, Uppercase_Letter, gc=Lu or White_Space; with
// the letters in their cases, as ECMA-262 has it. Nothing where the name is not known.
std::optional<CharacterSet> UnicodeProperty(std::string_view name);

}  // namespace loopspec::grammar
