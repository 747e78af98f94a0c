#include "serve/http/connection_writer.h"

#include <boost/asio/post.hpp>

#include <utility>

namespace loopspec::serve {

class ConnectionWriter final : public ResponseWriter {
 public:
  ConnectionWriter(std::shared_ptr<Connection> connection, std::shared_ptr<Outbox> outbox)
      : connection_(std::move(connection)), outbox_(std::move(outbox)) {}

  ~ConnectionWriter() override {
    bool answered, ended;
    {
      const std::lock_guard lock(outbox_->mutex);
      answered = outbox_->answered;
      ended = outbox_->ended || outbox_->gone;
    }
    if (ended) return;
    if (answered) {
      connection_->Abort();  // half an answer: the client must not take it for a whole one
    } else {
      Send(connection_->context_->handler.ErrorResponse(
          {500, "The request was not answered.", "", "", connection_->remote_}));
    }
  }

  void Send(HttpResponse response) override {
    Update([&](Outbox& box) {
      if (box.answered) return;
      box.head = std::move(response);
      box.whole = box.answered = box.ended = true;
    });
  }

  void Begin(HttpResponse head, std::string keep_alive) override {
    Update([&](Outbox& box) {
      if (box.answered) return;
      box.body = std::move(head.body);
      box.head = std::move(head);
      box.keep_alive = std::move(keep_alive);
      box.answered = true;
    });
  }

  bool Write(std::string_view piece) override {
    bool room = false;  // nor has a client that is gone: a loop over Write comes to an end
    Update([&](Outbox& box) {
      if (!box.answered || box.ended) return;
      box.body.append(piece);
      room = box.body.size() + box.writing < connection_->context_->options.stream_buffer;
      if (!room) box.was_full = true;
    });
    return room;
  }

  void End() override {
    Update([](Outbox& box) {
      if (box.answered) box.ended = true;
    });
  }

  bool full() const override {
    const std::lock_guard lock(outbox_->mutex);
    return outbox_->body.size() + outbox_->writing >= connection_->context_->options.stream_buffer;
  }

  void OnGone(Callback callback) override {
    const std::lock_guard lock(outbox_->mutex);
    if (outbox_->gone) {
      connection_->PostCallback(std::move(callback));
    } else if (!outbox_->ended) {
      outbox_->on_gone.swap(callback);
    }
  }

  void OnDrained(Callback callback) override {
    const std::lock_guard lock(outbox_->mutex);
    if (!outbox_->gone && !outbox_->ended) outbox_->on_drained.swap(callback);
  }

  void Post(Callback callback) override {
    {
      const std::lock_guard lock(outbox_->mutex);
      if (outbox_->gone || outbox_->ended) return;
    }
    connection_->PostCallback([box = outbox_, callback = std::move(callback)] {
      {
        const std::lock_guard lock(box->mutex);
        if (box->gone || box->ended) return;
      }
      callback();
    });
  }

  void After(std::chrono::milliseconds delay, Callback callback) override {
    asio::post(connection_->socket_.get_executor(), [self = connection_, delay, box = outbox_,
                                                     callback = std::move(callback)]() mutable {
      self->RunAfter(delay, std::move(box), std::move(callback));
    });
  }

 private:
  // Changes the outbox and sees to it that the connection looks at it, once for many changes.
  template <typename F>
  void Update(F change) {
    const std::lock_guard lock(outbox_->mutex);
    if (outbox_->gone) return;
    change(*outbox_);
    if (std::exchange(outbox_->flush_posted, true)) return;
    asio::post(connection_->socket_.get_executor(), [self = connection_, box = outbox_] {
      {
        const std::lock_guard inner(box->mutex);
        box->flush_posted = false;
      }
      if (self->outbox_ == box) self->Flush();
    });
  }

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Outbox> outbox_;
};

std::shared_ptr<ResponseWriter> MakeConnectionWriter(std::shared_ptr<Connection> connection,
                                                     std::shared_ptr<Outbox> outbox) {
  return std::make_shared<ConnectionWriter>(std::move(connection), std::move(outbox));
}

}  // namespace loopspec::serve
