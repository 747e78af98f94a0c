// How keys and values are asked for: by name, by a plan, or by the model's default plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/load/device.h"

namespace loopspec {
namespace {

ModelSpec Spec(const char* family, int recurrence) {
  ModelSpec spec;
  spec.family = family;
  spec.recurrence = recurrence;
  return spec;
}

const ModelSpec kOuro = Spec("ouro", 4), kRaven = Spec("raven", 32);

std::string PlanOf(const ModelSpec& spec, const std::string& text, DeviceClass device) {
  const KvChoice choice = ParseKvType(text, ComputeMode::kBF16, spec, device);
  EXPECT_EQ(choice.type, KvType::kLoops);
  return choice.plan ? choice.plan->text() : "none";
}

std::string RefusalOf(const ModelSpec& spec, const std::string& text, DeviceClass device) {
  try {
    ParseKvType(text, ComputeMode::kBF16, spec, device);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(KvTypeOfAnEngine, LoopsAloneIsTheDefaultPlan) {
  EXPECT_EQ(PlanOf(kOuro, "loops", DeviceClass::kCpu), "int8,r5,r4@64");
  EXPECT_EQ(PlanOf(kRaven, "loops", DeviceClass::kCpu), "int8*8,last@64");
  for (const char* family : {"raven", "huginn"})
    EXPECT_EQ(PlanOf(Spec(family, 16), "loops", DeviceClass::kCpu), "int8*8,last@64");
  // A GPU's prompts want longer spans.
  EXPECT_EQ(PlanOf(kRaven, "loops", DeviceClass::kGpu), "int8*8,last@512");
  // What is named is taken as it is.
  for (const DeviceClass device : {DeviceClass::kCpu, DeviceClass::kGpu}) {
    EXPECT_EQ(PlanOf(kRaven, "loops:int8*8,last", device), "int8*8,last@64");
    EXPECT_EQ(PlanOf(kRaven, "loops:int8*4,last@128", device), "int8*4,last@128");
  }
}

TEST(KvTypeOfAnEngine, WithoutADefaultPlanThatIsSaid) {
  const auto expect = [](const std::string& said, const std::vector<std::string>& words) {
    for (const std::string& word : words)
      EXPECT_NE(said.find(word), std::string::npos) << word << "\n" << said;
  };
  // What holds for other loops says nothing of these.
  for (const ModelSpec& spec :
       {Spec("ouro", 3), Spec("ouro", 32), Spec("raven", 8), Spec("nanbeige", 2), Spec("ifm", 4)})
    expect(RefusalOf(spec, "loops", DeviceClass::kCpu),
           {"kv_type is loops, expected", "loops:PLAN", fmt::format("of {} loops", spec.recurrence),
            "calibrate --keys"});
  expect(RefusalOf(kOuro, "loops", DeviceClass::kGpu),
         {"kv_type is loops, expected", "on a GPU", "no residuals", "int8,r5,r4"});
  expect(RefusalOf(Spec("raven", 1), "loops", DeviceClass::kCpu), {"loops", "one loop"});
  expect(RefusalOf(kRaven, "loop", DeviceClass::kCpu), {"kv_type is loop, expected", "loops:PLAN"});
}

}  // namespace
}  // namespace loopspec
