// Keys kept by a plan of loops on the GPU: what a query reads, against an int8 backend whose pages
// are rewritten by hand between the spans of a text; texts of fewer loops; several prompts at once.
// The same bits.
#include <array>
#include <cstring>
#include <map>

#include "cuda_rows.h"
#include "kv/planes.h"

namespace loopspec {
namespace {

using LogitsTable = std::map<std::pair<int32_t, int32_t>, std::vector<float>>;

class CudaLoopKeys : public testing::TestWithParam<PlannedRowModel> {
 protected:
  static ModelSpec Spec() { return SpecOf(GetParam().which); }
  static SpannedKeyPlan Plan() { return SpannedKeyPlan::Parse(GetParam().plan, Spec().recurrence); }
  static std::unique_ptr<cuda::CudaBackend> Make(const ModelSpec& spec, std::vector<int> depths,
                                                 const SpannedKeyPlan* plan) {
    cuda::Check(cudaSetDevice(0), "selecting the GPU");
    BackendOptions options;
    options.readout_depths = std::move(depths);
    options.cells = 80;
    options.kv_positions = 4096;
    options.kv_type = plan != nullptr ? KvType::kLoops : KvType::kInt8;
    if (plan != nullptr) options.key_plan = *plan;
    return std::make_unique<cuda::CudaBackend>(cuda::DeviceModel::Random(spec, 7), options, 0);
  }
  static std::vector<int32_t> Text(int length) {
    std::mt19937 random(5);
    std::vector<int32_t> text;
    for (int i = 0; i < length; ++i)
      text.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(Spec().vocab)));
    return text;
  }
  static LogitsSink Into(LogitsTable& table) {
    return [&table](int32_t position, int32_t readout, std::span<const float> logits) {
      table[{position, readout}] = std::vector<float>(logits.begin(), logits.end());
    };
  }
  static void ExpectSame(const LogitsTable& found, const LogitsTable& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [key, logits] : expected)
      ASSERT_EQ(found.at(key), logits) << "position " << key.first << " readout " << key.second;
  }

  // Gives the planes that the plan leaves out the last loop's bytes, in the pages of the span but
  // one before that which begins at `at`.
  static void Rewrite(Backend& backend, const SpannedKeyPlan& plan, std::span<const int32_t> pages,
                      int at) {
    const ModelSpec& spec = backend.spec();
    const PlaneMap planes(spec, static_cast<int>(backend.options().readout_depths.size()));
    std::vector<std::byte> bytes(static_cast<size_t>(backend.page_bytes()));
    const size_t plane_bytes = bytes.size() / static_cast<size_t>(planes.count());
    for (int p = at - 2 * plan.span; p >= 0 && p + plan.span < at; p += kPageSize) {
      const int32_t page = pages[static_cast<size_t>(p / kPageSize)];
      backend.SavePages({&page, 1}, bytes.data());
      for (int depth = 1; depth < spec.recurrence; ++depth) {
        if (plan.plan.At(depth) != kLastKeys) continue;
        for (int layer = 0; layer < spec.core_layers; ++layer) {
          std::memcpy(
              bytes.data() + static_cast<size_t>(planes.Core(layer, depth)) * plane_bytes,
              bytes.data() + static_cast<size_t>(planes.Core(layer, spec.recurrence)) * plane_bytes,
              plane_bytes);
        }
      }
      backend.LoadPages({&page, 1}, bytes.data());
    }
  }

  // A prompt span by span, with what Rewrite does between them.
  static void ScoreRewritten(Backend& backend, const SpannedKeyPlan& plan, const StepDriver& driver,
                             std::span<const int32_t> text, const LogitsSink& sink) {
    const auto span = static_cast<size_t>(plan.span);
    for (size_t at = 0; at < text.size(); at += span) {
      Rewrite(backend, plan, driver.pages, static_cast<int>(at));
      backend.Score({driver.Sequence(), static_cast<int32_t>(at),
                     text.subspan(at, std::min(span, text.size() - at))},
                    sink);
    }
  }
};

TEST_P(CudaLoopKeys, OfPromptsAreTheLastLoopsBeyondTheWindow) {
  LOOPSPEC_NEEDS_GPU();
  const SpannedKeyPlan plan = Plan();
  const std::vector<int> depths = {1, Spec().recurrence};
  const std::vector<int32_t> text = Text(5 * plan.span + 37);
  LogitsTable expected, exact, found, cut;
  const auto rewritten = Make(Spec(), depths, nullptr), kept = Make(Spec(), depths, &plan);
  const StepDriver before(*rewritten, rewritten->pages()), driver(*kept, kept->pages());
  rewritten->Score({before.Sequence(), 0, text}, Into(exact));
  ScoreRewritten(*rewritten, plan, before, text, Into(expected));
  kept->Score({driver.Sequence(), 0, text}, Into(found));
  ExpectSame(found, expected);
  int at = 0;
  for (const int length : {1, 62, 70, plan.span, 2 * plan.span + 9, 1 << 20}) {
    const int count = std::min<int>(length, static_cast<int>(text.size()) - at);
    kept->Score({driver.Sequence(), at,
                 std::span(text).subspan(static_cast<size_t>(at), static_cast<size_t>(count))},
                Into(cut));
    at += count;
  }
  ExpectSame(cut, expected);
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
  EXPECT_LT(kept->page_bytes(), rewritten->page_bytes());
}

