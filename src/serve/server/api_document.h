// /openapi.json of the whole server.
#pragma once

#include "base/json.h"
#include "serve/server/service.h"

namespace loopspec::serve {

OrderedJson ApiDocument(const ServiceCore& core);

}  // namespace loopspec::serve
