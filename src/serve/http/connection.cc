#include "serve/http/connection.h"

#include <fmt/format.h>
#include <netinet/tcp.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/read.hpp>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/http/connection_writer.h"

namespace loopspec::serve {
namespace {

using boost::system::error_code;

constexpr size_t kReadAhead = 64 << 10;      // bytes of pipelined requests that may wait
constexpr size_t kDiscardLimit = 64u << 20;  // bytes read from a client that is being closed
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

void SetUp(Socket& socket, const HttpServerOptions& options) {
  error_code ignored;
  // The kernel would take megabytes for a client that does not read, and tell us of its reading
  // only when a third of them is free.
  socket.set_option(asio::socket_base::send_buffer_size(options.socket_buffer), ignored);
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  // A lost machine never says goodbye: TCP asks, so that its request does not run for nobody.
  const int fd = socket.native_handle();
  const auto set = [fd](int option, int value) {
    setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, 30);
  set(TCP_KEEPINTVL, 10);
  set(TCP_KEEPCNT, 3);
}

std::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerContext> context, Socket socket, std::string remote,
                       std::string address, bool reserve)
    : context_(std::move(context)),
      socket_(std::move(socket)),
      callbacks_(asio::make_strand(context_->answers)),
      deadline_(socket_.get_executor()),
      remote_(std::move(remote)),
      address_(std::move(address)),
      reserve_(reserve),
      buffer_(context_->options.header_limit + kReadAhead) {}

Connection::~Connection() = default;

void Connection::Start() {
  context_->connections.Add(shared_from_this(), address_);
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    SetUp(self->socket_, self->context_->options);
    self->NextRequest();
  });
}

void Connection::Drain() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::kIdle) self->Close();
  });
}

void Connection::Abort() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->ClientGone(); });
}

void Connection::Evict() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::kIdle || self->phase_ == Phase::kHeader) self->Close();
  });
}

// ---- Reading a request ----

void Connection::NextRequest() {
  outbox_.reset();
  lease_.reset();
  parser_.reset();
  request_ = {};
  head_written_ = streaming_ = answer_done_ = false;
  if (context_->draining) return Linger();
  if (buffer_.size() > 0) return ReadHeader();
  if (end_read_) return Close();
  phase_ = Phase::kIdle;
  buffer_.shrink_to_fit();
  if (met_) context_->connections.Set(this, ConnectionTable::Standing::kIdle, false);
  SetDeadline(met_ ? context_->options.idle_timeout
                   : context_->connections.FirstByteTime(context_->options.first_byte_timeout));
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
    if (self->phase_ != Phase::kIdle) return;
    if (error) return self->Close();
    self->ReadHeader();
  });
}

void Connection::ReadHeader() {
  phase_ = Phase::kHeader;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(context_->options.header_limit));
  parser_->body_limit(context_->options.body_limit);
  SetDeadline(context_->options.header_timeout);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnHeader(error); });
}

void Connection::OnHeader(error_code error) {
  if (phase_ == Phase::kClosed) return;
  if (error) return OnBadRequest(error);
  const auto& message = parser_->get();
  version_ = message.version();
  head_only_ = message.method() == http::verb::head;
  if (message.count(http::field::transfer_encoding) > 0 && !parser_->chunked()) {
    return Answer(501, fmt::format("Transfer-Encoding is {}, expected chunked.",
                                   View(message[http::field::transfer_encoding])));
  }
  request_ = TakeHead();
  admitted_ = context_->handler.Admit(request_);
  met_ = true;
  context_->connections.Set(this, ConnectionTable::Standing::kBusy, admitted_.keyed);
  if (reserve_ && !admitted_.at_once && !admitted_.keyed) {
    ++context_->refused;
    return Answer(503, "The server has as many connections as it takes; try again later.");
  }
  if (admitted_.refusal) return AnswerWith(*std::exchange(admitted_.refusal, std::nullopt));
  request_.share = admitted_.share;
  if (parser_->is_done()) return Dispatch();

  phase_ = Phase::kBody;
  lease_ = std::make_unique<BodyLease>(context_, admitted_.share);
  SetDeadline(context_->options.body_timeout);
  const auto expect = message[http::field::expect];
  if (expect.empty() || version_ < 11) return ReadBody();
  if (!boost::beast::iequals(expect, "100-continue")) {
    return Answer(417, fmt::format("Expect is {}, expected 100-continue.", View(expect)));
  }
  asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](error_code failed, size_t) {
                      if (self->phase_ == Phase::kClosed) return;
                      if (failed) return self->OnBadRequest(failed);
                      self->ReadBody();
                    });
}

