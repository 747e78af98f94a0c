#include "serve/http/server.h"

#include <fmt/format.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/connection.h"
#include "serve/http/spare_descriptor.h"

namespace loopspec::serve {
namespace {

using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Strand>;

bool OutOfDescriptors(const error_code& error) {
  return error == boost::system::errc::too_many_files_open ||
         error == boost::system::errc::too_many_files_open_in_system;
}

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
      if (error) return AfterFailure(error);
      Take(std::move(socket));
      Accept();
    });
  }

  void AfterFailure(error_code error) {
    if (const auto now = std::chrono::steady_clock::now(); now >= next_warning) {
      LogWarning("cannot accept a connection: {}", error.message());
      next_warning = now + std::chrono::seconds(10);
    }
    std::chrono::milliseconds pause(100);
    if (OutOfDescriptors(error)) {
      if (const auto evicted = context->connections.EvictOne()) evicted->Evict();
      spare.ShedOne(acceptor.native_handle());
      ++context->refused;
      pause = std::chrono::milliseconds(1);
    }
    retry.expires_after(pause);
    retry.async_wait([this](error_code failed) {
      if (!failed && !stopping) Accept();
    });
  }

  void Take(Socket socket) {
    ++context->accepted;
    error_code error;
    const auto remote = socket.remote_endpoint(error);
    if (error) return;  // it is gone already
    const std::string address = NetworkOf(remote.address());
    const ConnectionTable::Arrival arrival = context->connections.Arrive(address);
    if (arrival.evicted) arrival.evicted->Evict();
    if (arrival.place == ConnectionTable::Place::kNone) {
      ++context->refused;
      return;
    }
    std::make_shared<Connection>(context, std::move(socket),
                                 fmt::format("{}:{}", remote.address().to_string(), remote.port()),
                                 address, arrival.place == ConnectionTable::Place::kReserve)
        ->Start();
  }

  template <typename F>
  void ForEachConnection(F visit) {
    for (const auto& connection : context->connections.All()) visit(*connection);
  }

  const std::shared_ptr<ServerContext> context;
  Acceptor acceptor;
  Timer retry;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
  int port = 0;
  std::atomic<bool> stopping{false};
  SpareDescriptor spare;
  std::chrono::steady_clock::time_point next_warning{};
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
  counts.open = context.connections.size();
  counts.evicted = context.connections.evicted();
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
  const bool finished = context.connections.WaitUntilEmpty(limit);
  if (!finished) {
    // Again and again: a connection may just have been accepted.
    do {
      parts_->ForEachConnection([](Connection& connection) { connection.Abort(); });
    } while (!context.connections.WaitUntilEmpty(std::chrono::milliseconds(100)));
  }
  context.workers.join();
  context.large_workers.Join();
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
