// In place of grammar/unicode_properties.cc, which needs utf8proc.
#include "grammar/unicode_properties.h"

namespace loopspec::grammar {

std::optional<CharacterSet> UnicodeProperty(std::string_view) {
  return std::nullopt;
}

}  // namespace loopspec::grammar
