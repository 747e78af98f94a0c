// One request of the API, from its headers to its answer.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "serve/server/service.h"

namespace loopspec::serve {

// A name that no other request has.
std::string RandomName();

struct Service::Call {
  HttpRequest request;
  std::shared_ptr<ResponseWriter> writer;
  std::string id;
  HttpHeaders headers;  // of every answer to it
  std::chrono::steady_clock::time_point start;
  bool logged = true;
  double weight = 1;  // of its share
  CallDefaults defaults;

  RequestRecord Record() const {
    RequestRecord record;
    record.id = id;
    record.method = request.method;
    record.path = request.path;
    record.remote = request.remote;
    return record;
  }
  // Tells whether anybody still waits for the answer, while the request is being read, and lets
  // others pass where that takes long.
  std::function<bool()> Cancelled(std::chrono::milliseconds limit) const {
    auto gone = std::make_shared<std::atomic<bool>>(false);
    writer->OnGone([gone] { *gone = true; });
    return [gone = std::move(gone), end = start + limit, yield = request.yield] {
      if (yield) yield();
      return *gone || std::chrono::steady_clock::now() > end;
    };
  }
};

}  // namespace loopspec::serve
