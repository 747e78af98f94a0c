// The HTTP/1.1 server: one acceptor, few threads, no thread per connection (Boost.Beast and Asio).
// TLS is the business of the proxy in front.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/message.h"

namespace loopspec::serve {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, or localhost
  int port = 8080;                 // 0: any free one
  int io_threads = 2;              // move bytes, and answer what takes no time
  int workers = 4;                 // run handlers: parse bodies, tokenize
  int large_workers = 2;       // the same for large bodies, divided between shares (fair_queue.h)
  int answer_threads = 2;      // run callbacks: write answers and stream events
  int max_connections = 4096;  // for more than these the oldest silent one is closed, else 503
  int max_per_address = 0;     // of one address or IPv6 /64; 0: a quarter, but at least 32
  std::vector<std::string> trusted_proxies = {};  // addresses without such a limit

  size_t header_limit = 16 << 10;   // bytes of request line and headers: 431
  size_t body_limit = 16 << 20;     // bytes of a body, chunked or not: 413
  size_t large_body = 256 << 10;    // bytes from which on a body is large
  size_t body_budget = 256 << 20;   // bytes of all bodies being received or parsed: 503
  size_t stream_buffer = 64 << 10;  // bytes that wait for a slow reader before `Write` says no
  int socket_buffer = 128 << 10;    // bytes that the kernel holds for it besides

  // From a connection to its first byte; less when more than half of the connections are taken.
  std::chrono::milliseconds first_byte_timeout{10'000};
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds header_timeout{10'000};  // from its first byte to its last: 408
  std::chrono::milliseconds body_timeout{60'000};    // from its first byte to its last: 408
  std::chrono::milliseconds write_timeout{
      30'000};                                   // a client that reads nothing for so long is gone
  std::chrono::milliseconds keep_alive{15'000};  // silence in a streamed answer
  std::chrono::milliseconds linger{2'000};       // for the client to close after the last answer
};

struct HttpServerCounts {
  int64_t open = 0;        // connections now
  int64_t accepted = 0;    // since the start
  int64_t refused = 0;     // because there were too many
  int64_t evicted = 0;     // closed while they asked for nothing, to make room for others
  int64_t body_bytes = 0;  // of bodies that are being received or parsed now
};

class HttpServer {
 public:
  // Listens at once; throws Error when that cannot be done. `handler` must outlive the server.
  HttpServer(const HttpServerOptions& options, HttpHandler& handler);
  ~HttpServer();  // Stop(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  HttpServerCounts counts() const;

  // Stops listening, closes idle connections, lets running answers finish for at most `limit`, then
  // closes the rest. Returns when nothing runs any more; true when nothing had to be cut off.
  bool Stop(std::chrono::milliseconds limit);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace loopspec::serve
