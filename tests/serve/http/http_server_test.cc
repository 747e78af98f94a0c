// The HTTP server against clients that behave badly, with a handler that knows nothing of models.
#include "serve/http/server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "serve/http/connection_table.h"
#include "tests/serve/client.h"

namespace loopspec::test {
namespace {

using namespace std::chrono_literals;
using serve::HttpRequest;
using serve::HttpResponse;
using serve::HttpServer;
using serve::HttpServerOptions;
using serve::ResponseWriter;

class TestHandler : public serve::HttpHandler {
 public:
  // X-Refuse and X-Share do as they say; /now takes no time.
  serve::AdmitRequest Admit(const HttpRequest& head) override {
    serve::AdmitRequest admitted{std::nullopt, head.share};
    admitted.at_once = head.path == "/now";
    if (!head.Header("X-Share").empty()) admitted.share = head.Header("X-Share");
    admitted.keyed = !head.Header("X-Key").empty();
    if (!head.Header("X-Refuse").empty()) {
      admitted.refusal.emplace();
      admitted.refusal->status = 401;
    }
    return admitted;
  }

  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    ++requests;
    if (request.path == "/now") request.path = "/echo";
    if (request.path == "/block") {  // takes its time
      ++blocked;
      released.wait(false);
      request.path = "/echo";
    } else if (request.path == "/busy") {  // so does the answer
      writer->Post([this, writer] {
        ++blocked;
        released.wait(false);
        writer->Send({});
      });
    }
    if (request.path == "/long") {  // takes until it is released, and lets others pass
      ++blocked;
      for (int i = 0; i < 60'000 && !released; ++i) {
        if (request.yield) request.yield();
        std::this_thread::sleep_for(1ms);
      }
      request.path = "/echo";
    }
    if (request.path == "/echo") {
      HttpResponse response;
      response.content_type = "text/plain";
      response.body = request.method + " " + request.path + " " + request.body;
      writer->Send(std::move(response));
    } else if (request.path == "/hold") {  // answers when told to
      writer->OnGone([this] { ++gone; });
      held = std::move(writer);
      ++holding;
    } else if (request.path == "/stream") {  // likewise, in pieces
      writer->OnGone([this] { ++gone; });
      writer->Begin({}, ":\n\n");
      writer->Write("data: 1\n\n");
      held = std::move(writer);
      ++holding;
    } else if (request.path == "/flood") {
      Flood(std::move(writer));
    } else if (request.path == "/throw") {
      throw std::runtime_error("a handler failed");
    } else if (request.path == "/half") {
      writer->Begin({}, "");
      writer->Write("half of it");  // and the writer is dropped
    }                               // others are not answered at all
  }

  HttpResponse ErrorResponse(const serve::HttpFailure& failure) override {
    HttpResponse response;
    response.status = failure.status;
    response.body = fmt::format("{{\"error\": \"{}\"}}", failure.message);
    return response;
  }

  void Release() {
    released = true;
    released.notify_all();
  }

  // Writes as much as the client takes, for ever, and stops where it is told to.
  void Flood(std::shared_ptr<ResponseWriter> writer) {
    writer->OnGone([this] { ++gone; });
    writer->Begin({}, "");
    const std::weak_ptr<ResponseWriter> weak = writer;
    const auto pour = [this, weak] {
      const auto target = weak.lock();
      if (!target) return;
      const std::string piece(1000, 'x');
      do {
        written += static_cast<int64_t>(piece.size());
      } while (target->Write(piece));
      ++stops;
    };
    writer->OnDrained(pour);
    held = writer;
    pour();
  }

