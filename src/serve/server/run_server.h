// The server as a process: listens, loads, serves, and drains when it is told to end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "loopspec/engine.h"
#include "serve/http/server.h"
#include "serve/server/service.h"

namespace loopspec::serve {

struct RunOptions {
  HttpServerOptions http;
  ServiceOptions service;
  std::chrono::milliseconds drain_limit{30'000};  // for running requests after SIGTERM
  std::function<ApiKeys()> read_keys;  // again, after SIGHUP; throws Error when they are no good
};

// What is said of a server that others can reach and that asks for no key; empty: nothing.
std::string OpenWarning(const std::string& host, int port, const ApiKeys& keys);

using LoadEngine = std::function<std::shared_ptr<Engine>()>;

// Serves until SIGTERM or SIGINT. Listens before `load` is called, so that /health can say that the
// model is being loaded. The first signal drains: /health and new requests get a 503, running ones
// go on; a second signal, or the limit, ends those too. Call it from the main thread before others
// are started: it blocks the signals for all of them. SIGHUP opens the log's file again and reads
// the keys again; SIGUSR1 and SIGUSR2 are ignored. Throws what `load` throws.
// `on_listen` is told the port.
void RunServer(const RunOptions& options, const LoadEngine& load,
               const std::function<void(int port)>& on_listen = {});

}  // namespace loopspec::serve
