// Keys across loops: residuals of keys that are made for it, the rule by absolute positions against
// reading position by position, and what is proposed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backends/cpu/kv_int8.h"
#include "base/error.h"
#include "base/json.h"
#include "calibrate/key_judge.h"
#include "calibrate/key_reader.h"
#include "calibrate/key_report.h"
#include "calibrate/key_residuals.h"
#include "kv/planes.h"
#include "tests/support/driver.h"
#include "tests/support/fake_backend.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

// ---- Residuals ----

// Two layers and two heads of keys that are multiples of the last loop's: by depth, K / K_last and
// V / V_last.
class MadeKeys : public FakeBackend {
 public:
  static constexpr int kDim = 8;
  static constexpr float kKeys[] = {2.0f, 0.5f, 1.0f, 1.0f};
  static constexpr float kValues[] = {4.0f, 2.0f, 1.0f, 1.0f};

  explicit MadeKeys(FakeModel& model)
      : FakeBackend(model, {1}, 1), spec_(model.spec()), planes_(MakePlanes()) {
    const size_t rows = static_cast<size_t>(pages() * planes_.count() * spec_.kv_heads) * 2;
    numbers_.resize(rows * kPageSize * kDim);
    for (int page = 0; page < pages(); ++page) {
      for (int layer = 0; layer < spec_.core_layers; ++layer) {
        for (int head = 0; head < spec_.kv_heads; ++head) {
          for (int depth = 1; depth <= spec_.recurrence; ++depth)
            Fill(KeysOf(page, planes_.Core(layer, depth), head), depth);
        }
      }
    }
  }

  const ModelSpec& spec() const override { return spec_; }
  FloatKeys KeysOf(int32_t page, int plane, int head) override {
    const size_t count = kPageSize * kDim;
    const auto at = static_cast<size_t>((page * planes_.count() + plane) * spec_.kv_heads + head);
    const std::span<float> both(numbers_.data() + at * 2 * count, 2 * count);
    return {both.first(count), both.last(count)};
  }

 private:
  PlaneMap MakePlanes() {
    spec_.head_dim = kDim;
    spec_.kv_heads = 2;
    spec_.core_layers = 2;
    return PlaneMap(spec_, 2);
  }
  static void Fill(FloatKeys to, int depth) {
    for (size_t i = 0; i < to.keys.size(); ++i) {
      const auto number = static_cast<float>(static_cast<int>(i * 37 % 101) - 40);
      to.keys[i] = number * kKeys[depth - 1];
      to.values[i] = -number * kValues[depth - 1];
    }
  }

  ModelSpec spec_;
  PlaneMap planes_;
  std::vector<float> numbers_;
};

TEST(KeyResiduals, AreThoseOfTheKeysThatWereMade) {
  FakeModel model(1, FakeShape::kRandom, 4);
  MadeKeys backend(model);
  KvLedger ledger(backend.pages(), 1);
  const SequencePages pages(ledger, 40);
  KeyResiduals residuals(backend.spec());
  residuals.Add(backend, pages.pages(), 40);
  residuals.Add(backend, pages.pages(), 24);
  EXPECT_EQ(residuals.positions(), 64);
  ASSERT_EQ(residuals.depths(), 3);
  for (int layer = 0; layer < residuals.layers(); ++layer) {
    EXPECT_EQ(residuals.Keys(1, layer), 0.5);
    EXPECT_EQ(residuals.Keys(2, layer), 1.0);
    EXPECT_EQ(residuals.Keys(3, layer), 0.0);
    EXPECT_EQ(residuals.Values(1, layer), 0.75);
    EXPECT_EQ(residuals.Values(2, layer), 0.5);
    EXPECT_EQ(residuals.Values(3, layer), 0.0);
  }
  EXPECT_EQ(residuals.Keys(1), 0.5);
  EXPECT_EQ(residuals.Values(1), 0.75);
  // The last loop's keys err as their own int8 where they are the same, and by the whole residual
  // where they are not.
  EXPECT_EQ(residuals.Error(3, kLastKeys), residuals.Error(3, kOwnKeys));
  EXPECT_NEAR(residuals.Error(1, kLastKeys), std::sqrt((0.25 + 0.5625) / 2), 0.01);
  EXPECT_GT(residuals.Error(3, kOwnKeys), 0.0);
  // More bits, less error.
  for (int bits = kFewestResidualBits; bits < kMostResidualBits; ++bits)
    EXPECT_GT(residuals.Error(1, ResidualKeys(bits)), residuals.Error(1, ResidualKeys(bits + 1)));
}