  std::atomic<int> requests{0}, holding{0}, gone{0}, stops{0}, blocked{0};
  std::atomic<bool> released{false};
  std::atomic<int64_t> written{0};
  std::shared_ptr<ResponseWriter> held;  // one test holds one at a time
};

class HttpServerTest : public testing::Test {
 protected:
  void Start(const HttpServerOptions& options = PatientHttp()) {
    server_ = std::make_unique<HttpServer>(options, handler_);
  }
  int port() const { return server_->port(); }
  // A request that the handler holds.
  Client Hold(const char* path) {
    Client client(port());
    const int before = handler_.holding;
    client.Send(GetText(path));
    EXPECT_TRUE(Eventually([&] { return handler_.holding == before + 1; }));
    return client;
  }
  void ExpectServes() { EXPECT_EQ(Get(port(), "/echo").status, 200); }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesManyRequestsOnOneConnection) {
  Start();
  Client client(port());
  for (int i = 0; i < 20; ++i) {
    client.Send(PostText("/echo?a=b", fmt::format("body {}", i)));
    const Answer answer = client.ReadAnswer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, fmt::format("POST /echo body {}", i));
    EXPECT_EQ(answer.Header("Content-Type"), "text/plain");
  }
  EXPECT_EQ(server_->counts().accepted, 1);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  Client client(port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += PostText("/echo", fmt::format("{}", i));
  client.Send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.ReadAnswer().body, fmt::format("POST /echo {}", i));
  }
}

TEST_F(HttpServerTest, ReadsBodiesByteByByteAndInChunks) {
  Start();
  Client slow(port());
  for (const char c : PostText("/echo", "drop by drop")) slow.Send(std::string(1, c));
  EXPECT_EQ(slow.ReadAnswer().body, "POST /echo drop by drop");

  Client chunked(port());
  chunked.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Send("3\r\nabc\r\n");
  std::this_thread::sleep_for(20ms);
  chunked.Send("5;note=1\r\ndefgh\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.ReadAnswer().body, "POST /echo abcdefgh");
  chunked.Send(GetText("/echo"));  // what follows is a request of its own
  EXPECT_EQ(chunked.ReadAnswer().status, 200);
}

TEST_F(HttpServerTest, LimitsBodies) {
  HttpServerOptions options = PatientHttp();
  options.body_limit = 1 << 20;
  Start(options);
  Client whole(port());  // ten times the limit, all of it sent
  whole.Send(PostText("/echo", std::string(10 << 20, 'x')));
  Answer answer = whole.ReadAnswer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.Header("Connection"), "close");

  Client chunked(port());
  chunked.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = fmt::format("{:x}\r\n{}\r\n", 100'000, std::string(100'000, 'y'));
  for (int i = 0; i < 20; ++i) chunked.Send(chunk);
  answer = chunked.ReadAnswer();
  EXPECT_EQ(answer.status, 413);

  Client at_limit(port());
  at_limit.Send(PostText("/echo", std::string(1 << 20, 'z')));
  EXPECT_EQ(at_limit.ReadAnswer().status, 200);
  EXPECT_EQ(handler_.requests, 1);
}

TEST_F(HttpServerTest, LimitsAllBodiesTogether) {
  HttpServerOptions options = PatientHttp();
  options.body_limit = 1 << 20;
  options.body_budget = 2 << 20;
  Start(options);
  Client first(port());
  first.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n");
  first.Send(std::string((1 << 20) - 1, 'x'));
  EXPECT_TRUE(Eventually([&] { return server_->counts().body_bytes == (1 << 20) - 1; }));
  Client second(port());
  second.Send(PostText("/echo", std::string(1 << 20, 'y')));
  EXPECT_EQ(second.ReadAnswer().status, 503);
  first.Send("x");
  EXPECT_EQ(first.ReadAnswer().status, 200);
  EXPECT_TRUE(Eventually([&] {  // a body counts until its handler has returned
    Client third(port());
    third.Send(PostText("/echo", std::string(1 << 20, 'y')));
    return third.ReadAnswer().status == 200;
  }));
}

// What fills the room for one share leaves as much for the next.
TEST_F(HttpServerTest, SharesTheRoomForBodies) {
  HttpServerOptions options = PatientHttp();
  options.body_limit = 1 << 20;
  options.body_budget = 8 << 20;
  Start(options);
  std::vector<Client> greedy;
  for (int i = 0; i < 16; ++i) {
    greedy.emplace_back(port());
    greedy.back().Send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nX-Share: greedy\r\nContent-Length: 1048576\r\n\r\n");
    greedy.back().Send(std::string((1 << 20) - 1, 'x'));
  }
  EXPECT_TRUE(Eventually([&] { return server_->counts().body_bytes >= 2 << 20; }));
  for (int i = 0; i < 5; ++i) {
    EXPECT_LE(server_->counts().body_bytes, 4 << 20);  // half of the room
    Client modest(port());
    modest.Send(PostText("/echo", std::string(1 << 20, 'y'), "X-Share: modest\r\n"));
    EXPECT_EQ(modest.ReadAnswer().status, 200);
  }
  greedy.clear();
  EXPECT_TRUE(Eventually([&] { return server_->counts().body_bytes == 0; }));
}

