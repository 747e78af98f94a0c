// Text for HTML and XML.
#pragma once

#include <string>
#include <string_view>

namespace loopspec {

// & < > " and ' as entities, in the form that Jinja's `escape` writes.
std::string EscapeHtml(std::string_view text);

}  // namespace loopspec