TEST(KeyResiduals, PlansKeepWhatDiffersAndNothingElse) {
  FakeModel model(1, FakeShape::kRandom, 4);
  MadeKeys backend(model);
  KvLedger ledger(backend.pages(), 1);
  const SequencePages pages(ledger, 40);
  KeyResiduals residuals(backend.spec());
  residuals.Add(backend, pages.pages(), 40);
  const std::vector<KeyPlan> plans = PlansFor(residuals, backend.spec(), 2);
  EXPECT_EQ(plans, PlansFor(residuals, backend.spec(), 2));
  ASSERT_FALSE(plans.empty());
  int64_t bytes = 0;
  for (const KeyPlan& plan : plans) {
    EXPECT_EQ(plan.At(3), kLastKeys) << plan.text();
    EXPECT_GE(plan.BytesPerPosition(backend.spec(), 2), bytes);
    bytes = plan.BytesPerPosition(backend.spec(), 2);
  }
  // The map alone, since nothing but int8 is near enough for the first two loops.
  EXPECT_NE(std::find(plans.begin(), plans.end(), KeyPlan::Parse("int8*2,last", 4)), plans.end());
}

// ---- Forms ----

TEST(KeyForms, Int8IsThatOfTheBackendsPlanes) {
  constexpr int kDim = 64;
  uint32_t seed = 7;
  for (int round = 0; round < 200; ++round) {
    float key[kDim], value[kDim];
    for (float* x : {key, value}) {
      for (int i = 0; i < kDim; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(seed)), round % 40 - 50);
      }
    }
    std::byte stored[2 * kDim + 8];
    cpu::StoreInt8(key, value, kDim, stored);
    float scales[2];
    std::memcpy(scales, stored + 2 * kDim, sizeof(scales));
    RoundToInt8(key, kDim);
    RoundToInt8(value, kDim);
    for (int i = 0; i < kDim; ++i) {
      EXPECT_EQ(key[i], static_cast<float>(static_cast<int>(stored[i]) - 128) * scales[0]);
      EXPECT_EQ(value[i], static_cast<float>(static_cast<int>(stored[kDim + i]) - 128) * scales[1]);
    }
  }
}

// ---- Reading by a plan ----

using Logits = std::vector<float>;
using LogitsTable = std::map<std::pair<int32_t, int32_t>, Logits>;  // by position and readout

class KeysOfFamily : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kLength = 44;

  KeysOfFamily()
      : model_(LoadTestModel(GetParam())),
        text_(RandomTokens(model_.spec, kLength, 5)),
        reader_(model_, Options(), kLength) {}

  BackendOptions Options() const {
    BackendOptions options;
    options.readout_depths = {1, model_.spec.recurrence};
    options.threads = 2;
    return options;
  }
  KeyPlan Plan(const std::string& text) const {
    return KeyPlan::Parse(text, model_.spec.recurrence);
  }
  LogitsTable Read(const std::string& plan, int span, int chunk) {
    LogitsTable said;
    reader_.ReadByPlan(text_, Plan(plan), span, chunk, Into(said));
    return said;
  }
  static LogitsSink Into(LogitsTable& said) {
    return [&](int32_t position, int32_t readout, std::span<const float> row) {
      said[{position, readout}].assign(row.begin(), row.end());
    };
  }

  Model model_;
  std::vector<int32_t> text_;
  KeyReader reader_;
};

// What a query reads depends on its position: a text read at once span by span, in pieces of two,
// and token by token, as decoding does, gives the same bits.
TEST_P(KeysOfFamily, ReadTheSameHoweverTheTextIsCut) {
  for (const char* plan : {"int8,r4,last", "last", "r3"}) {
    const LogitsTable whole = Read(plan, 8, 8);
    EXPECT_EQ(whole.size(), 2u * kLength);
    EXPECT_EQ(Read(plan, 8, 2), whole) << plan;
    EXPECT_EQ(Read(plan, 8, 1), whole) << plan;
  }
}