TEST_F(HttpServerTest, RefusesBeforeTheBody) {
  Start();
  std::vector<Client> strangers;
  for (int i = 0; i < 16; ++i) {
    strangers.emplace_back(port());
    strangers.back().Send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nX-Refuse: 1\r\nContent-Length: 1048576\r\n"
        "Expect: 100-continue\r\n\r\n");
  }
  for (Client& client : strangers) {  // none of the body was sent
    EXPECT_TRUE(client.ReadUntil("\r\n"));
    EXPECT_TRUE(client.seen().starts_with("HTTP/1.1 401"));
  }
  EXPECT_EQ(server_->counts().body_bytes, 0);
  EXPECT_EQ(handler_.requests, 0);
}

// Whatever takes its time in handlers and callbacks, what takes none is answered.
TEST_F(HttpServerTest, NothingHoldsUpWhatTakesNoTime) {
  const HttpServerOptions options = PatientHttp();
  Start(options);
  std::vector<Client> busy;
  const auto send = [&](int count, const std::string& text) {
    for (int i = 0; i < count; ++i) {
      busy.emplace_back(port());
      busy.back().Send(text);
    }
  };
  const std::string large(options.large_body, 'x');
  send(options.large_workers + 2, PostText("/block", large));
  EXPECT_TRUE(Eventually([&] { return handler_.blocked == options.large_workers; }));
  ExpectServes();  // the other workers are free
  send(options.answer_threads + 2, GetText("/busy"));
  send(options.workers + 2, GetText("/block"));
  EXPECT_TRUE(Eventually([&] {
    return handler_.blocked == options.large_workers + options.answer_threads + options.workers;
  }));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Get(port(), "/now").status, 200);
  handler_.Release();
  for (Client& client : busy) EXPECT_EQ(client.ReadAnswer().status, 200);
}

// However many large bodies one share sends, another's does not wait for them.
TEST_F(HttpServerTest, LargeBodiesOfOneShareDoNotHoldUpAnothers) {
  const HttpServerOptions options = PatientHttp();
  Start(options);
  const std::string large(options.large_body, 'x'), larger(8 * options.large_body, 'x');
  std::vector<Client> many;
  for (int i = 0; i < options.large_workers + 6; ++i) {
    many.emplace_back(port());
    many.back().Send(PostText("/long", larger));
  }
  EXPECT_TRUE(Eventually([&] { return handler_.blocked >= options.large_workers; }));
  for (int i = 0; i < 3; ++i) {
    Client other(port());
    other.Send(fmt::format(
        "POST /echo HTTP/1.1\r\nHost: x\r\nX-Share: other\r\nContent-Length: {}\r\n\r\n{}",
        large.size(), large));
    EXPECT_EQ(other.ReadAnswer().status, 200);
  }
  EXPECT_EQ(handler_.blocked, options.large_workers);
  handler_.Release();
  for (Client& client : many) EXPECT_EQ(client.ReadAnswer().status, 200);
}

TEST_F(HttpServerTest, LimitsHeaders) {
  Start();
  Client bomb(port());
  bomb.Send("GET /echo HTTP/1.1\r\n");
  for (int i = 0; i < 100'000; ++i) {
    if (!bomb.Send(fmt::format("X-{}: {}\r\n", i, std::string(50, 'x')))) break;
  }
  EXPECT_EQ(bomb.ReadAnswer().status, 431);
  Client line(port());
  line.Send("GET /" + std::string(1 << 20, 'x'));
  EXPECT_EQ(line.ReadAnswer().status, 431);
  ExpectServes();
}

TEST_F(HttpServerTest, LimitsTime) {
  HttpServerOptions options = PatientHttp();
  options.header_timeout = 200ms;
  options.body_timeout = 200ms;
  options.idle_timeout = 300ms;
  options.first_byte_timeout = 300ms;
  Start(options);
  Client header(port());
  header.Send("GET /echo HT");
  Client body(port());
  body.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12");
  Client silent(port());
  Client idle(port());
  idle.Send(GetText("/echo"));
  EXPECT_EQ(idle.ReadAnswer().status, 200);
  // Each by its own limit: without it nothing would come before the client lost patience.
  const Answer no_header = header.ReadAnswer();
  EXPECT_EQ(no_header.status, 408);
  EXPECT_NE(no_header.body.find("The headers did not arrive"), std::string::npos);
  const Answer no_body = body.ReadAnswer();
  EXPECT_EQ(no_body.status, 408);
  EXPECT_NE(no_body.body.find("The body did not arrive"), std::string::npos);
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(handler_.requests, 1);
}

