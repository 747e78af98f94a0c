// The server over tiny models of the other families, which have no tokenizer: ids in, ids out, at
// every depth that the model offers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/device.h"

namespace loopspec::test {
namespace {

class FamilyServer : public testing::TestWithParam<const char*> {
 protected:
  FamilyServer() : service_(Quiet()) {
    EngineOptions load;
    load.model = std::string(LOOPSPEC_BINARY_DIR "/goldens/") + GetParam();
    load.device = TestDevice();
    load.threads = 1;
    load.kv_positions = 4096;
    load.recurrences = {1};
    service_.SetEngine(std::make_shared<Engine>(load));
    serve::HttpServerOptions http;
    http.port = 0;
    server_ = std::make_unique<serve::HttpServer>(http, service_);
  }
  static serve::ServiceOptions Quiet() {
    serve::ServiceOptions options;
    options.log.file = "/dev/null";
    return options;
  }

  Answer Ask(int recurrence, const std::string& decode) const {
    std::vector<int> ids;
    for (int i = 0; i < 70; ++i) ids.push_back(3 + i * 7 % 50);
    Json body = {
        {"input_ids", ids},
        {"decode", decode},
        {"sampling_params", {{"max_new_tokens", 20}, {"temperature", 0}, {"ignore_eos", true}}}};
    if (recurrence > 0) body["recurrence"] = recurrence;
    return Post(server_->port(), "/generate", body);
  }

  serve::Service service_;
  std::unique_ptr<serve::HttpServer> server_;
};

TEST_P(FamilyServer, EveryDepthOnOfferIsTheSameWithDraftsAndWithout) {
  const Json model = Get(server_->port(), "/v1/models").json()["data"][0]["loopspec"];
  const auto offered = model["recurrences"].get<std::vector<int>>();
  ASSERT_GE(offered.size(), 2u);
  EXPECT_EQ(offered.front(), 1);
  EXPECT_EQ(offered.back(), model["recurrence"]);
  std::vector<Json> texts;
  for (const int recurrence : offered) {
    const Answer plain = Ask(recurrence, "ar"), drafted = Ask(recurrence, "loopspec");
    ASSERT_EQ(plain.status, 200) << plain.body;
    ASSERT_EQ(drafted.status, 200) << drafted.body;
    texts.push_back(plain.json()["output_ids"]);
    EXPECT_EQ(texts.back().size(), 20u);
    EXPECT_EQ(drafted.json()["output_ids"], texts.back()) << recurrence;
  }
  EXPECT_EQ(Ask(0, "ar").json()["output_ids"], texts.back());
  EXPECT_NE(texts.front(), texts.back());
  const Answer beyond = Ask(offered.back() + 1, "ar");
  EXPECT_EQ(beyond.status, 400);
  EXPECT_EQ(beyond.param(), "recurrence");
  EXPECT_NE(beyond.error().find("the model was trained for"), std::string::npos) << beyond.body;
}

INSTANTIATE_TEST_SUITE_P(All, FamilyServer,
                         testing::Values("nanbeige-tiny-f32", "nanbeige-tiny-skipnorm-bf16",
                                         "huginn-tiny-f32"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace loopspec::test
