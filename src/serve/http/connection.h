// One client's connection: requests one after the other, each with its answer.
//
// Everything here runs on the connection's strand, but for the Outbox, through which handlers on
// other threads hand over their answers, and for the handlers' callbacks, which have a strand of
// their own on other threads: no answer, however large, holds up the bytes of other connections.
// While an answer is being made the connection keeps reading, so that a client that hangs up is
// noticed at once.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serve/http/connection_table.h"
#include "serve/http/fair_queue.h"
#include "serve/http/server.h"

namespace loopspec::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;

using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Strand>;
using Timer = asio::basic_waitable_timer<std::chrono::steady_clock,
                                         asio::wait_traits<std::chrono::steady_clock>, Strand>;

// Room for bodies that are being received or parsed. A share may hold as much as is left free: one
// alone gets half, n of them 1/(n+1) each, and whoever comes next always finds as much.
class BodyBudget {
 public:
  explicit BodyBudget(size_t bytes) : bytes_(bytes) {}

  // False, and nothing taken, when the share has its part.
  bool Take(const std::string& share, size_t bytes) {
    const std::lock_guard lock(mutex_);
    size_t& held = held_[share];
    if (all_ + bytes > bytes_ || held + bytes > bytes_ - all_ - bytes) {
      if (held == 0) held_.erase(share);
      return false;
    }
    held += bytes;
    all_ += bytes;
    return true;
  }
  void Give(const std::string& share, size_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(share);
    found->second -= bytes;
    all_ -= bytes;
    if (found->second == 0) held_.erase(found);
  }
  size_t held() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  const size_t bytes_;
  mutable std::mutex mutex_;
  size_t all_ = 0;
  std::unordered_map<std::string, size_t> held_;  // by share, those that hold any
};

// Large bodies are worked on where the machine has time left: answers, streams and decoding go
// first.
inline constexpr int kLargeBodyNice = 10;

// What all connections share.
struct ServerContext {
  ServerContext(const HttpServerOptions& given, HttpHandler& given_handler)
      : options(given),
        handler(given_handler),
        io(given.io_threads),
        workers(static_cast<size_t>(given.workers)),
        answers(static_cast<size_t>(given.answer_threads)),
        large_workers(given.large_workers, kLargeBodyNice),
        bodies(std::max(given.body_budget, 2 * given.body_limit)),
        connections(ConnectionTable::MakeLimits(given.max_connections, given.max_per_address,
                                                given.trusted_proxies)) {}

  const HttpServerOptions options;
  HttpHandler& handler;
  asio::io_context io;
  asio::thread_pool workers, answers;
  FairQueue large_workers;
  BodyBudget bodies;
  ConnectionTable connections;

  std::atomic<int64_t> accepted{0}, refused{0};
  std::atomic<bool> draining{false};
  std::atomic<bool> answers_ended{false};
};

// Bytes of a body, counted against the budget of all bodies for as long as it is held.
class BodyLease {
 public:
  BodyLease(std::shared_ptr<ServerContext> context, std::string share)
      : context_(std::move(context)), share_(std::move(share)) {}
  ~BodyLease() { context_->bodies.Give(share_, held_); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  // False when there is no room for that many.
  bool Grow(size_t bytes) {
    if (bytes <= held_) return true;
    if (!context_->bodies.Take(share_, bytes - held_)) return false;
    held_ = bytes;
    return true;
  }

 private:
  std::shared_ptr<ServerContext> context_;
  const std::string share_;
  size_t held_ = 0;
};

// An answer on its way from a handler to the socket.
struct Outbox {
  std::mutex mutex;
  std::optional<HttpResponse> head;  // not yet written
  bool whole = false;                // the head's body is all there is
  std::string keep_alive;            // a piece for times of silence
  std::string body;                  // pieces that wait
  size_t writing = 0;                // bytes that the socket is at
  bool answered = false;             // Send or Begin was called
  bool ended = false;                // nothing more will come
  bool gone = false;                 // the client has
  bool was_full = false;             // `Write` said no and OnDrained is due
  bool flush_posted = false;
  ResponseWriter::Callback on_gone, on_drained;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `remote`: address and port; `address`: what it counts under in the table of connections.
  // `reserve`: it has a place of the reserve: one request is read, and answered with 503 unless the
  // reserve is for it.
  Connection(std::shared_ptr<ServerContext> context, Socket socket, std::string remote,
             std::string address, bool reserve);
  ~Connection();

  void Start();
  void Drain();  // close now if no request is being handled, else after its answer
  void Abort();  // close now
  void Evict();  // close unless a request is being handled

 private:
  friend class ConnectionWriter;
  enum class Phase { kIdle, kHeader, kBody, kAnswer, kLinger, kClosed };

  void NextRequest();
  void ReadHeader();
  void OnHeader(boost::system::error_code error);
  void ReadBody();
  void OnBody(boost::system::error_code error);
  void OnBadRequest(boost::system::error_code error);
  HttpRequest TakeHead();
  void Dispatch();

  void Watch();
  void OnWatch(boost::system::error_code error, size_t bytes);
  void Probe();

  void Answer(int status, std::string_view message);
  void AnswerWith(HttpResponse response);
  void Flush();
  void Frame(std::string& out);
  std::string HeadText(const HttpResponse& response, bool whole) const;
  void WriteOut();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void AnswerDone();

  void SetDeadline(std::chrono::milliseconds delay);
  void OnDeadline();
  void Linger();
  void Discard();
  void ClientGone();
  void Close();
  void RunAfter(std::chrono::milliseconds delay, std::shared_ptr<Outbox> outbox,
                ResponseWriter::Callback callback);
  void PostCallback(ResponseWriter::Callback callback);

  const std::shared_ptr<ServerContext> context_;
  Socket socket_;
  const asio::strand<asio::thread_pool::executor_type> callbacks_;
  Timer deadline_;
  uint64_t deadline_number_ = 0;
  std::vector<std::unique_ptr<Timer>> timers_;  // of the request at hand
  const std::string remote_, address_;
  const bool reserve_;
  bool met_ = false;  // the head of a request has come
  Phase phase_ = Phase::kIdle;

  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;  // at hand, from its headers on
  AdmitRequest admitted_;
  std::unique_ptr<BodyLease> lease_;
  unsigned version_ = 11;  // of the request at hand: 10 or 11
  bool head_only_ = false;
  bool keep_ = false;      // the connection serves another request afterwards
  bool watching_ = false;  // a read is under way while the answer is made
  bool end_read_ = false;  // the client sends nothing more; it may still be reading
  bool answer_done_ = false;

  std::shared_ptr<Outbox> outbox_;
  bool head_written_ = false;
  bool streaming_ = false;
  std::string out_;   // being written, from out_at_
  std::string rest_;  // comes after it: a whole body, which may be large
  size_t out_at_ = 0;
  bool writing_ = false;
  size_t discarded_ = 0;
};

}  // namespace loopspec::serve
