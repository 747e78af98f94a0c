// A connection's writing: the answer in HTTP's framing, as its handler makes it.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/write.hpp>

#include <array>
#include <sstream>
#include <utility>

#include "serve/http/connection.h"

namespace loopspec::serve {
namespace {

using boost::system::error_code;

}  // namespace

// An answer of the server's own, after which the connection is closed.
void Connection::Answer(int status, std::string_view message) {
  AnswerWith(
      context_->handler.ErrorResponse({status, message, request_.method, request_.path, remote_}));
}

void Connection::AnswerWith(HttpResponse response) {
  phase_ = Phase::kAnswer;
  parser_.reset();
  lease_.reset();
  keep_ = head_only_ = false;
  head_written_ = streaming_ = answer_done_ = false;
  outbox_ = std::make_shared<Outbox>();
  outbox_->head = std::move(response);
  outbox_->whole = outbox_->answered = outbox_->ended = true;
  Flush();
}

void Connection::Flush() {
  if (phase_ != Phase::kAnswer || writing_ || answer_done_) return;
  Frame(out_);
  if (!out_.empty()) return WriteOut();
  bool ended;
  {
    const std::lock_guard lock(outbox_->mutex);
    ended = outbox_->ended;
  }
  if (ended) return AnswerDone();
  SetDeadline(streaming_ ? context_->options.keep_alive : std::chrono::milliseconds(0));
}

// Moves what waits in the outbox to `out`, in HTTP's framing.
void Connection::Frame(std::string& out) {
  const std::lock_guard lock(outbox_->mutex);
  Outbox& box = *outbox_;
  if (box.head) {
    if (context_->draining || (!box.whole && version_ < 11)) keep_ = false;
    out = HeadText(*box.head, box.whole);
    if (box.whole && !head_only_) rest_ = std::move(box.head->body);
    streaming_ = !box.whole;
    head_written_ = true;
    box.head.reset();
  }
  const bool chunked = version_ >= 11;
  if (streaming_ && !box.body.empty() && !head_only_) {
    if (chunked) out += fmt::format("{:x}\r\n", box.body.size());
    out += box.body;
    if (chunked) out += "\r\n";
  }
  box.body.clear();
  if (streaming_ && box.ended) {
    if (chunked && !head_only_) out += "0\r\n\r\n";
    streaming_ = false;
  }
  box.writing = out.size() + rest_.size();
}

std::string Connection::HeadText(const HttpResponse& response, bool whole) const {
  http::response<http::empty_body> message(http::int_to_status(response.status), version_);
  message.result(static_cast<unsigned>(response.status));
  message.set(http::field::server, "loopspec");
  message.set(http::field::date,
              fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))));
  for (const auto& [name, value] : response.headers) message.set(name, value);
  const bool bodiless = response.status == 204 || response.status == 304;
  if (!bodiless) message.set(http::field::content_type, response.content_type);
  if (!whole && version_ >= 11) {
    message.set(http::field::transfer_encoding, "chunked");
  } else if (whole && !bodiless) {
    message.set(http::field::content_length, std::to_string(response.body.size()));
  }
  message.keep_alive(keep_);
  std::ostringstream text;
  text << message.base();
  return text.str();
}

void Connection::WriteOut() {
  writing_ = true;
  SetDeadline(context_->options.write_timeout);
  const std::array<asio::const_buffer, 2> pieces = {
      asio::buffer(out_) + out_at_,
      asio::buffer(rest_) + (out_at_ > out_.size() ? out_at_ - out_.size() : 0)};
  socket_.async_write_some(pieces, [self = shared_from_this()](error_code error, size_t bytes) {
    self->OnWritten(error, bytes);
  });
}

void Connection::OnWritten(error_code error, size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (error) {
    writing_ = false;
    return ClientGone();
  }
  out_at_ += bytes;
  if (out_at_ < out_.size() + rest_.size()) return WriteOut();
  writing_ = false;
  out_at_ = 0;
  out_.clear();
  rest_ = std::string();
  if (out_.capacity() > 4 * context_->options.stream_buffer) out_.shrink_to_fit();
  SetDeadline(std::chrono::milliseconds(0));

  ResponseWriter::Callback drained;
  {
    const std::lock_guard lock(outbox_->mutex);
    outbox_->writing = 0;
    if (outbox_->was_full && outbox_->body.size() < context_->options.stream_buffer / 2) {
      outbox_->was_full = false;
      drained = outbox_->on_drained;
    }
  }
  if (drained) {
    PostCallback([box = outbox_, drained = std::move(drained)] {
      {
        const std::lock_guard lock(box->mutex);
        if (box->gone || box->ended) return;
      }
      drained();
    });
  }
  Flush();
}

void Connection::AnswerDone() {
  answer_done_ = true;
  timers_.clear();
  SetDeadline(std::chrono::milliseconds(0));
  // The callbacks hold the handler's state, which may be large, and may hold the writer, whose
  // destructor takes the outbox's lock.
  ResponseWriter::Callback gone, drained;
  {
    const std::lock_guard lock(outbox_->mutex);
    gone = std::move(outbox_->on_gone);
    drained = std::move(outbox_->on_drained);
    outbox_->on_gone = outbox_->on_drained = nullptr;
  }
  PostCallback([gone = std::move(gone), drained = std::move(drained)] {});
  if (watching_) {
    error_code ignored;
    socket_.cancel(ignored);  // OnWatch goes on
  } else if (keep_) {
    NextRequest();
  } else {
    Linger();
  }
}

}  // namespace loopspec::serve