void Connection::ReadBody() {
  http::async_read_some(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnBody(error); });
}

void Connection::OnBody(error_code error) {
  if (phase_ == Phase::kClosed) return;
  if (error) return OnBadRequest(error);
  if (!lease_->Grow(parser_->get().body().size())) {
    return Answer(503, "The server is receiving as much as it can hold for you; try again later.");
  }
  if (parser_->is_done()) return Dispatch();
  ReadBody();
}

// A request that could not be read: an answer where there is somebody to read it.
void Connection::OnBadRequest(error_code error) {
  const HttpServerOptions& options = context_->options;
  if (error == asio::error::operation_aborted) {
    // The deadline cancelled the read.
    return Answer(408, phase_ == Phase::kBody
                           ? fmt::format("The body did not arrive within {} ms.",
                                         options.body_timeout.count())
                           : fmt::format("The headers did not arrive within {} ms.",
                                         options.header_timeout.count()));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Answer(431, fmt::format("The request line and headers have more than {} bytes.",
                                   options.header_limit));
  }
  if (error == http::error::body_limit) {
    return Answer(413, fmt::format("The body has more than {} bytes.", options.body_limit));
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    return Answer(400, fmt::format("Not an HTTP/1.1 request: {}.", error.message()));
  }
  Close();
}

// The request without its body.
HttpRequest Connection::TakeHead() {
  const auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(View(message.method_string()));
  std::string_view target = View(message.target());
  if (target.substr(0, 7) == "http://") {  // the absolute form, as it is sent to proxies
    const size_t slash = target.find('/', 7);
    request.authority = std::string(target.substr(7, std::min(slash, target.size()) - 7));
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  request.path = std::string(target.substr(0, target.find('?')));
  request.version = version_;
  for (const auto& field : message) {
    request.headers.emplace_back(View(field.name_string()), View(field.value()));
  }
  request.remote = remote_;
  request.share = address_;
  return request;
}

void Connection::Dispatch() {
  phase_ = Phase::kAnswer;
  SetDeadline(std::chrono::milliseconds(0));
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  keep_ = message.keep_alive() && !reserve_;
  HttpRequest request = std::move(request_);
  request.body = std::move(message.body());

  outbox_ = std::make_shared<Outbox>();
  std::shared_ptr<ResponseWriter> writer = MakeConnectionWriter(shared_from_this(), outbox_);
  const size_t bytes = request.body.size();
  const bool large = bytes >= context_->options.large_body;
  if (large) {
    request.yield = [context = context_.get(), share = admitted_.share, bytes] {
      context->large_workers.Yield(share, bytes);
    };
  }
  auto handle = [context = context_, request = std::move(request), writer = std::move(writer),
                 lease = std::shared_ptr<BodyLease>(std::move(lease_))]() mutable {
    try {
      context->handler.Handle(std::move(request), std::move(writer));
    } catch (const std::exception& error) {
      LogWarning("a request failed: {}", error.what());  // the writer's destructor answers
    }
  };
  if (admitted_.at_once && !large) {
    handle();
  } else if (large) {
    context_->large_workers.Post(admitted_.share, admitted_.weight, bytes, std::move(handle));
  } else {
    asio::post(context_->workers, std::move(handle));
  }
  Watch();
}

// ---- Noticing a client that hangs up ----

void Connection::Watch() {
  if (watching_ || end_read_ || phase_ != Phase::kAnswer || buffer_.size() >= kReadAhead) return;
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(4096),
      [self = shared_from_this()](error_code error, size_t bytes) { self->OnWatch(error, bytes); });
}

void Connection::OnWatch(error_code error, size_t bytes) {
  watching_ = false;
  if (phase_ == Phase::kClosed) return;
  buffer_.commit(bytes);  // the next request, sent ahead
  if (error == asio::error::eof) {
    end_read_ = true;
    if (!answer_done_) return Probe();
  } else if (error && error != asio::error::operation_aborted) {
    return ClientGone();
  }
  if (answer_done_) return keep_ ? NextRequest() : Linger();
  Watch();
}

