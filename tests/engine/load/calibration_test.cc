// What decoding takes from a calibration: rates of drafts, for the choice of rows to begin with.
#include "engine/load/calibration.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "tests/support/temporary_folder.h"

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
      {"devices",
       {{"cpu",
         {{"greedy", Choice({1, 2}, "here", 2, "bf16")},
          {"sampling", Choice({1}, "here", 2, "bf16")}}}}}};

  static OrderedJson Choice(const std::vector<int>& depths, const std::string& chip, int threads,
                            const std::string& compute) {
    return {{"depths", depths},     {"chip", chip},   {"threads", threads}, {"compute", compute},
            {"date", "2026-11-16"}, {"version", "1"}, {"prompts", "p.txt"}, {"context", 100}};
  }
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
  EXPECT_EQ(Parse().choices.at({"cpu", "greedy"}).depths, (std::vector<int>{1, 2}));
}

TEST_F(CalibrationFile, HoldsOneChoiceForGreedyAndOneForSampledText) {
  const Calibration calibration = Parse();
  EXPECT_EQ(calibration.choices.at({"cpu", "greedy"}).depths, (std::vector<int>{1, 2}));
  const CalibratedDepths& sampled = calibration.choices.at({"cpu", "sampling"});
  EXPECT_EQ(sampled.depths, std::vector<int>{1});
  EXPECT_EQ(NameOf(sampled.machine), "here, 2 threads, bf16");
  EXPECT_EQ(sampled.date, "2026-11-16");
  EXPECT_EQ(sampled.prompts, "p.txt");
}

TEST_F(CalibrationFile, SaysWhereItComesFrom) {
  for (const char* key : {"depths", "chip", "compute", "date", "version", "prompts"}) {
    const OrderedJson good = json_;
    json_["devices"]["cpu"]["greedy"].erase(key);
    EXPECT_NE(Refusal().find(key), std::string::npos) << key;
    json_ = good;
  }
}

// Speeds of another chip, thread count or precision decide nothing; what the file says of the model
// still counts.
TEST_F(CalibrationFile, ChoicesOfOtherMachinesAreNotUsed) {
  EngineOptions options;
  options.device = "cpu";
  options.threads = 2;
  options.compute = "f32";
  const Machine here = MachineFor(model_, options);
  EXPECT_EQ(here.threads, 2);
  EXPECT_EQ(here.compute, "f32");
  const std::filesystem::path folder =
      std::filesystem::path(LOOPSPEC_BINARY_DIR) / "calibration_test_data";
  std::filesystem::create_directories(folder);
  const auto choose = [&](const std::string& chip, int threads, const std::string& compute) {
    for (const char* view : {"greedy", "sampling"})
      json_["devices"]["cpu"][view] = Choice({3}, chip, threads, compute);
    std::ofstream(folder / kCalibrationName) << json_.dump();
    return ChooseDefaultDepths(folder, model_, options);
  };
  const ChosenDepths same = choose(here.chip, 2, "f32");
  EXPECT_EQ(same.depths, std::vector<int>{3});
  EXPECT_EQ(same.sampled_depths, std::vector<int>{3});
  EXPECT_TRUE(same.file.has_value());
  EXPECT_EQ(same.note, "");
  const std::vector<int> by_rule = DefaultDepths(4, DeviceClass::kCpu);
  for (const ChosenDepths& other : {choose("Other Chip", 2, "f32"), choose(here.chip, 3, "f32"),
                                    choose(here.chip, 2, "bf16")}) {
    EXPECT_EQ(other.depths, by_rule);
    EXPECT_FALSE(other.file.has_value());
    EXPECT_NE(other.note.find("its rates of drafts are used, its depths are not"),
              std::string::npos)
        << other.note;
    EXPECT_EQ(other.calibration.Prior({1, 2}, true).rates, (std::vector<double>{0.7, 0.2}));
  }
  // And on request none of it.
  choose(here.chip, 2, "f32");
  options.calibration = false;
  const ChosenDepths none = ChooseDefaultDepths(folder, model_, options);
  EXPECT_EQ(none.depths, by_rule);
  EXPECT_TRUE(none.calibration.greedy.empty());
}

// By a plan of keys drafts and costs are others: what was measured with one holds for it alone, and
// lies in the file beside what was measured without.
TEST_F(CalibrationFile, ChoicesHoldForThePlanOfKeysThatTheyWereMadeWith) {
  EngineOptions options;
  options.device = "cpu";
  options.threads = 2;
  options.compute = "f32";
  options.kv_type = "loops";
  const Machine here = MachineFor(model_, options);
  EXPECT_EQ(here.plan, "loops:int8,r5,r4@64");
  EXPECT_EQ(NameOf(here), here.chip + ", 2 threads, f32, keys loops:int8,r5,r4@64");
  const std::string section = SectionOf(DeviceClass::kCpu, here.plan);
  EXPECT_EQ(section, "cpu, keys loops:int8,r5,r4@64");
  for (const char* view : {"greedy", "sampling"}) {
    json_["devices"]["cpu"][view] = Choice({3}, here.chip, 2, "f32");
    json_["devices"][section][view] = Choice({2, 3}, here.chip, 2, "f32");
    json_["devices"][section][view]["kv_type"] = here.plan;
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() / kCalibrationName) << json_.dump();
  const auto choose = [&](const char* kv_type) {
    options.kv_type = kv_type;
    return ChooseDefaultDepths(folder.path(), model_, options);
  };
  const std::vector<int> by_rule = DefaultDepths(4, DeviceClass::kCpu);
  for (const char* same : {"loops", "loops:int8,r5,r4", "loops:int8,r5,r4@64"}) {
    EXPECT_EQ(choose(same).depths, (std::vector<int>{2, 3})) << same;
    EXPECT_EQ(choose(same).sampled_depths, (std::vector<int>{2, 3})) << same;
    EXPECT_EQ(choose(same).note, "") << same;
  }
  for (const char* other : {"loops:int8,r5,r4@128", "loops:int8*2,last"}) {
    EXPECT_EQ(choose(other).depths, by_rule) << other;
    EXPECT_NE(choose(other).note.find(std::string("was not measured with keys ") + other),
              std::string::npos)
        << choose(other).note;
    EXPECT_EQ(choose(other).calibration.Prior({1, 2}, true).rates, (std::vector<double>{0.7, 0.2}));
  }
  for (const char* none : {"auto", "int8"})
    EXPECT_EQ(choose(none).depths, std::vector<int>{3}) << none;
  // Of another machine it is not used either.
  json_["devices"][section]["greedy"]["threads"] = 3;
  std::ofstream(folder.path() / kCalibrationName) << json_.dump();
  EXPECT_EQ(choose("loops").depths, by_rule);
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
