// What the HTTP server and its handlers exchange. Nothing here knows of sockets, models or JSON.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loopspec::serve {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;     // GET, POST ...
  std::string path;       // the target without its query, as it was sent
  std::string authority;  // the host of a target in absolute form; empty in every other
  unsigned version = 11;  // 10 or 11
  HttpHeaders headers;    // names as they were sent
  std::string body;       // whole, without transfer coding
  std::string remote;     // address and port of the client
  std::string share;      // who asks, among whom the server divides what it has: see AdmitRequest
  // For a handler that takes long over a large body to call now and then: lets others pass. Empty
  // where the body is small.
  std::function<void()> yield;

  // The value of a header, its name in any case; empty when it is not there.
  std::string_view Header(std::string_view name) const;
  // How often it was sent.
  size_t Count(std::string_view name) const;
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
  // Never waits. False: the client reads too slowly, `OnDrained` will say when to go on, or it is
  // gone. What is written to a slow one all the same is kept, so the memory used is up to the
  // caller.
  virtual bool Write(std::string_view piece) = 0;
  virtual void End() = 0;
  virtual bool full() const = 0;

  // Callbacks run one at a time on a thread of the server and must not wait; they may take their
  // time, since no other thread than those for callbacks is held up. At most one of each kind: a
  // later one replaces an earlier one. None runs after the end of the answer.
  // The client has hung up (or stopped reading for too long) before the answer was complete.
  virtual void OnGone(Callback callback) = 0;
  // Room again after `Write` returned false.
  virtual void OnDrained(Callback callback) = 0;
  // Runs in the same order as the callbacks, never beside one, and not after the client has gone.
  virtual void Post(Callback callback) = 0;
  // Like a callback, after a time; any number of them.
  virtual void After(std::chrono::milliseconds delay, Callback callback) = 0;
};

// What is said of a request when its headers have come, before any of its body is read.
struct AdmitRequest {
  std::optional<HttpResponse> refusal;  // the answer; the body is not read
  // Room for bodies is divided between shares, so that none can fill it alone.
  std::string share;
  double weight = 1;     // of the share
  bool at_once = false;  // takes no time: may be handled where nothing can hold it up
  bool keyed = false;    // a key was shown, and it is a good one
};

// What never became a request: bad syntax, limits, timeouts.
struct HttpFailure {
  int status = 400;
  std::string_view message;
  std::string_view method, path;  // empty where they are not known
  std::string_view remote;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // `head` has no body yet; its share is the client's address. Called on a thread that moves bytes
  // for all: must take no time.
  virtual AdmitRequest Admit(const HttpRequest& head) { return {std::nullopt, head.share}; }
  // Called on one of the server's worker threads; may take its time with reading the request, must
  // not wait for the answer. An exception becomes a 500.
  virtual void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) = 0;
  virtual HttpResponse ErrorResponse(const HttpFailure& failure) = 0;
};

}  // namespace loopspec::serve
