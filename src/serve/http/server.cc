#include "serve/http/server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/connection.h"

namespace loopspec::serve {
namespace {

using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Strand>;

// Connections beyond the limit that may be told so at the same time; more are just closed.
constexpr int kRefusalsAtOnce = 128;

asio::ip::tcp::endpoint ListenOn(const HttpServerOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    Fail("the port is {}, expected 0 to 65535", options.port);
  }
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error) Fail("the host is {}, expected an address such as 127.0.0.1 or 0.0.0.0", options.host);
  return {address, static_cast<uint16_t>(options.port)};
}

}  // namespace

struct HttpServer::Parts {
  Parts(const HttpServerOptions& options, HttpHandler& handler)
      : context(std::make_shared<ServerContext>(options, handler)),
        acceptor(asio::make_strand(context->io)),
        retry(acceptor.get_executor()),
        work(asio::make_work_guard(context->io)) {}

  void Listen() {
    const HttpServerOptions& options = context->options;
    const asio::ip::tcp::endpoint endpoint = ListenOn(options);
    error_code error;
    const auto check = [&] {
      if (error) Fail("cannot listen on {}:{}: {}", options.host, options.port, error.message());
    };
    acceptor.open(endpoint.protocol(), error);
    check();
    acceptor.set_option(asio::socket_base::reuse_address(true), error);
    check();
    acceptor.bind(endpoint, error);
    check();
    acceptor.listen(1024, error);
    check();
    port = acceptor.local_endpoint().port();
  }

  void Accept() {
    acceptor.async_accept(asio::make_strand(context->io), [this](error_code error, Socket socket) {
      if (stopping || error == asio::error::operation_aborted) return;
      if (error) {
        // Out of descriptors, most likely: those of others will come back.
        LogWarning("cannot accept a connection: {}", error.message());
        retry.expires_after(std::chrono::milliseconds(100));
        retry.async_wait([this](error_code failed) {
          if (!failed && !stopping) Accept();
        });
        return;
      }
      Take(std::move(socket));
      Accept();
    });
  }

  void Take(Socket socket) {
    int64_t open;
    {
      const std::lock_guard lock(context->mutex);
      open = static_cast<int64_t>(context->connections.size());
    }
    ++context->accepted;
    const bool refused = open >= context->options.max_connections;
    if (refused) ++context->refused;
    if (open >= context->options.max_connections + kRefusalsAtOnce) return;
    std::make_shared<Connection>(context, std::move(socket), refused)->Start();
  }

  template <typename F>
  void ForEachConnection(F visit) {
    std::vector<std::shared_ptr<Connection>> alive;
    {
      const std::lock_guard lock(context->mutex);
      for (const auto& [key, connection] : context->connections) {
        if (auto held = connection.lock()) alive.push_back(std::move(held));
      }
    }
    for (const auto& connection : alive) visit(*connection);
  }

  bool WaitUntilEmpty(std::chrono::milliseconds limit) {
    std::unique_lock lock(context->mutex);
    return context->changed.wait_for(lock, limit, [&] { return context->connections.empty(); });
  }

  const std::shared_ptr<ServerContext> context;
  Acceptor acceptor;
  Timer retry;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
  int port = 0;
  std::atomic<bool> stopping{false};
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler)
    : parts_(std::make_unique<Parts>(options, handler)) {
  parts_->Listen();
  parts_->Accept();
  for (int i = 0; i < options.io_threads; ++i) {
    parts_->threads.emplace_back([context = parts_->context] { context->io.run(); });
  }
}

HttpServer::~HttpServer() {
  Stop(std::chrono::milliseconds(0));
}

int HttpServer::port() const {
  return parts_->port;
}

HttpServerCounts HttpServer::counts() const {
  ServerContext& context = *parts_->context;
  HttpServerCounts counts;
  counts.accepted = context.accepted;
  counts.refused = context.refused;
  counts.body_bytes = static_cast<int64_t>(context.bodies.held());
  const std::lock_guard lock(context.mutex);
  counts.open = static_cast<int64_t>(context.connections.size());
  return counts;
}

bool HttpServer::Stop(std::chrono::milliseconds limit) {
  if (parts_->stopping.exchange(true)) return true;
  ServerContext& context = *parts_->context;
  context.draining = true;
  asio::post(parts_->acceptor.get_executor(), [parts = parts_.get()] {
    error_code ignored;
    parts->acceptor.close(ignored);
    parts->retry.cancel();
  });
  parts_->ForEachConnection([](Connection& connection) { connection.Drain(); });
  const bool finished = parts_->WaitUntilEmpty(limit);
  if (!finished) {
    // Again and again: a connection may just have been accepted.
    do {
      parts_->ForEachConnection([](Connection& connection) { connection.Abort(); });
    } while (!parts_->WaitUntilEmpty(std::chrono::milliseconds(100)));
  }
  context.workers.join();
  context.large_workers.join();
  parts_->work.reset();
  context.io.stop();
  for (std::thread& thread : parts_->threads) thread.join();
  context.answers.join();  // the last callbacks
  context.answers_ended = true;
  // What handlers posted last holds its connection, and so the context.
  context.io.restart();
  context.io.poll();
  return finished;
}

}  // namespace loopspec::serve
