// A conversation as JSON that is parsed already, for callers who hold it in that form.
#pragma once

#include "base/json_fwd.h"

namespace loopspec {

struct ChatJson {
  const OrderedJson& messages;   // a list of {role, content, ...}
  const OrderedJson& arguments;  // an object: more variables for the chat template
};

}  // namespace loopspec