TEST_P(KeysOfFamily, OfTheirOwnInt8EverywhereAreInt8Keys) {
  const LogitsTable int8 = Read("int8", 64, 64);  // one span: nothing is read by the plan
  EXPECT_EQ(Read("int8", 8, 8), int8);
  EXPECT_EQ(Read("last", 64, 64), int8);
  LogitsTable exact;
  reader_.ReadExactly(text_, Into(exact));
  EXPECT_NE(int8, exact);
}

// The first query that reads by the plan is the first of the third span.
TEST_P(KeysOfFamily, AreExactInTwoSpans) {
  for (const int span : {4, 8, 16}) {
    const LogitsTable int8 = Read("int8", span, span), last = Read("last", span, span);
    for (int32_t position = 0; position < 2 * span; ++position)
      EXPECT_EQ(last.at({position, 1}), int8.at({position, 1})) << span << " " << position;
    EXPECT_NE(last.at({2 * span, 1}), int8.at({2 * span, 1})) << span;
  }
}

TEST_P(KeysOfFamily, LieInTheFormsOfThePlan) {
  const ModelSpec& spec = model_.spec;
  const int span = 8, d = spec.head_dim;
  const PlaneMap planes(spec, 2);
  const auto keys = [&](const char* plan) {
    Read(plan, span, span);
    std::vector<float> all;  // [layer][depth][position][key, value]
    for (int layer = 0; layer < spec.core_calls(); ++layer) {
      for (int depth = 1; depth <= spec.recurrence; ++depth) {
        const Backend::FloatKeys at =
            reader_.backend().KeysOf(reader_.pages()[0], planes.Core(layer, depth), 0);
        for (int64_t i = 0; i < kLength * d; ++i)
          all.insert(all.end(),
                     {at.keys[static_cast<size_t>(i)], at.values[static_cast<size_t>(i)]});
      }
    }
    return all;
  };
  const std::vector<float> last = keys("last");
  const size_t plane = 2 * kLength * static_cast<size_t>(d);
  // The last text position is in span 5, so that spans 0 to 3 are in the form of the plan.
  const size_t coded = 2 * 4 * span * static_cast<size_t>(d);
  const auto depths = static_cast<size_t>(spec.recurrence);
  for (size_t layer = 0; layer < static_cast<size_t>(spec.core_calls()); ++layer) {
    const float* of_last = &last[(layer * depths + depths - 1) * plane];
    for (size_t depth = 0; depth + 1 < depths; ++depth) {
      const float* own = &last[(layer * depths + depth) * plane];
      EXPECT_TRUE(std::equal(own, own + coded, of_last));
      EXPECT_FALSE(std::equal(own + coded, own + plane, of_last + coded));
    }
  }
}

// Decoding by a plan reads what is measured here: its logits are far nearer to those of its own
// plan than to those of one with a bit less.
TEST_P(KeysOfFamily, AreDecodedAsTheyAreMeasured) {
  const std::vector<int32_t> text = RandomTokens(model_.spec, 4 * kPageSize, 6);
  BackendOptions options = Options();
  KeyReader reader(model_, options, std::ssize(text));
  options.compute = ComputeMode::kF32;
  options.cells = 1;
  options.kv_positions = std::ssize(text);
  options.kv_type = KvType::kLoops;
  options.key_plan = SpannedKeyPlan{Plan("r2"), kPageSize};
  LogitsTable decoded;
  ScoreTokens(*MakeCpuBackend(model_, options), text, Into(decoded));
  const auto distance = [&](const char* plan) {
    LogitsTable measured;
    reader.ReadByPlan(text, Plan(plan), kPageSize, kPageSize, Into(measured));
    double sum = 0;
    for (const auto& [key, logits] : measured) {
      for (size_t i = 0; key.first >= 2 * kPageSize && i < logits.size(); ++i)
        sum += std::fabs(logits[i] - decoded.at(key)[i]);
    }
    return sum;
  };
  const double same = distance("r2");
  EXPECT_LT(4 * same, distance("r3"));
  EXPECT_LT(4 * same, distance("int8"));
  EXPECT_LT(4 * same, distance("last"));
}

