// Keys kept by a plan of loops: what a query reads, against an int8 backend whose pages are
// rewritten by hand between the spans of a text, and texts of fewer loops. The same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "kv/planes.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

using LogitsTable = std::map<std::pair<int32_t, int32_t>, std::vector<float>>;

struct PlanCase {
  const char* model;
  int recurrence;  // 0: the config's
  const char* plan;
  ComputeMode compute = ComputeMode::kBF16;
};

class LoopKeys : public testing::TestWithParam<PlanCase> {
 protected:
  static BackendOptions Options(const std::vector<int>& depths, const SpannedKeyPlan* plan) {
    BackendOptions options;
    options.readout_depths = depths;
    options.compute = GetParam().compute;
    options.cells = 2;
    options.kv_positions = 1024;
    options.threads = 2;
    options.kv_type = plan != nullptr ? KvType::kLoops : KvType::kInt8;
    if (plan != nullptr) options.key_plan = *plan;
    return options;
  }

  static LogitsSink Into(LogitsTable& table) {
    return [&table](int32_t position, int32_t readout, std::span<const float> logits) {
      table[{position, readout}] = std::vector<float>(logits.begin(), logits.end());
    };
  }

  static void ExpectSame(const LogitsTable& found, const LogitsTable& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [key, logits] : expected) {
      const std::vector<float>& other = found.at(key);
      ASSERT_EQ(std::memcmp(other.data(), logits.data(), logits.size() * sizeof(float)), 0)
          << "position " << key.first << " readout " << key.second;
    }
  }
};

// Before a span begins, the page of the span but one before it gets the last loop's bytes wherever
// the plan says so; each span is read by itself.
void ReadAndRewrite(Backend& backend, const SpannedKeyPlan& plan, std::span<const int32_t> text,
                    const LogitsSink& sink) {
  const ModelSpec& spec = backend.spec();
  const PlaneMap planes(spec, static_cast<int>(backend.options().readout_depths.size()));
  KvLedger ledger(backend.pages(), 1);
  const SequencePages pages(ledger, std::ssize(text));
  const auto span = static_cast<size_t>(plan.span);
  std::vector<std::byte> bytes(static_cast<size_t>(backend.page_bytes()));
  const size_t plane_bytes = bytes.size() / static_cast<size_t>(planes.count());
  for (size_t at = 0; at < text.size(); at += span) {
    for (size_t p = at < 2 * span ? at : at - 2 * span; p + span < at; p += kPageSize) {
      const int32_t page = pages.pages()[p / kPageSize];
      backend.SavePages({&page, 1}, bytes.data());
      for (int depth = 1; depth < spec.recurrence; ++depth) {
        if (plan.plan.At(depth) != kLastKeys) continue;
        for (int layer = 0; layer < spec.core_calls(); ++layer) {
          const auto from = static_cast<size_t>(planes.Core(layer, spec.recurrence));
          const auto to = static_cast<size_t>(planes.Core(layer, depth));
          std::memcpy(bytes.data() + to * plane_bytes, bytes.data() + from * plane_bytes,
                      plane_bytes);
        }
      }
      backend.LoadPages({&page, 1}, bytes.data());
    }
    backend.Score({PlanOf(pages), static_cast<int32_t>(at),
                   text.subspan(at, std::min(span, text.size() - at))},
                  sink);
  }
}