TEST_P(CudaLoopKeys, OfStepsAreTheLastLoopsBeyondTheWindow) {
  LOOPSPEC_NEEDS_GPU();
  const SpannedKeyPlan plan = Plan();
  const int loops = Spec().recurrence;
  const int prompt = 2 * plan.span - 20, end = 4 * plan.span + 30;
  const std::vector<int32_t> text = Text(end);
  const auto rewritten = Make(Spec(), {1, loops}, nullptr), kept = Make(Spec(), {1, loops}, &plan);
  StepDriver before(*rewritten, rewritten->pages()), driver(*kept, kept->pages());
  const auto prefix = std::span(text).first(static_cast<size_t>(prompt));
  LogitsTable ignored;
  ScoreRewritten(*rewritten, plan, before, prefix, Into(ignored));
  kept->Prefill({driver.Sequence(), 0, prefix});
  for (int at = prompt; at < end; ++at) {
    if (at % plan.span == 0) Rewrite(*rewritten, plan, before.pages, at);
    for (StepDriver* d : {&before, &driver}) {
      d->Begin(loops);
      if (at > prompt) d->Commit((at - 1) % 2, at - 1);
      d->AddRow(at % 2, text[static_cast<size_t>(at)], at, 0);
      d->AddReadout(0, 1);
      d->Run();
    }
    ASSERT_EQ(driver.Logits(0), before.Logits(0)) << "position " << at;
  }
}

// Rows of one text at all depths in one step, each a token ahead of the one before it, as LoopSpec
// has them, across the border of a span: they share what lies before their windows. After the
// longer prompt the producer warp fetches it.
TEST_P(CudaLoopKeys, AreSharedByRowsOfAllDepths) {
  LOOPSPEC_NEEDS_GPU();
  const SpannedKeyPlan plan = Plan();
  const int loops = Spec().recurrence;
  const auto backend = Make(Spec(), AllDepths(Spec()).readout_depths, &plan);
  StepDriver driver(*backend, backend->pages());
  const auto chain_of = [](int first, int i) {
    std::vector<int32_t> chain(static_cast<size_t>(i));
    std::iota(chain.begin(), chain.end(), first);
    return chain;
  };
  for (const int prompt : {5 * plan.span - 2, 3840 / plan.span * plan.span - 2}) {
    const std::vector<int32_t> text = Text(prompt + loops + 1);
    backend->Prefill({driver.Sequence(), 0, std::span(text).first(static_cast<size_t>(prompt))});
    // One row a step: token i at depth d once its ancestors have been there.
    std::map<std::pair<int, int>, std::vector<float>> alone;  // token, depth
    for (int i = 0; i <= loops; ++i) {
      for (int d = 0; d < loops; ++d) {
        driver.Begin(1);
        driver.AddRow(i, text[static_cast<size_t>(prompt + i)], prompt + i, d, chain_of(0, i));
        driver.AddReadout(0, d);
        driver.Run();
        alone[{i, d}] = driver.Logits(0);
      }
    }
    for (const int other : std::array{0, 3, 12, 20, 40}) {
      for (int step = 0; step <= 2 * loops; ++step) {
        driver.Begin(1);
        std::vector<std::pair<int, int>> at;
        for (int i = 0; i <= loops; ++i) {
          const int d = step - i;
          if (d < 0 || d >= loops) continue;
          const int row = driver.AddRow(20 + i, text[static_cast<size_t>(prompt + i)], prompt + i,
                                        d, chain_of(20, i));
          driver.AddReadout(row, d);
          at.emplace_back(i, d);
        }
        for (int i = 0; i < other; ++i)
          driver.AddRow(39 + i, text[static_cast<size_t>(i)], prompt, step == 0 ? 0 : i % loops);
        driver.Run();
        for (size_t i = 0; i < at.size(); ++i) {
          ASSERT_EQ(driver.Logits(static_cast<int>(i)), alone.at(at[i]))
              << "token " << at[i].first << " at depth " << at[i].second << " among " << other
              << " after " << prompt;
        }
      }
    }
  }
}