// ---- Judging ----

TEST_P(KeysOfFamily, AreJudgedAgainstExactOnes) {
  const TokenTexts texts = {text_, RandomTokens(model_.spec, 30, 9)};
  const std::vector<KeyPlan> plans = {Plan("int8"), Plan("r8"), Plan("last")};
  int64_t read = 0;
  const KeyJudgement found = JudgePlans(reader_, texts, plans, 4, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 5 * (kLength + 30));
    EXPECT_GT(done, read);
    read = done;
  });
  EXPECT_EQ(read, 5 * (kLength + 30));
  EXPECT_EQ(found.positions, kLength + 30);
  ASSERT_EQ(found.plans.size(), 3u);
  // int8 as a plan is int8.
  EXPECT_EQ(found.plans[0].distance, found.int8.distance);
  EXPECT_EQ(found.plans[0].perplexity, found.int8.perplexity);
  EXPECT_EQ(found.plans[0].gamma, found.int8.gamma);
  EXPECT_EQ(found.plans[0].added, 0.0);
  EXPECT_EQ(found.int8.added, 0.0);
  EXPECT_GT(found.int8.distance, 0.0);
  EXPECT_GT(found.plans[1].added, 0.0);
  EXPECT_GT(found.plans[2].added, found.plans[1].added);
  // And twice the same.
  const KeyJudgement again = JudgePlans(reader_, texts, plans, 4);
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(again.plans[i].distance, found.plans[i].distance);
    EXPECT_EQ(again.plans[i].agreed, found.plans[i].agreed);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, KeysOfFamily,
                         testing::Values("ouro-tiny-f32", "raven-llama-tiny-f32",
                                         "huginn-tiny-f32"));

TEST(KeyProposal, IsTheCheapestThatIsAsGoodAsInt8) {
  FakeModel model(1, FakeShape::kRandom, 4);
  const MadeKeys backend(model);
  const ModelSpec& spec = backend.spec();
  const KeyPlan int8 = KeyPlan::Parse("int8", 4);
  KeyJudgement judgement{.int8 = {.plan = int8, .distance = 1.0}};
  const auto add = [&](const char* plan, double distance, double added) {
    judgement.plans.push_back(
        {.plan = KeyPlan::Parse(plan, 4), .distance = distance, .added = added});
  };
  EXPECT_EQ(ProposePlan(judgement, spec, 2), nullptr);
  add("last", 1.31, 0.9);       // too far from exact keys
  add("int8,last", 1.2, 1.01);  // adds more than int8 itself
  EXPECT_EQ(ProposePlan(judgement, spec, 2), nullptr);
  add("int8*2,last", 1.3, 1.0);
  add("int8*2,r4", 1.0, 0.1);
  ASSERT_NE(ProposePlan(judgement, spec, 2), nullptr);
  EXPECT_EQ(ProposePlan(judgement, spec, 2)->plan.text(), "int8*2,last");
  add("int8,last,int8", 1.1, 0.5);  // as many bytes, and nearer
  EXPECT_EQ(ProposePlan(judgement, spec, 2)->plan.text(), "int8,last,int8");
}

TEST(KeysOf, AreHandedOutInFloat32Alone) {
  const Model model = LoadTestModel("ouro-tiny-f32");
  BackendOptions options;
  options.readout_depths = {model.spec.recurrence};
  options.kv_positions = 64;
  options.cells = 1;
  options.threads = 1;
  options.compute = ComputeMode::kF32;
  EXPECT_EQ(MakeCpuBackend(model, options)->KeysOf(0, 0, 0).keys.size(), 64u * 16u);
  options.kv_type = KvType::kInt8;
  EXPECT_THROW(MakeCpuBackend(model, options)->KeysOf(0, 0, 0), Error);
  options.kv_type = KvType::kCompute;
  options.compute = ComputeMode::kBF16;
  EXPECT_THROW(MakeCpuBackend(model, options)->KeysOf(0, 0, 0), Error);
  // A backend that knows nothing of it.
  FakeModel fake(1, FakeShape::kRandom, 4);
  EXPECT_THROW(FakeBackend(fake, {1}, 1).KeysOf(0, 0, 0), Error);
}

}  // namespace
}  // namespace loopspec
