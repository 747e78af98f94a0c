// Keys kept by a plan of loops: what a query reads, against an int8 backend whose pages are
// rewritten by hand between the spans of a text; residuals against what such a backend's keys have
// beyond the last loop's; and texts of fewer loops. The same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "backends/cpu/kv_int8.h"
#include "backends/cpu/kv_residual.h"
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

  static void ExpectTextsOfFewerLoopsToHaveTheirOwnLast();

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
void LoopKeys::ExpectTextsOfFewerLoopsToHaveTheirOwnLast() {
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

TEST_P(LoopKeys, ATextOfFewerLoopsHasItsOwnLast) {
  ExpectTextsOfFewerLoopsToHaveTheirOwnLast();
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

// ---- Residuals against the last loop ----

class LoopResiduals : public LoopKeys {};

// Of the first two spans, whose keys are int8's: a page's residuals are what an int8 backend's keys
// of each loop have beyond those of the last one.
TEST_P(LoopResiduals, AreTheOwnKeysBeyondTheLastLoops) {
  const Model model = LoadTestModel(GetParam().model, GetParam().recurrence);
  const ModelSpec& spec = model.spec;
  const int d = spec.head_dim;
  const SpannedKeyPlan plan = SpannedKeyPlan::Parse(GetParam().plan, spec.recurrence);
  const std::vector<int> depths = {1, spec.recurrence};
  const PlaneMap planes(spec, 2);
  const KeptPlanes kept(spec, 2, plan);
  const std::vector<int32_t> text = RandomTokens(spec, static_cast<size_t>(2 * plan.span), 3);
  const auto pages_of = [&](Backend& backend) {
    KvLedger ledger(backend.pages(), 1, backend.window_pages());
    const SequencePages pages(ledger, std::ssize(text));
    backend.Prefill({PlanOf(pages), 0, text});
    std::vector<std::byte> bytes(pages.pages().size() * static_cast<size_t>(backend.page_bytes()));
    backend.SavePages(pages.pages(), bytes.data());
    return bytes;
  };
  const auto int8 = MakeCpuBackend(model, Options(depths, nullptr));
  const auto backend = MakeCpuBackend(model, Options(depths, &plan));
  const std::vector<std::byte> own = pages_of(*int8), found = pages_of(*backend);
  const int64_t head_bytes = int64_t{2} * kPageSize * (d + 4);
  const auto head_at = [&](int64_t page, int plane, int head) {
    return own.data() + page * int8->page_bytes() + (plane * spec.kv_heads + head) * head_bytes;
  };
  EXPECT_LT(backend->page_bytes(), int8->page_bytes());
  int compared = 0;
  for (int64_t page = 0; page < std::ssize(text) / kPageSize; ++page) {
    const std::byte* residuals =
        found.data() + (page + 1) * backend->page_bytes() - kept.residual_bytes();
    for (int depth = 1; depth < spec.recurrence; ++depth) {
      const KeyForm form = plan.plan.At(depth);
      if (form.kind != KeyForm::Kind::kResidual) continue;
      for (int layer = 0; layer < spec.core_calls(); ++layer) {
        const int plane = planes.Core(layer, depth), last = planes.Core(layer, spec.recurrence);
        for (int head = 0; head < spec.kv_heads; ++head, ++compared) {
          const auto bytes = static_cast<size_t>(ResidualPageBytes(form.bits, d));
          std::vector<std::byte> expected(bytes);
          for (int position = 0; position < kPageSize; ++position) {
            std::vector<std::byte> a(static_cast<size_t>(2 * (d + 4))), b = a;
            cpu::CopyInt8FromPage(head_at(page, plane, head), d, a.data(), position);
            cpu::CopyInt8FromPage(head_at(page, last, head), d, b.data(), position);
            cpu::StoreResidual(a.data(), b.data(), form.bits, d, expected.data(), position);
          }
          const std::byte* at =
              residuals + kept.At(0, plane).residual + int64_t{head} * std::ssize(expected);
          ASSERT_EQ(std::memcmp(at, expected.data(), bytes), 0)
              << "page " << page << " depth " << depth << " layer " << layer << " head " << head;
        }
      }
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_P(LoopResiduals, ATextOfFewerLoopsHasItsOwnLast) {
  ExpectTextsOfFewerLoopsToHaveTheirOwnLast();
}

// A span longer than a page, a window of more pages than one for each turn, and all three forms.
constexpr PlanCase kResidualCases[] = {
    {"ouro-tiny-f32", 0, "int8,r5,r4", ComputeMode::kF32},
    {"ouro-tiny-gqa-bf16-sharded", 0, "r6,r4,r3@128"},
    {"raven-llama-tiny-f32", 0, "r7,last"},
    {"huginn-tiny-f32", 0, "r2,int8,r8,last,r3"},
    {"nanbeige-tiny-f32", 0, "r5", ComputeMode::kF32},
};
INSTANTIATE_TEST_SUITE_P(All, LoopResiduals, testing::ValuesIn(kResidualCases), NameOf);

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
