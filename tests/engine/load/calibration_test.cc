// What decoding takes from a calibration: rates of drafts, for the choice of rows to begin with.
#include "engine/load/calibration.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"

namespace loopspec {
namespace {

class CalibrationFile : public testing::Test {
 protected:
  Calibration Parse() const { return ParseCalibration(json_.dump(), "file", model_); }
  std::string Refusal() const {
    try {
      Parse();
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  Model model_ =
      Model::Load(std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / "ouro-demo", {}, 0);
  OrderedJson json_ = {
      {"loopspec_calibration", kCalibrationVersion},
      {"model", CalibrationModel(model_)},
      {"greedy",
       {{{"depths", {1, 2}}, {"accepted", {0.7, 0.2}}, {"gate", {0.3}}},
        {{"depths", {1, 2, 3}}, {"accepted", {0.7, 0.2, 0.05}}, {"gate", {0.3, 0.1}}}}},
      {"sampled", {{{"depths", {1}}, {"accepted", {0.6}}, {"gate", OrderedJson::array()}}}},
      {"devices", {{"cpu", {{"depths", {1, 2}}}}}}};
};

TEST_F(CalibrationFile, RatesAreWhatDecodingAssumesAtFirst) {
  const Calibration calibration = Parse();
  EXPECT_EQ(calibration.Prior({1, 2}, true).rates, (std::vector<double>{0.7, 0.2}));
  EXPECT_EQ(calibration.Prior({1, 2}, true).gate, 0.3);
  EXPECT_NEAR(calibration.Prior({1, 2, 3}, true).gate, 0.2, 1e-12);
  EXPECT_EQ(calibration.Prior({1}, false).rates, std::vector<double>{0.6});
  // The paper's where nothing is known.
  for (const AcceptancePrior& prior :
       {calibration.Prior({1, 2}, false), calibration.Prior({3}, true),
        Calibration{}.Prior({1}, true)}) {
    EXPECT_EQ(prior.rates, AcceptancePrior{}.rates);
    EXPECT_EQ(prior.gate, AcceptancePrior{}.gate);
  }
}

TEST_F(CalibrationFile, MayLackRates) {
  json_.erase("greedy");
  json_.erase("sampled");
  EXPECT_EQ(Parse().depths.at("cpu"), (std::vector<int>{1, 2}));
}

TEST_F(CalibrationFile, BadRatesAreRefused) {
  const OrderedJson good = json_;
  const auto after = [&](const char* pointer, const OrderedJson& value) {
    json_ = good;
    json_[OrderedJson::json_pointer(pointer)] = value;
    return Refusal();
  };
  EXPECT_EQ(after("/greedy", 3), "file: \"greedy\" is no list");
  EXPECT_EQ(after("/greedy/0", 3), "file: a set of depths has no list \"accepted\"");
  EXPECT_EQ(after("/greedy/0/accepted", "x"), "file: a set of depths has no list \"accepted\"");
  EXPECT_EQ(after("/greedy/0/accepted/0", 1.5),
            "file: \"accepted\" of a set of depths: expected numbers from 0 to 1");
  EXPECT_EQ(after("/greedy/0/gate/0", "x"),
            "file: \"gate\" of a set of depths: expected numbers from 0 to 1");
  EXPECT_EQ(after("/greedy/0/depths", {1}), "file: \"greedy\": expected as many depths as rates");
  EXPECT_EQ(after("/sampled/0/depths/0", 1.5), "file: depths of sampled: expected whole numbers");
  EXPECT_NE(after("/sampled/0/depths/0", 4).find("file: depths"), std::string::npos);
  EXPECT_NE(after("/sampled/0/depths/0", 1e300).find("file: depths"), std::string::npos);
}

}  // namespace
}  // namespace loopspec
