// The handler's end of a connection's answer.
#pragma once

#include <memory>

#include "serve/http/connection.h"

namespace loopspec::serve {

// Hands over to `connection` through `outbox`, from any thread.
std::shared_ptr<ResponseWriter> MakeConnectionWriter(std::shared_ptr<Connection> connection,
                                                     std::shared_ptr<Outbox> outbox);

}  // namespace loopspec::serve
