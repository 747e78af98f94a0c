// What the HTTP server and its handlers exchange. Nothing here knows of sockets, models or JSON.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loopspec::serve {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // GET, POST ...
  std::string path;     // the target without its query, as it was sent
  HttpHeaders headers;  // names as they were sent
  std::string body;     // whole, without transfer coding
  std::string remote;   // address and port of the client

  // The value of a header, its name in any case; empty when it is not there.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // besides Content-Type, Content-Length, Connection, Date and Server
  std::string body;
};

// Where the answer to one request goes. Any thread may call it; calls after the end or after the
// client has gone do nothing. When the last reference goes and no answer was given, the client gets
// a 500.
class ResponseWriter {
 public:
  using Callback = std::function<void()>;
  virtual ~ResponseWriter() = default;

  // The whole answer at once.
  virtual void Send(HttpResponse response) = 0;

  // An answer in pieces: Begin, Write ..., End. The body of `head` is the first piece.
  // `keep_alive` is sent now and then while nothing else is, so that proxies do not lose patience
  // and a lost client is noticed; readers must be able to ignore it.
  virtual void Begin(HttpResponse head, std::string keep_alive) = 0;
  // Never waits. False: the client reads too slowly, `OnDrained` will say when to go on. What is
  // written all the same is kept, so the memory used is up to the caller.
  virtual bool Write(std::string_view piece) = 0;
  virtual void End() = 0;
  virtual bool full() const = 0;

  // Callbacks run one at a time on a thread of the server and must not wait. At most one of each
  // kind: a later one replaces an earlier one. None runs after the end of the answer.
  // The client has hung up (or stopped reading for too long) before the answer was complete.
  virtual void OnGone(Callback callback) = 0;
  // Room again after `Write` returned false.
  virtual void OnDrained(Callback callback) = 0;
  // Runs in the same order as the callbacks, never beside one, and not after the client has gone.
  virtual void Post(Callback callback) = 0;
  // Like a callback, after a time; any number of them.
  virtual void After(std::chrono::milliseconds delay, Callback callback) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called on one of the server's worker threads; may take its time with reading the request, must
  // not wait for the answer. An exception becomes a 500.
  virtual void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) = 0;
  // The answer to what never became a request: bad syntax, limits, timeouts.
  virtual HttpResponse ErrorResponse(int status, std::string_view message) = 0;
};

}  // namespace loopspec::serve
