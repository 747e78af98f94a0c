// /metrics: what the server counted and what the engine says of itself, in Prometheus' text format.
// Where vLLM measures the same thing its name is used, so that dashboards carry over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "loopspec/engine.h"
#include "serve/http/server.h"
#include "serve/server/memory_use.h"
#include "serve/server/request_log.h"

namespace loopspec::serve {

class ServiceMetrics {
 public:
  ServiceMetrics();
  ~ServiceMetrics();

  // Counted at once, from any thread.
  void FirstToken(double seconds);
  void NextToken(double seconds);  // since the one before
  void Finished(const RequestRecord& record);

  struct Snapshot {
    std::string model;
    const EngineMetrics* engine = nullptr;  // null while the model loads
    HttpServerCounts http;
    int64_t log_lines_lost = 0;
    MemoryUse memory;
  };
  std::string Text(const Snapshot& snapshot) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace loopspec::serve
