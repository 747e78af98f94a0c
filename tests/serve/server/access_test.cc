// Pages of other sites: what they can make a browser send, and what becomes of it.
#include "serve/server/access.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/mapped_file.h"
#include "serve/http/server.h"
#include "serve/openai/error.h"
#include "serve/server/run_server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/temporary_folder.h"

namespace loopspec::test {
namespace {

using namespace serve;

TEST(AccessPolicy, ReadsHosts) {
  EXPECT_EQ(HostName("LocalHost:8080"), "localhost");
  EXPECT_EQ(HostName("example.com."), "example.com");
  EXPECT_EQ(HostName("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(HostName("[::1]:80"), "::1");
  EXPECT_EQ(HostName("[::1]"), "::1");
  EXPECT_EQ(HostName("a:"), "a");
  for (const char* bad : {"", ":80", "a b", "a:b", "a:123456", "[::1", "[::1]80", "[x]", "a@b",
                          "a/b", "a,b", "::1", "\xc3\xa9.com", "a\r\nb"}) {
    EXPECT_EQ(HostName(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(HostName(std::string(254, 'a')), std::nullopt);
}

TEST(AccessPolicy, KnowsItsOwnNames) {
  const AccessPolicy local;
  for (const char* name : {"localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "::1",
                           "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(HostAllowed(local, name)) << name;
  }
  for (const char* name : {"evil.example", "localhost.evil.example", "notlocalhost", "192.168.1.2",
                           "0.0.0.0", "1270.0.1", "::2", "127.0.0.1.nip.io"}) {
    EXPECT_FALSE(HostAllowed(local, name)) << name;
  }
  const AccessPolicy open{"0.0.0.0", {"Api.Example:8443"}, {}};
  EXPECT_TRUE(HostAllowed(open, "192.168.1.2"));  // no name that could have been rebound
  EXPECT_TRUE(HostAllowed(open, "fe80::1"));
  EXPECT_TRUE(HostAllowed(open, "api.example"));
  EXPECT_FALSE(HostAllowed(open, "evil.example"));
  const AccessPolicy one{"192.168.1.2", {}, {}};
  EXPECT_TRUE(HostAllowed(one, "192.168.1.2"));
  EXPECT_FALSE(HostAllowed(one, "192.168.1.3"));
  EXPECT_TRUE(HostAllowed({"127.0.0.1", {"*"}, {}}, "evil.example"));
}

TEST(AccessPolicy, WarnsOfAnOpenAddressWithoutKeys) {
  ApiKeys keys;
  for (const char* host : {"0.0.0.0", "::", "192.168.1.2"}) {
    EXPECT_NE(OpenWarning(host, 80, keys).find("asks for no key"), std::string::npos) << host;
  }
  EXPECT_NE(OpenWarning("::", 80, keys).find("http://[::]:80"), std::string::npos);
  for (const char* host : {"127.0.0.1", "localhost", "::1", "127.0.0.9"}) {
    EXPECT_EQ(OpenWarning(host, 80, keys), "") << host;
  }
  keys.Add("secret", "test");
  EXPECT_EQ(OpenWarning("0.0.0.0", 80, keys), "");
}

class AccessTest : public testing::Test {
 protected:
  AccessTest() {
    options_.log.file = (folder_ / "log").string();
    options_.assets = PageAssets();
  }
  ~AccessTest() override {
    server_.reset();
    service_.reset();
  }
  void Start() {
    server_.reset();
    service_ = std::make_unique<Service>(options_);
    server_ = std::make_unique<HttpServer>(http_, *service_);
    service_->SetEngine(MakeScriptedEngine());
  }
  // A request whose headers are these alone.
  Answer Send(std::string_view line, std::string_view headers, std::string_view body = "") {
    Client client(server_->port());
    std::string text = fmt::format("{}\r\n{}", line, headers);
    if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
    client.Send(fmt::format("{}\r\n{}", text, body));
    return client.ReadAnswer();
  }
  int Models(std::string_view headers) { return Send("GET /v1/models HTTP/1.1", headers).status; }

  TemporaryFolder folder_;
  ServiceOptions options_;
  HttpServerOptions http_ = PatientHttp();
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
};

constexpr const char* kPost = "POST /v1/completions HTTP/1.1";
constexpr const char* kBody = R"({"prompt":"x","max_tokens":1})";
constexpr const char* kHost = "Host: localhost\r\n";
constexpr const char* kJson = "Content-Type: application/json\r\n";

// fetch(..., {mode: "no-cors", body: new Blob([...])}) and sendBeacon send no Content-Type.
TEST_F(AccessTest, TakesBodiesOfJsonAlone) {
  Start();
  const std::string host(kHost);
  EXPECT_EQ(Send(kPost, host + kJson, kBody).status, 200);
  EXPECT_EQ(Send(kPost, host + "Content-Type: Application/JSON ; charset=utf-8\r\n", kBody).status,
            200);
  const Answer none = Send(kPost, host, kBody);
  EXPECT_EQ(none.status, 415) << none.body;
  EXPECT_EQ(none.error(), "The request has no Content-Type, expected application/json.");
  for (const char* type :
       {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
        "text/plain; application/json", "application/json-seq", "text/plain,application/json"}) {
    EXPECT_EQ(Send(kPost, fmt::format("{}Content-Type: {}\r\n", host, type), kBody).status, 415)
        << type;
  }
}

// DNS rebinding: the stranger's name leads here, and the browser takes us for the stranger's site.
TEST_F(AccessTest, AnswersToItsOwnNamesAlone) {
  Start();
  EXPECT_EQ(Models("Host: 127.0.0.1:8080\r\n"), 200);
  EXPECT_EQ(Models("Host: [::1]:8080\r\n"), 200);
  EXPECT_EQ(Models("Host: LOCALHOST\r\n"), 200);
  const Answer stranger = Send("GET /v1/models HTTP/1.1", "Host: evil.example:8080\r\n");
  EXPECT_EQ(stranger.status, 403);
  EXPECT_EQ(stranger.json()["error"]["code"], "host_not_allowed");
  EXPECT_EQ(Send(kPost, "Host: evil.example\r\n" + std::string(kJson), kBody).status, 403);
  EXPECT_EQ(Send("GET / HTTP/1.1", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(Send("GET /metrics HTTP/1.1", "Host: evil.example\r\n").status, 403);
  // A probe may know it by any name.
  EXPECT_EQ(Send("GET /health HTTP/1.1", "Host: replica-1\r\n").status, 200);

  EXPECT_EQ(Models(""), 400);
  EXPECT_EQ(Models("Host: localhost\r\nHost: localhost\r\n"), 400);
  EXPECT_EQ(Models("Host: localhost\r\nhost: evil.example\r\n"), 400);
  EXPECT_EQ(Models("Host: a b\r\n"), 400);
  EXPECT_EQ(Models("Host:\r\n"), 400);
  EXPECT_EQ(Send("GET http://evil.example/v1/models HTTP/1.1", kHost).status, 403);
  EXPECT_EQ(Send("GET http://localhost/v1/models HTTP/1.1", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(Send("GET http://localhost/v1/models HTTP/1.1", kHost).status, 200);
  EXPECT_EQ(Send("GET /v1/models HTTP/1.0", "").status, 200);  // which knows no Host
  EXPECT_EQ(Send("GET /v1/models HTTP/1.0", "Host: evil.example\r\n").status, 403);

  options_.access.hosts = {"api.example"};
  Start();
  EXPECT_EQ(Models("Host: api.example:443\r\n"), 200);
  EXPECT_EQ(Models("Host: evil.example\r\n"), 403);
}

TEST_F(AccessTest, RefusesOtherSitesUnlessTheirOriginIsAllowed) {
  Start();
  const std::string cross = std::string(kHost) + "Sec-Fetch-Site: cross-site\r\n";
  const Answer refused = Send("GET /v1/models HTTP/1.1", cross);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["code"], "origin_not_allowed");
  EXPECT_EQ(Send(kPost, cross + kJson, kBody).status, 403);
  EXPECT_EQ(Send("GET /health HTTP/1.1", cross).status, 403);
  EXPECT_EQ(Models(std::string(kHost) + "Sec-Fetch-Site: same-origin\r\n"), 200);
  EXPECT_EQ(Models(std::string(kHost) + "Sec-Fetch-Site: none\r\n"), 200);
  // A link elsewhere may lead to the page, but not to what the API says, and no frame or script
  // may.
  const std::string link = cross + "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
  EXPECT_EQ(Send("GET / HTTP/1.1", link).status, 200);
  EXPECT_EQ(Send("GET /v1/models HTTP/1.1", link).status, 403);
  EXPECT_EQ(Send("GET / HTTP/1.1", cross + "Sec-Fetch-Mode: no-cors\r\n").status, 403);

  options_.access.origins = {"https://friend.example"};
  Start();
  EXPECT_EQ(Models(cross + "Origin: https://friend.example\r\n"), 200);
  EXPECT_EQ(Models(cross + "Origin: https://evil.example\r\n"), 403);
  EXPECT_EQ(Models(cross), 403);
  options_.access.origins = {"*"};
  Start();
  EXPECT_EQ(Models(cross + "Origin: https://evil.example\r\n"), 200);
}

// What openai's JavaScript package sends, and the header that docs/serving.md names.
TEST_F(AccessTest, LetsTheHeadersOfClientsThroughThePreflight) {
  options_.access.origins = {"https://friend.example"};
  Start();
  const std::string head = std::string(kHost) +
                           "Origin: https://friend.example\r\nSec-Fetch-Site: cross-site\r\n"
                           "Access-Control-Request-Method: POST\r\n";
  const Answer answer =
      Send("OPTIONS /v1/chat/completions HTTP/1.1",
           head +
               "Access-Control-Request-Headers: authorization,content-type,x-prefix-key, "
               "X-Stainless-Lang,x-stainless-retry-count,openai-organization,x-evil,x-stainless-a "
               "b\r\n");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.Header("Access-Control-Allow-Origin"), "https://friend.example");
  const std::string allowed = ", " + answer.Header("Access-Control-Allow-Headers") + ",";
  for (const char* name : {"authorization", "content-type", "x-prefix-key", "x-stainless-lang",
                           "x-stainless-retry-count", "openai-organization"}) {
    EXPECT_NE(allowed.find(fmt::format(", {},", name)), std::string::npos) << name << allowed;
  }
  EXPECT_EQ(allowed.find("evil"), std::string::npos);
  EXPECT_EQ(allowed.find("a b"), std::string::npos);
  const Answer read = Send("GET /v1/models HTTP/1.1", head);
  EXPECT_NE(read.Header("Access-Control-Expose-Headers").find("X-Loopspec-Ignored"),
            std::string::npos);
}

// What a request brings stays out of the log, whatever is wrong with it.
TEST_F(AccessTest, LogsNoPromptThroughErrors) {
  Start();
  const std::string head = std::string(kHost) + kJson;
  const std::string chat = "POST /v1/chat/completions HTTP/1.1";
  const auto send = [&](std::string_view line, std::string_view body) {
    const Answer answer = Send(line, head, body);
    EXPECT_EQ(answer.status, 400) << body;
    return answer;
  };
  send(kPost, R"({"prompt": "my password hunter2)");
  send(kPost, R"({"prompt": "hunter2" "x"})");
  send(kPost, R"(hunter2)");
  send(kPost, "{\"prompt\": \"hunter2 \x01\"}");
  send(kPost, R"({"prompt": "x", "temperature": "a \" hunter2"})");
  send(kPost, R"({"prompt": "x", "sampler": "hunter2"})");
  send(kPost, R"({"prompt": "x", "logit_bias": {"hunter2": 1}})");
  send(chat, R"({"messages": "hunter2"})");
  send(chat, R"({"messages": [{"role": "hunter2", "content": "x"}]})");
  send(chat, R"({"messages": [{"role": "user", "content": "refuse me"}]})");
  // The client still reads what it sent.
  EXPECT_NE(send(kPost, R"({"prompt": "x", "sampler": "magic"})").error().find("magic"),
            std::string::npos);
  server_.reset();
  service_.reset();
  const std::string log(ReadFile(options_.log.file));
  EXPECT_NE(log.find("/v1/chat/completions"), std::string::npos);
  EXPECT_EQ(log.find("hunter2"), std::string::npos) << log;
  EXPECT_NE(log.find("The chat template refuses messages."), std::string::npos) << log;
}

TEST_F(AccessTest, AnswersWhatRoutersAsk) {
  options_.version = "1.2.3";
  Start();
  const auto get = [&](const char* path) {
    const Answer answer = Get(server_->port(), path);
    EXPECT_EQ(answer.status, 200) << path;
    return answer.json();
  };
  EXPECT_EQ(get("/version"), (Json{{"version", "1.2.3"}}));
  for (const char* path : {"/model_info", "/get_model_info"}) {
    EXPECT_EQ(get(path)["model_path"], "fake");
    EXPECT_EQ(get(path)["is_generation"], true);
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    EXPECT_EQ(get(path)["version"], "1.2.3");
    EXPECT_EQ(get(path)["dp_size"], 1);
    EXPECT_EQ(get(path)["context_length"], 4096);
  }
  const Json loads = get("/v1/loads");
  EXPECT_EQ(loads["loads"][0]["num_running_reqs"], 0);
  EXPECT_GE(loads["loads"][0]["max_total_num_tokens"], 4096);
  options_.keys.Add("secret", "test");
  Start();
  EXPECT_EQ(Get(server_->port(), "/version").status, 200);
  EXPECT_EQ(Get(server_->port(), "/server_info").status, 401);
}

TEST_F(AccessTest, FindsTheModelByAnEscapedName) {
  options_.served_model_name = "ORG/NAME";
  Start();
  for (const char* path :
       {"/v1/models/ORG/NAME", "/v1/models/ORG%2FNAME", "/v1/models/ORG%2fNAME"}) {
    EXPECT_EQ(Get(server_->port(), path).json()["id"], "ORG/NAME") << path;
  }
  for (const char* path :
       {"/v1/models/ORG%252FNAME", "/v1/models/ORG%2", "/v1/models/%", "/v1/models/"}) {
    EXPECT_EQ(Get(server_->port(), path).status, 404) << path;
  }
}

TEST_F(AccessTest, NamesTheModelByItsFolder) {
  EXPECT_EQ(PublicModelName("ORG/NAME"), "ORG/NAME");
  const std::filesystem::path snapshot =
      folder_ / "hub" / "models--ByteDance--Ouro-1.4B" / "snapshots" / "0123abc";
  std::filesystem::create_directories(snapshot);
  EXPECT_EQ(PublicModelName(snapshot.string()), "ByteDance/Ouro-1.4B");
  std::filesystem::create_directories(folder_ / "my-model");
  for (const char* end : {"", "/", "/.", "//"}) {
    EXPECT_EQ(PublicModelName((folder_ / "my-model").string() + end), "my-model") << end;
  }
  EXPECT_EQ(PublicModelName("/"), "model");
}

// Keys that are given anew hold at once.
TEST_F(AccessTest, TakesNewKeys) {
  options_.keys.Add("old", "test");
  Start();
  const auto status = [&](const char* key) {
    return Get(server_->port(), "/v1/models", fmt::format("Authorization: Bearer {}\r\n", key))
        .status;
  };
  EXPECT_EQ(status("old"), 200);
  EXPECT_EQ(status("new"), 401);
  ApiKeys keys;
  keys.Add("new", "test");
  service_->SetKeys(keys);
  EXPECT_EQ(status("old"), 401);
  EXPECT_EQ(status("new"), 200);
}

// An unknown field: the answer comes, the client is told, the log has its name once.
TEST_F(AccessTest, TellsOfFieldsThatAreIgnored) {
  Start();
  const Json body = {{"prompt", "x"}, {"max_tokens", 1}, {"mood", "fine"}, {"min_tokens", 0}};
  const Answer answer = Post(server_->port(), "/v1/completions", body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.Header("X-Loopspec-Ignored"), "mood");
  Json streamed = body;
  streamed["stream"] = true;
  EXPECT_EQ(Post(server_->port(), "/v1/completions", streamed).Header("X-Loopspec-Ignored"),
            "mood");
  EXPECT_EQ(Post(server_->port(), "/tokenize", {{"prompt", "x"}, {"mood", 1}})
                .Header("X-Loopspec-Ignored"),
            "mood");
  EXPECT_EQ(Post(server_->port(), "/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}})
                .Header("X-Loopspec-Ignored"),
            "");
  server_.reset();
  service_.reset();  // writes the log
  const std::string log = std::string(ReadFile(options_.log.file));
  const size_t first = log.find("mood is ignored");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("mood is ignored", first + 1), std::string::npos) << log;

  options_.limits.strict = true;
  Start();
  const Answer strict = Post(server_->port(), "/v1/completions", body);
  EXPECT_EQ(strict.status, 400);
  EXPECT_EQ(strict.param(), "mood");
}

// Names that strangers make up do not fill the log: one line for a request, and no more than some
// dozens of names.
TEST_F(AccessTest, InventedFieldsDoNotFillTheLog) {
  Start();
  for (int request = 0; request < 40; ++request) {
    Json body = {{"prompt", "x"}, {"max_tokens", 1}};
    for (int i = 0; i < 8; ++i) body[fmt::format("made_up_{}_{}", request, i)] = 1;
    EXPECT_EQ(Post(server_->port(), "/v1/completions", body).status, 200);
  }
  server_.reset();
  service_.reset();  // writes the log
  const std::string log = std::string(ReadFile(options_.log.file));
  int lines = 0;
  for (size_t at = log.find("unknown fields"); at != log.npos;
       at = log.find("unknown fields", at + 1))
    ++lines;
  EXPECT_EQ(lines, 8) << log;  // of eight names each
  EXPECT_NE(log.find("further names are not told"), log.npos);
}

// A benchmark client reads its counts from every event.
TEST_F(AccessTest, CountsInEveryEventWhenAsked) {
  Start();
  const Answer answer =
      Post(server_->port(), "/v1/completions",
           {{"prompt", "xyz"},
            {"max_tokens", 30},
            {"stream", true},
            {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::vector<std::string> events = answer.Events();
  ASSERT_GE(events.size(), 3u);
  events.pop_back();  // [DONE]
  int64_t before = 0;
  for (const std::string& text : events) {
    const Json usage = Json::parse(text)["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 4);
    EXPECT_GE(usage["completion_tokens"].get<int64_t>(), std::max<int64_t>(before, 1));
    before = usage["completion_tokens"];
  }
  EXPECT_EQ(before, 30);
}

}  // namespace
}  // namespace loopspec::test
