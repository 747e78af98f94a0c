// Text for JSON.
#pragma once

#include <string>
#include <string_view>

namespace loopspec {

// Text as it stands between the quotes of a JSON string, with escapes where they are needed only.
// Bytes that are no UTF-8 stay as they are, so that a text may come in pieces.
std::string EscapedJson(std::string_view text);

}  // namespace loopspec