// The client has sent its last byte: it may have closed only its own direction and wait for the
// answer, or be gone. A closed socket answers whatever we send with a reset. In a stream we send
// the piece for silent times, before an answer an interim response, which every HTTP/1.1 client
// ignores. HTTP/1.0 has none; there such a client counts as gone.
void Connection::Probe() {
  if (!streaming_ && !writing_ && version_ < 11) return ClientGone();
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](error_code error) {
    if (!error) self->ClientGone();
  });
  if (writing_) return;  // what is being written asks as well
  if (streaming_) {
    const std::lock_guard lock(outbox_->mutex);
    if (!outbox_->ended) outbox_->body += outbox_->keep_alive;
  } else if (!head_written_) {
    out_ = kContinue;
    return WriteOut();
  }
  Flush();
}

// ---- Deadlines and the end ----

// Zero: none.
void Connection::SetDeadline(std::chrono::milliseconds delay) {
  ++deadline_number_;
  if (delay.count() == 0) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_after(delay);
  deadline_.async_wait([self = shared_from_this(), number = deadline_number_](error_code error) {
    if (!error && number == self->deadline_number_) self->OnDeadline();
  });
}

void Connection::OnDeadline() {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kLinger:
      return Close();
    case Phase::kHeader:
    case Phase::kBody: {
      error_code ignored;
      socket_.cancel(ignored);  // the read's completion answers
      return;
    }
    case Phase::kAnswer: {
      if (writing_) return ClientGone();
      {
        const std::lock_guard lock(outbox_->mutex);
        if (streaming_ && !outbox_->ended) outbox_->body += outbox_->keep_alive;
      }
      return Flush();
    }
    case Phase::kClosed:
      return;
  }
}

// Closing at once would reset the connection while the client still sends, and it might never read
// the answer. So only our direction is closed, and what still comes is thrown away.
void Connection::Linger() {
  if (end_read_) return Close();
  phase_ = Phase::kLinger;
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) return Close();
  buffer_.clear();
  SetDeadline(context_->options.linger);
  Discard();
}

void Connection::Discard() {
  socket_.async_read_some(buffer_.prepare(16 << 10),
                          [self = shared_from_this()](error_code error, size_t bytes) {
                            if (self->phase_ == Phase::kClosed) return;
                            self->discarded_ += bytes;
                            if (error || self->discarded_ > kDiscardLimit) return self->Close();
                            self->Discard();
                          });
}

void Connection::ClientGone() {
  if (phase_ == Phase::kClosed) return;
  // Callbacks may hold the last reference to the writer, whose destructor takes the outbox's lock.
  ResponseWriter::Callback gone, drained;
  bool ended = false;
  if (outbox_) {
    const std::lock_guard lock(outbox_->mutex);
    outbox_->gone = true;
    outbox_->body.clear();
    gone = std::move(outbox_->on_gone);
    drained = std::move(outbox_->on_drained);
    outbox_->on_gone = outbox_->on_drained = nullptr;
    ended = outbox_->ended;
  }
  if (gone && !ended) PostCallback(std::move(gone));
  // The other one goes with it, never before it: they may hold each other's state.
  if (drained) PostCallback([drained = std::move(drained)] {});
  Close();
}

void Connection::PostCallback(ResponseWriter::Callback callback) {
  // At the very end nobody runs them, and what waited would hold the context that holds it.
  if (!context_->answers_ended) asio::post(callbacks_, std::move(callback));
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  SetDeadline(std::chrono::milliseconds(0));
  timers_.clear();
  error_code ignored;
  socket_.close(ignored);
  context_->connections.Remove(this);
}

void Connection::RunAfter(std::chrono::milliseconds delay, std::shared_ptr<Outbox> outbox,
                          ResponseWriter::Callback callback) {
  if (outbox_ != outbox || answer_done_ || phase_ != Phase::kAnswer) return;
  timers_.push_back(std::make_unique<Timer>(socket_.get_executor()));
  timers_.back()->expires_after(delay);
  timers_.back()->async_wait([self = shared_from_this(), box = std::move(outbox),
                              callback = std::move(callback)](error_code error) {
    if (error || self->outbox_ != box || self->phase_ != Phase::kAnswer) return;
    self->PostCallback([box, callback] {
      {
        const std::lock_guard lock(box->mutex);
        if (box->gone || box->ended) return;
      }
      callback();
    });
  });
}

}  // namespace loopspec::serve