TEST_P(LoopKeys, AreTheLastLoopsBeyondTheWindow) {
  const Model model = LoadTestModel(GetParam().model, GetParam().recurrence);
  const int loops = model.spec.recurrence;
  const SpannedKeyPlan plan = SpannedKeyPlan::Parse(GetParam().plan, loops);
  const std::vector<int32_t> text =
      RandomTokens(model.spec, static_cast<size_t>(4 * plan.span + 37), 1);
  const std::vector<int> depths = {1, loops};
  LogitsTable expected, found, exact;
  const auto rewritten = MakeCpuBackend(model, Options(depths, nullptr));
  ReadAndRewrite(*rewritten, plan, text, Into(expected));
  ScoreTokens(*rewritten, text, Into(exact));
  const auto backend = MakeCpuBackend(model, Options(depths, &plan));
  ScoreTokens(*backend, text, Into(found));
  ExpectSame(found, expected);
  // Up to the end of the second span nothing is read from the last loop; after it the plan counts.
  int differ = 0;
  for (const auto& [key, logits] : exact) {
    if (key.first < 2 * plan.span) {
      ASSERT_EQ(found.at(key), logits);
    } else {
      differ += found.at(key) != logits ? 1 : 0;
    }
  }
  EXPECT_GT(differ, 0);
  EXPECT_LT(backend->page_bytes(), rewritten->page_bytes());
}

// A text of fewer loops has that loop's keys where the last one's would be: it is what the model
// writes when it is loaded with so many loops and the plan's first forms.
TEST_P(LoopKeys, ATextOfFewerLoopsHasItsOwnLast) {
  const Model model = LoadTestModel(GetParam().model, GetParam().recurrence);
  const int loops = model.spec.recurrence;
  const SpannedKeyPlan plan = SpannedKeyPlan::Parse(GetParam().plan, loops);
  const std::vector<int32_t> text =
      RandomTokens(model.spec, static_cast<size_t>(3 * plan.span + 5), 2);
  for (int fewer = 2; fewer < loops; ++fewer) {
    const Model cut = LoadTestModel(GetParam().model, fewer);
    std::vector<KeyForm> forms;
    for (int depth = 1; depth < fewer; ++depth) forms.push_back(plan.plan.At(depth));
    const SpannedKeyPlan cut_plan{KeyPlan(forms), plan.span};
    LogitsTable expected, found;
    ScoreTokens(*MakeCpuBackend(cut, Options({fewer}, &cut_plan)), text, Into(expected));
    const auto backend = MakeCpuBackend(model, Options({fewer, loops}, &plan));
    KvLedger ledger(backend->pages(), 1, backend->window_pages());
    const SequencePages pages(ledger, std::ssize(text));
    backend->Score({PlanOf(pages, fewer), 0, text, fewer}, Into(found));
    ExpectSame(found, expected);
  }
}

std::string NameOf(const testing::TestParamInfo<PlanCase>& param) {
  std::string name = fmt::format("{}_{}", param.param.model, param.param.plan);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

constexpr PlanCase kCases[] = {
    {"ouro-tiny-f32", 0, "int8,last", ComputeMode::kF32},
    {"ouro-tiny-gqa-bf16-sharded", 0, "last@128"},
    {"raven-llama-tiny-f32", 0, "int8,last"},
    {"huginn-tiny-f32", 0, "last,int8,last"},
    {"nanbeige-tiny-f32", 0, "last", ComputeMode::kF32},
    {"raven-demo", 5, "int8*2,last@128"},
};
INSTANTIATE_TEST_SUITE_P(All, LoopKeys, testing::ValuesIn(kCases), NameOf);

TEST(SpannedKeyPlan, SaysItsSpanAndRefusesOthers) {
  EXPECT_EQ(SpannedKeyPlan::Parse("int8*8,last", 32).text(), "int8*8,last@64");
  EXPECT_EQ(SpannedKeyPlan::Parse("last@256", 4).span, 256);
  EXPECT_EQ(SpannedKeyPlan::Parse(SpannedKeyPlan::Parse("int8,last@128", 4).text(), 4),
            SpannedKeyPlan::Parse("int8,last@128", 4));
  for (const char* text :
       {"last@", "last@0", "last@65", "last@-64", "last@64x", "last@8192", "@64"})
    EXPECT_THROW(SpannedKeyPlan::Parse(text, 4), Error) << text;
}

}  // namespace
}  // namespace loopspec