// A text of fewer loops has that loop's keys where the last one's would be: it is what the model
// writes when it has so many loops and the plan's first forms.
TEST_P(CudaLoopKeys, ATextOfFewerLoopsHasItsOwnLast) {
  LOOPSPEC_NEEDS_GPU();
  const SpannedKeyPlan plan = Plan();
  const int loops = Spec().recurrence, prompt = 3 * plan.span + 5, tokens = plan.span + 10;
  const std::vector<int32_t> text = Text(prompt + tokens);
  for (int fewer = 2; fewer < loops; ++fewer) {
    ModelSpec cut_spec = Spec();
    cut_spec.recurrence = fewer;
    std::vector<KeyForm> forms;
    for (int depth = 1; depth < fewer; ++depth) forms.push_back(plan.plan.At(depth));
    const SpannedKeyPlan cut_plan{KeyPlan(forms), plan.span};
    const auto cut = Make(cut_spec, {fewer}, &cut_plan);
    const auto whole = Make(Spec(), {fewer, loops}, &plan);
    StepDriver cut_driver(*cut, cut->pages()), driver(*whole, whole->pages());
    const auto prefix = std::span(text).first(static_cast<size_t>(prompt));
    cut->Prefill({cut_driver.Sequence(), 0, prefix});
    whole->Prefill({driver.Sequence(), 0, prefix, fewer});
    for (int at = prompt; at < prompt + tokens; ++at) {
      for (StepDriver* d : {&cut_driver, &driver}) {
        d->Begin(fewer);
        d->plan.sequences[0].recurrences = fewer;
        if (at > prompt) d->Commit((at - 1) % 2, at - 1);
        d->AddRow(at % 2, text[static_cast<size_t>(at)], at, 0);
        d->AddReadout(0, 0);
        d->Run();
      }
      ASSERT_EQ(driver.Logits(0), cut_driver.Logits(0)) << fewer << " loops, position " << at;
    }
  }
}

// Prompts of several sequences in one submission, as if each were alone, and their windows moved to
// other pages.
TEST_P(CudaLoopKeys, OfSeveralPromptsAreThoseOfEach) {
  LOOPSPEC_NEEDS_GPU();
  const SpannedKeyPlan plan = Plan();
  const int loops = Spec().recurrence;
  const auto backend = Make(Spec(), {loops}, &plan);
  const std::vector<int> lengths = {plan.span / 2, 3 * plan.span + 11, 2 * plan.span,
                                    4 * plan.span - 1};
  const std::vector<int32_t> text = Text(4 * plan.span + 8);
  KvLedger ledger(backend->pages(), 1, backend->window_pages());
  const auto after = [&](const SequencePages& pages, int length) {
    StepDriver driver(*backend);
    driver.Begin(loops);
    driver.plan.sequences[0] = PlanOf(pages);
    driver.AddRow(0, text[static_cast<size_t>(length)], length, 0);
    driver.AddReadout(0, 0);
    driver.Run();
    return driver.Logits(0);
  };
  std::vector<std::vector<float>> alone;
  std::vector<SequencePages> sequences;
  std::vector<PrefillPlan> parts;
  for (const int length : lengths) {
    const SequencePages pages(ledger, length + 1);
    const auto prompt = std::span(text).first(static_cast<size_t>(length));
    backend->Prefill({PlanOf(pages), 0, prompt});
    alone.push_back(after(pages, length));
    sequences.emplace_back(ledger, length + 1);
    parts.push_back({PlanOf(sequences.back()), 0, prompt});
  }
  backend->WaitPrefill(backend->SubmitPrefill(parts));
  for (size_t i = 0; i < lengths.size(); ++i)
    ASSERT_EQ(after(sequences[i], lengths[i]), alone[i]) << "prompt " << i;
  for (size_t i = 0; i < lengths.size(); ++i) {
    SequencePages moved(ledger, lengths[i] + 1);
    for (size_t page = 0; page < moved.pages().size(); ++page)
      backend->CopyPage(sequences[i].pages()[page], moved.pages()[page]);
    std::vector<std::byte> window(moved.window().size() *
                                  static_cast<size_t>(backend->page_bytes()));
    backend->SavePages(sequences[i].window(), window.data());
    backend->LoadPages(moved.window(), window.data());
    ASSERT_EQ(after(moved, lengths[i]), alone[i]) << "prompt " << i << " in other pages";
  }
}

TEST(CudaLoopKeyPlans, WithResidualsAreRefused) {
  LOOPSPEC_NEEDS_GPU();
  BackendOptions options;
  options.kv_type = KvType::kLoops;
  options.key_plan = SpannedKeyPlan::Parse("int8,r4", 4);
  EXPECT_THROW(cuda::CudaBackend(cuda::DeviceModel::Random(OuroLike(), 7), options, 0), Error);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaLoopKeys, testing::ValuesIn(kPlannedRowModels),
                         [](const auto& tested) { return std::to_string(tested.index); });

}  // namespace
}  // namespace loopspec