TEST_F(HttpServerTest, RefusesWhatIsNoHttp) {
  Start();
  for (const char* text :
       {"\r\n\r\n\x01\x02\x03\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET /echo HTTP/1.1\r\nbroken header\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n"}) {
    Client client(port());
    client.Send(text);
    EXPECT_EQ(client.ReadAnswer().status, 400) << text;
    EXPECT_TRUE(client.closed()) << text;
  }
  Client gzip(port());
  gzip.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n");
  EXPECT_EQ(gzip.ReadAnswer().status, 501);
  EXPECT_EQ(handler_.requests, 0);
  ExpectServes();
}

TEST_F(HttpServerTest, ContinuesWhenAskedTo) {
  Start();
  Client client(port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  client.Send("ok");
  EXPECT_EQ(client.ReadAnswer().body, "POST /echo ok");
}

TEST_F(HttpServerTest, SpeaksOlderFormsToo) {
  Start();
  Client old(port());
  old.Send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.ReadAnswer().status, 200);
  EXPECT_TRUE(old.closed());
  Client head(port());
  head.Send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\nGET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(head.ReadUntil("GET")) << head.seen();
  EXPECT_EQ(head.seen().find("HEAD"), std::string::npos);
  Client absolute(port());
  absolute.Send("GET http://localhost/echo?q=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(absolute.ReadAnswer().body, "GET /echo ");
}

TEST_F(HttpServerTest, AnswersForHandlersThatDoNot) {
  Start();
  EXPECT_EQ(Get(port(), "/nothing").status, 500);
  EXPECT_EQ(Get(port(), "/throw").status, 500);
  const Answer half = Get(port(), "/half");
  EXPECT_FALSE(half.complete);  // cut off, so that nobody takes it for the whole
  ExpectServes();
}

// By their hanging up alone: a sign of life, which would find out as well, comes after minutes.
TEST_F(HttpServerTest, NoticesClientsThatHangUp) {
  Start();
  for (const char* path : {"/hold", "/stream"}) {
    for (const bool reset : {false, true}) {
      Client client = Hold(path);
      const int before = handler_.gone;
      reset ? client.Reset() : client.Close();
      EXPECT_TRUE(Eventually([&] { return handler_.gone == before + 1; })) << path << reset;
      handler_.held->Write("data: 2\n\n");  // nobody minds
      handler_.held.reset();
    }
  }
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

TEST_F(HttpServerTest, AnswersClientsThatOnlyCloseTheirDirection) {
  Start();
  Client whole = Hold("/hold");
  whole.HalfClose();
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(handler_.gone, 0);
  HttpResponse response;
  response.body = "late";
  handler_.held->Send(std::move(response));
  EXPECT_EQ(whole.ReadAnswer().body, "late");

  Client stream = Hold("/stream");
  stream.HalfClose();
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(handler_.gone, 0);
  handler_.held->Write("data: 2\n\n");
  handler_.held->End();
  const Answer answer = stream.ReadAnswer();
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.Events(), (std::vector<std::string>{"1", "2"}));

  Client pipelined(port());  // two requests, then nothing more
  pipelined.Send(GetText("/echo") + PostText("/echo", "last"));
  pipelined.HalfClose();
  EXPECT_EQ(pipelined.ReadAnswer().status, 200);
  EXPECT_EQ(pipelined.ReadAnswer().body, "POST /echo last");
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

TEST_F(HttpServerTest, HoldsBackForSlowReaders) {
  Start();
  Client slow(port(), 4096);
  slow.Send(GetText("/flood"));
  EXPECT_TRUE(Eventually([&] { return handler_.stops > 0; }));
  std::this_thread::sleep_for(100ms);
  constexpr int64_t kBuffers = 1 << 20;  // the sockets' and one of ours have less
  EXPECT_LT(handler_.written, kBuffers);
  ExpectServes();
  // It reads: the handler is told to go on.
  for (int i = 0; i < 100'000 && handler_.written < 2 * kBuffers; ++i) slow.Receive();
  EXPECT_GE(handler_.written, 2 * kBuffers);
  EXPECT_EQ(handler_.gone, 0);
  slow.Close();
  EXPECT_TRUE(Eventually([&] { return handler_.gone == 1; }));
  EXPECT_FALSE(handler_.held->Write("x")) << "to nobody";
  handler_.held.reset();
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

TEST_F(HttpServerTest, GivesUpReadersThatStop) {
  HttpServerOptions options = PatientHttp();
  options.write_timeout = 200ms;
  Start(options);
  Client stopped(port(), 4096);
  stopped.Send(GetText("/flood"));
  EXPECT_TRUE(Eventually([&] { return handler_.gone == 1; }));
  handler_.held.reset();
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

TEST_F(HttpServerTest, SendsSignsOfLifeInSilence) {
  HttpServerOptions options = PatientHttp();
  options.keep_alive = 50ms;
  Start(options);
  Client client = Hold("/stream");
  EXPECT_TRUE(client.ReadUntil(":\n\n"));
  handler_.held->End();
  EXPECT_EQ(client.ReadAnswer().Events(), std::vector<std::string>{"1"});
}

TEST_F(HttpServerTest, LimitsConnections) {
  HttpServerOptions options = PatientHttp();
  options.max_connections = 3;
  Start(options);
  std::vector<Client> busy;
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(Hold("/hold"));
    writers.push_back(std::move(handler_.held));
  }
  Client refused(port());
  refused.Send(PostText("/echo", std::string(100'000, 'x')));
  const Answer answer = refused.ReadAnswer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.complete);
  refused.Close();
  EXPECT_EQ(server_->counts().refused, 1);
  // The reserve is for what takes no time and for those who have a key.
  EXPECT_EQ(Get(port(), "/now").status, 200);
  EXPECT_EQ(Get(port(), "/echo", "X-Key: 1\r\n").status, 200);
  EXPECT_EQ(server_->counts().refused, 1);
  writers.pop_back();  // answers 500
  EXPECT_EQ(busy.back().ReadAnswer().status, 500);
  busy.pop_back();
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 2; }));
  ExpectServes();
}

TEST_F(HttpServerTest, SilentConnectionsKeepNobodyOut) {
  HttpServerOptions options = PatientHttp();
  options.max_connections = 8;
  Start(options);
  Client keyed(port());
  keyed.Send(GetText("/echo", "X-Key: 1\r\n"));
  EXPECT_EQ(keyed.ReadAnswer().status, 200);
  std::vector<Client> silent;
  for (int i = 0; i < 40; ++i) {
    silent.emplace_back(port());
    if (i % 2 == 0) silent.back().Send("GET /ec");  // the head of no request has come
  }
  EXPECT_TRUE(Eventually([&] { return server_->counts().accepted == 41; }));
  for (int i = 0; i < 20; ++i) ExpectServes();
  EXPECT_EQ(server_->counts().refused, 0);
  EXPECT_TRUE(silent[0].closed());
  // Idle connections go too, the oldest first, but not those that have shown a key.
  std::vector<Client> idle;
  for (int i = 0; i < 10; ++i) {
    idle.emplace_back(port());
    idle.back().Send(GetText("/echo"));
    EXPECT_EQ(idle.back().ReadAnswer().status, 200);
  }
  EXPECT_TRUE(idle[0].closed());
  keyed.Send(GetText("/echo"));
  EXPECT_EQ(keyed.ReadAnswer().status, 200);
  EXPECT_LE(server_->counts().open, 8 + 2);
}

TEST_F(HttpServerTest, OneAddressHoldsOnlyItsPart) {
  HttpServerOptions options = PatientHttp();
  options.max_connections = 16;
  options.max_per_address = 4;
  options.trusted_proxies = {"127.0.0.3"};
  Start(options);
  const auto status = [&](const char* from) {
    Client client(port(), 0, from);
    client.Send(GetText("/echo"));
    return client.ReadAnswer().status;
  };
  std::vector<Client> silent;
  for (int i = 0; i < 4; ++i) silent.emplace_back(port(), 0, "127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 4; }));
  EXPECT_EQ(status("127.0.0.2"), 200);  // in the place of its own oldest silent one
  EXPECT_TRUE(silent[0].closed());

  std::vector<Client> busy;
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  const auto hold = [&](const char* from) {
    const int before = handler_.holding;
    busy.emplace_back(port(), 0, from);
    busy.back().Send(GetText("/hold"));
    EXPECT_TRUE(Eventually([&] { return handler_.holding == before + 1; }));
    writers.push_back(std::move(handler_.held));
  };
  for (int i = 0; i < 4; ++i) hold("127.0.0.2");
  EXPECT_EQ(status("127.0.0.2"), 503);
  EXPECT_EQ(status("127.0.0.1"), 200);
  for (int i = 0; i < 6; ++i) hold("127.0.0.3");  // a proxy's clients share its address
  EXPECT_EQ(status("127.0.0.3"), 200);
}

TEST_F(HttpServerTest, WaitsLessForTheFirstByteTheFullerItIs) {
  HttpServerOptions options = PatientHttp();
  options.first_byte_timeout = 50ms;
  Start(options);
  Client served(port());
  served.Send(GetText("/echo"));
  EXPECT_EQ(served.ReadAnswer().status, 200);
  Client silent(port());
  EXPECT_TRUE(silent.closed());
  served.Send(GetText("/echo"));  // its time between requests is another
  EXPECT_EQ(served.ReadAnswer().status, 200);

  EXPECT_EQ(serve::FirstByteTime(0, 100, 1000ms), 1000ms);
  EXPECT_EQ(serve::FirstByteTime(50, 100, 1000ms), 1000ms);
  EXPECT_EQ(serve::FirstByteTime(75, 100, 1000ms), 550ms);
  EXPECT_EQ(serve::FirstByteTime(100, 100, 1000ms), 100ms);
  EXPECT_EQ(serve::FirstByteTime(110, 100, 1000ms), 100ms);
}

TEST(ConnectionTable, CountsAnIpv6NetworkAsOneAddress) {
  const auto network = [](const char* text) {
    return serve::NetworkOf(boost::asio::ip::make_address(text));
  };
  EXPECT_EQ(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2::1"));
  EXPECT_NE(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
  EXPECT_EQ(network("::ffff:192.0.2.7"), network("192.0.2.7"));
  EXPECT_THROW(serve::ConnectionTable::MakeLimits(4, 0, {"nowhere"}), Error);
}

TEST_F(HttpServerTest, ServesBesideAThousandIdleConnections) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2200) GTEST_SKIP() << "only " << files.rlim_cur << " descriptors allowed";
  HttpServerOptions options = PatientHttp();
  Start(options);
  std::vector<Client> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.emplace_back(port());
    if (i % 2 == 0) idle.back().Send("GET /ec");  // half of them have begun
  }
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 1000; }));
  for (int i = 0; i < 20; ++i) ExpectServes();
  idle[0].Send("ho HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(idle[0].ReadAnswer().status, 200);
  idle.clear();
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

TEST_F(HttpServerTest, DrainsAndThenCutsOff) {
  Start();
  Client idle(port());
  idle.Send(GetText("/echo"));
  EXPECT_EQ(idle.ReadAnswer().status, 200);
  Client client = Hold("/hold");
  std::thread later([&] {
    EXPECT_TRUE(idle.closed());
    HttpResponse response;
    response.body = "done";
    handler_.held->Send(std::move(response));
    const Answer answer = client.ReadAnswer();
    EXPECT_EQ(answer.body, "done");
    EXPECT_EQ(answer.Header("Connection"), "close");
    client.Close();
  });
  EXPECT_TRUE(server_->Stop(10min));
  later.join();

  Start();
  Client cut = Hold("/stream");
  EXPECT_FALSE(server_->Stop(200ms));  // though nobody ever ends the answer
  EXPECT_EQ(handler_.gone, 1);
  EXPECT_FALSE(cut.ReadAnswer().complete);
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  Start();
  HttpServerOptions taken = PatientHttp();
  taken.port = port();
  EXPECT_THROW(HttpServer(taken, handler_), Error);
  HttpServerOptions nowhere = PatientHttp();
  nowhere.host = "not an address";
  EXPECT_THROW(HttpServer(nowhere, handler_), Error);
}

}  // namespace
}  // namespace loopspec::test
