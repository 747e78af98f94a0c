// Prompts on the GPU: parts against plain references, and the equality bit for bit of keys, values
// and logits however a prompt is cut, whatever else is submitted or runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cuda/host/cuda_backend.h"
#include "backends/cuda/host/transfers.h"
#include "tests/backends/cuda/cuda_driver.h"
#include "tests/backends/cuda/prefill_reference.h"

namespace loopspec {
namespace {

using cuda::bf16;

// ---- Whole models ----

struct Shape {
  const char* name;
  ModelSpec spec;
  std::vector<int> depths;
  KvType kv_type = KvType::kCompute;
};

ModelSpec Small() {
  ModelSpec spec;
  spec.family = "ouro";
  spec.hidden = 512;
  spec.heads = spec.kv_heads = 4;
  spec.head_dim = 128;
  spec.ff = 768;
  spec.vocab = 1003;
  spec.max_positions = 32768;
  spec.core_layers = 2;
  spec.recurrence = 2;
  spec.norms = NormPlacement::kSandwich;
  spec.loop_norm = true;
  spec.rope.theta = 1e6;
  return spec;
}

ModelSpec SmallRaven() {
  ModelSpec spec = Small();
  spec.family = "raven";
  spec.heads = 8;
  spec.kv_heads = 2;
  spec.head_dim = 64;
  spec.prelude_layers = spec.coda_layers = 1;
  spec.core_layers = 2;
  spec.recurrence = 3;
  spec.norms = NormPlacement::kPre;
  spec.loop_norm = false;
  spec.final_norm = true;
  spec.injection = Injection::kLinear;
  spec.start = StateStart::kNormal;
  spec.state_std = 0.02;
  return spec;
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  shapes.push_back({"heads of 128", Small(), {1, 2}});
  shapes.push_back({"heads of 64, adapter, prelude and coda", SmallRaven(), {2, 3}});
  ModelSpec odd = Small();  // neither the widths nor the heads are round
  odd.hidden = 300;
  odd.heads = 6;
  odd.kv_heads = 3;
  odd.head_dim = 50;
  odd.ff = 420;
  shapes.push_back({"heads of 50", odd, {2}});
  ModelSpec olmo = SmallRaven();
  olmo.norms = NormPlacement::kPost;
  olmo.qk_norm = true;
  olmo.kv_heads = 8;
  shapes.push_back({"norms of q and k", olmo, {3}});
  ModelSpec nanbeige = Small();  // norms before the sublayers, six query heads over one
  nanbeige.family = "nanbeige";
  nanbeige.hidden = 384;
  nanbeige.heads = 6;
  nanbeige.kv_heads = 1;
  nanbeige.norms = NormPlacement::kPre;
  shapes.push_back({"six heads over one", nanbeige, {1, 2}});
  ModelSpec sums = Small();  // norms after the sums, biases, neighbours rotated, heads of 96
  sums.hidden = 480;
  sums.heads = sums.kv_heads = 5;
  sums.head_dim = 96;
  sums.norms = NormPlacement::kAfterSum;
  sums.loop_norm = false;
  sums.qk_bias = sums.final_norm = true;
  sums.rope.interleaved = true;
  shapes.push_back({"heads of 96, norms after the sums", sums, {2}});
  ModelSpec huginn = sums;
  huginn.family = "huginn";
  huginn.prelude_layers = huginn.coda_layers = 1;
  huginn.recurrence = 3;
  huginn.coda_norm = huginn.tied_head = true;
  huginn.injection = Injection::kLinear;
  huginn.start = StateStart::kNormal;
  huginn.state_std = 0.02;
  shapes.push_back({"Huginn's block", huginn, {2, 3}});
  shapes.push_back({"heads of 128, int8 keys", Small(), {1, 2}, KvType::kInt8});
  shapes.push_back({"heads of 64, int8 keys", SmallRaven(), {2, 3}, KvType::kInt8});
  shapes.push_back({"heads of 50, int8 keys", odd, {2}, KvType::kInt8});
  return shapes;
}

int32_t TokenAt(int sequence, int position, const ModelSpec& spec) {
  return (position * 7919 + sequence * 104729 + position / 7 * 13 + 11) % spec.vocab;
}

// A backend over random weights, the same ones every time, and its sequences' pages.
class Prompts {
 public:
  Prompts(const Shape& shape, int64_t positions, const cuda::PrefillSettings& settings = {})
      : spec_(shape.spec) {
    BackendOptions options;
    options.readout_depths = shape.depths;
    options.cells = 64;
    options.kv_positions = positions;
    options.kv_type = shape.kv_type;
    backend_ = std::make_unique<cuda::CudaBackend>(cuda::DeviceModel::Random(spec_, 1), options, 0,
                                                   settings);
    // What was never written is not a number: nothing may depend on it.
    Poison();
    pages_.resize(static_cast<size_t>(backend_->pages()));
    std::iota(pages_.begin(), pages_.end(), 0);
    // Neighbouring pages of a sequence do not lie together.
    for (size_t i = 0; i + 1 < pages_.size(); i += 3) std::swap(pages_[i], pages_[i + 1]);
  }

  cuda::CudaBackend& backend() { return *backend_; }
  const ModelSpec& spec() const { return spec_; }
  const int32_t* pages(int sequence, int pages_of_each) const {
    return pages_.data() + static_cast<size_t>(sequence) * static_cast<size_t>(pages_of_each);
  }

  void Poison() {
    const auto& memory = backend_->page_memory();
    cuda::FillAndWait(memory.data(), 0xFF, memory.bytes());
    if (static_cast<size_t>(spec_.head_dim) < Stride())
      Zero();  // padding within a head must read as zero
  }
  void Zero() {
    const auto& memory = backend_->page_memory();
    cuda::ClearAndWait(memory.data(), memory.bytes());
  }

  // Keys and values of positions [0, length), plane by plane, as bits; int8 ones with their scale
  // first.
  std::vector<uint16_t> Read(const int32_t* pages, int length) const {
    const auto& memory = backend_->page_memory();
    const size_t page = memory.size() / static_cast<size_t>(backend_->pages());
    const size_t rows = page / kPageSize / Words();
    std::vector<uint16_t> out(static_cast<size_t>(length) * rows * Words());
    std::vector<uint16_t> from(page);
    for (int at = 0; at < length; at += kPageSize) {
      cuda::CopyToHostAndWait(from.data(),
                              memory.data() + static_cast<size_t>(pages[at / kPageSize]) * page,
                              page * 2, "a page");
      for (int slot = 0; slot < std::min(kPageSize, length - at); ++slot) {
        for (size_t row = 0; row < rows; ++row) {
          Copy(from.data(), row, static_cast<size_t>(slot),
               &out[(static_cast<size_t>(at + slot) * rows + row) * Words()]);
        }
      }
    }
    return out;
  }
  bool int8_keys() const { return backend_->options().kv_type == KvType::kInt8; }
  // 16-bit words of a key.
  size_t Words() const {
    return static_cast<size_t>(cuda::KeyWords(static_cast<int>(Stride()), int8_keys()));
  }
  // NaN and infinity show in the scales.
  bool AllFinite(std::span<const uint16_t> values) const {
    for (size_t i = 0; i < values.size(); i += int8_keys() ? Words() : 1) {
      if ((values[int8_keys() ? i + 1 : i] & 0x7F80) == 0x7F80) return false;
    }
    return true;
  }
  size_t Stride() const {
    return spec_.head_dim <= 32    ? 32
           : spec_.head_dim <= 64  ? 64
           : spec_.head_dim <= 128 ? 128
                                   : 256;
  }
  // Says where two readings differ first.
  std::string Where(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                    int length) const {
    if (a.size() != b.size()) return "sizes differ";
    const auto at =
        static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    if (at == a.size()) return "equal";
    size_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    const size_t of_position = a.size() / static_cast<size_t>(length),
                 row = at % of_position / Words();
    const auto heads = static_cast<size_t>(spec_.kv_heads);
    return "position " + std::to_string(at / of_position) + " plane " +
           std::to_string(row / 2 / heads) + " head " + std::to_string(row / 2 % heads) +
           (row % 2 ? " value " : " key ") + std::to_string(at % Words()) + ": " +
           std::to_string(a[at]) + " and " + std::to_string(b[at]) + ", " + std::to_string(count) +
           " of " + std::to_string(a.size()) + " differ";
  }
  std::vector<int32_t> Tokens(int sequence, int length) const {
    std::vector<int32_t> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(TokenAt(sequence, i, spec_));
    return tokens;
  }

 private:
  // Position `slot` of vector `row` (plane, head, key or value) of a page.
  void Copy(const uint16_t* page, size_t row, size_t slot, uint16_t* to) const {
    if (!int8_keys()) {
      std::memcpy(to, page + (row * kPageSize + slot) * Stride(), Stride() * 2);
      return;
    }
    const auto split = static_cast<size_t>(cuda::SplitPositions(static_cast<int>(Stride())));
    const uint16_t* head = page + row / 2 * 2 * kPageSize * Words();
    const size_t at = slot / split * 2 * split + row % 2 * split + slot % split;
    std::memcpy(to, head + kPageSize * Stride() + at * 2, 4);
    std::memcpy(to + 2, head + at * Stride() / 2, Stride());
  }

  ModelSpec spec_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::vector<int32_t> pages_;
};

// NaN is not equal to itself; bits are.
std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}
// Lengths that are repeated until the prompt is used up.
const std::vector<std::vector<int>>& Cuts() {
  static const std::vector<std::vector<int>> cuts = {
      {1, 63, 64, 65, 1000, 4096}, {4096}, {64}, {129, 255, 1, 7}, {1000}, {5000, 3}};
  return cuts;
}

class CudaPrefill : public testing::TestWithParam<int> {
 protected:
  static Shape shape() { return Shapes()[static_cast<size_t>(GetParam())]; }
};

TEST_P(CudaPrefill, DoesNotDependOnHowAPromptIsCut) {
  LOOPSPEC_NEEDS_GPU();
  for (const int length : {1, 2, 63, 64, 65, 127, 128, 129, 200, 1000, 4097, 20000}) {
    if (length > 4097 && GetParam() > 1 && GetParam() != 7) continue;
    Prompts prompts(shape(), length + 64);
    const std::vector<int32_t> tokens = prompts.Tokens(0, length);
    const int32_t* pages = prompts.pages(0, 0);
    prompts.backend().Prefill({{pages}, 0, tokens});
    const std::vector<uint16_t> whole = prompts.Read(pages, length);
    ASSERT_TRUE(prompts.AllFinite(whole)) << shape().name << ", " << length << " tokens";
    for (size_t c = 0; c < Cuts().size(); ++c) {
      if (length < 64 && c > 0) continue;
      if (length > 4097 && c == 2) continue;  // 64 at a time: long, and no different from 4,097
      prompts.Poison();
      for (int at = 0, i = 0; at < length; ++i) {
        const int count =
            std::min(length - at, Cuts()[c][static_cast<size_t>(i) % Cuts()[c].size()]);
        prompts.backend().Prefill(
            {{pages},
             at,
             std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(count))});
        at += count;
      }
      const std::vector<uint16_t> cut = prompts.Read(pages, length);
      ASSERT_TRUE(cut == whole) << shape().name << ", " << length << " tokens, cut " << c << ": "
                                << prompts.Where(whole, cut, length);
    }
  }
}

// Chunks of another size, tiles of other widths, clusters or none: the same sums.
TEST_P(CudaPrefill, DoesNotDependOnTheSizeOfChunksAndTiles) {
  LOOPSPEC_NEEDS_GPU();
  const int length = 1500;
  std::vector<uint16_t> first;
  for (const cuda::PrefillSettings& settings :
       {cuda::PrefillSettings{}, cuda::PrefillSettings{256, false, 128, 1},
        cuda::PrefillSettings{512, false, 160, 1}, cuda::PrefillSettings{512, false, 192, 1},
        cuda::PrefillSettings{1024, false, 256, 1}, cuda::PrefillSettings{768, false, 128, 2},
        cuda::PrefillSettings{768, false, 192, 2}, cuda::PrefillSettings{2048, false, 256, 2}}) {
    Prompts prompts(shape(), 2048, settings);
    const std::vector<int32_t> tokens = prompts.Tokens(0, length);
    prompts.backend().Prefill({{prompts.pages(0, 0)}, 0, tokens});
    const std::vector<uint16_t> kv = prompts.Read(prompts.pages(0, 0), length);
    if (first.empty()) first = kv;
    ASSERT_TRUE(kv == first) << shape().name << ", rows " << settings.rows << " width "
                             << settings.gemm_width << " cluster " << settings.gemm_cluster << ": "
                             << prompts.Where(first, kv, length);
  }
}

TEST_P(CudaPrefill, SequencesOfOneSubmissionDoNotMeet) {
  LOOPSPEC_NEEDS_GPU();
  const std::vector<int> lengths = {300, 1, 64, 1111, 63, 129, 20, 700};
  constexpr int kPages = 20;
  const int count = static_cast<int>(lengths.size());
  Prompts prompts(shape(), int64_t{kPages} * kPageSize * count);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint16_t>> alone;
  for (int s = 0; s < count; ++s) {
    const int length = lengths[static_cast<size_t>(s)];
    tokens.push_back(prompts.Tokens(s, length));
    prompts.backend().Prefill({{prompts.pages(s, kPages)}, 0, tokens.back()});
    alone.push_back(prompts.Read(prompts.pages(s, kPages), length));
  }
  prompts.Poison();
  // Beginnings of all, then what is left, in two submissions that are under way together.
  std::vector<PrefillPlan> beginnings, rests;
  for (int s = count - 1; s >= 0; --s) {
    const std::span<const int32_t> all = tokens[static_cast<size_t>(s)];
    const size_t cut = all.size() / 3;
    if (cut > 0) beginnings.push_back({{prompts.pages(s, kPages)}, 0, all.first(cut)});
    rests.push_back({{prompts.pages(s, kPages)}, static_cast<int32_t>(cut), all.subspan(cut)});
  }
  const Ticket first = prompts.backend().SubmitPrefill(beginnings);
  const Ticket second = prompts.backend().SubmitPrefill(rests);
  prompts.backend().WaitPrefill(second);
  EXPECT_TRUE(prompts.backend().PrefillDone(first));
  prompts.backend().WaitPrefill(first);
  for (int s = 0; s < count; ++s) {
    const int length = lengths[static_cast<size_t>(s)];
    const std::vector<uint16_t> together = prompts.Read(prompts.pages(s, kPages), length);
    ASSERT_TRUE(together == alone[static_cast<size_t>(s)])
        << shape().name << ", sequence " << s << ": "
        << prompts.Where(alone[static_cast<size_t>(s)], together, length);
  }
}

TEST_P(CudaPrefill, LogitsDoNotDependOnHowAPromptIsCut) {
  LOOPSPEC_NEEDS_GPU();
  const int length = 700;
  Prompts prompts(shape(), 1024);
  const std::vector<int32_t> tokens = prompts.Tokens(0, length);
  const size_t readouts = shape().depths.size(), vocab = static_cast<size_t>(prompts.spec().vocab);
  const auto score = [&](const std::vector<int>& cut) {
    std::vector<float> logits(static_cast<size_t>(length) * readouts * vocab, NAN);
    for (int at = 0, i = 0; at < length; ++i) {
      const int count = std::min(length - at, cut[static_cast<size_t>(i) % cut.size()]);
      prompts.backend().Score(
          {{prompts.pages(0, 0)},
           at,
           std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(count))},
          [&](int32_t position, int32_t readout, std::span<const float> row) {
            std::copy(
                row.begin(), row.end(),
                logits.begin() + static_cast<int64_t>((static_cast<size_t>(position) * readouts +
                                                       static_cast<size_t>(readout)) *
                                                      vocab));
          });
      at += count;
    }
    return logits;
  };
  const std::vector<float> whole = score({length});
  ASSERT_TRUE(std::all_of(whole.begin(), whole.end(), [](float v) { return std::isfinite(v); }));
  for (const std::vector<int>& cut :
       {std::vector<int>{1, 63, 64, 65}, std::vector<int>{256}, std::vector<int>{300, 7}}) {
    ASSERT_TRUE(Bits(score(cut)) == Bits(whole)) << shape().name;
  }
}

// Steps of one sequence while prompts of another run: neither changes.
TEST_P(CudaPrefill, RunsBesideSteps) {
  LOOPSPEC_NEEDS_GPU();
  const int length = 6000, depths = shape().spec.recurrence;
  Prompts prompts(shape(), 3 * 6016);
  Backend& backend = prompts.backend();
  const std::vector<int32_t> tokens = prompts.Tokens(1, length);
  const std::vector<int32_t> context = prompts.Tokens(0, 200);
  const int32_t* pages = prompts.pages(1, 100);
  backend.Prefill({{prompts.pages(0, 0)}, 0, context});
  StepDriver driver(backend, 4);
  std::copy_n(prompts.pages(0, 0), driver.pages.size(), driver.pages.begin());
  const auto step = [&](int i) {
    driver.Begin(depths);
    driver.AddRow(0, TokenAt(2, i, prompts.spec()), 200, 0);
    driver.AddReadout(0, static_cast<int>(shape().depths.size()) - 1);
    driver.Run();
    return Bits(driver.Logits(0));
  };
  std::vector<std::vector<uint32_t>> quiet;
  for (int i = 0; i < 50; ++i) quiet.push_back(step(i));
  backend.Prefill({{pages}, 0, tokens});
  const std::vector<uint16_t> alone = prompts.Read(pages, length);
  for (int round = 0; round < 3; ++round) {
    const PrefillPlan part{{pages}, 0, tokens};
    const Ticket ticket = backend.SubmitPrefill({&part, 1});
    int steps = 0;
    for (; steps < 50 || !backend.PrefillDone(ticket); ++steps) {
      ASSERT_TRUE(step(steps % 50) == quiet[static_cast<size_t>(steps % 50)])
          << shape().name << ", step " << steps;
      if (steps > 100000) break;
    }
    backend.WaitPrefill(ticket);
    const std::vector<uint16_t> beside = prompts.Read(pages, length);
    ASSERT_TRUE(beside == alone) << shape().name << ": " << prompts.Where(alone, beside, length);
  }
}

// A position's logits against the same model in double precision.
TEST_P(CudaPrefill, IsNearDoublePrecision) {
  LOOPSPEC_NEEDS_GPU();
  const int length = 150;
  const Shape small = shape();
  if (small.spec.adapter()) GTEST_SKIP() << "the reference has no adapter; the golden files have";
  Prompts prompts(small, 256);
  const std::vector<int32_t> tokens = prompts.Tokens(0, length);
  const std::vector<double> expected = ReferenceLogits(prompts.backend().model(), tokens);
  double error = 0, norm = 0;
  prompts.backend().Score({{prompts.pages(0, 0)}, 0, tokens}, [&](int32_t position, int32_t readout,
                                                                  std::span<const float> row) {
    if (readout + 1 != static_cast<int>(small.depths.size())) return;
    for (size_t v = 0; v < row.size(); ++v) {
      const double e = expected[static_cast<size_t>(position) * row.size() + v];
      error += (row[v] - e) * (row[v] - e);
      norm += e * e;
    }
  });
  // Inputs of products, keys, values and weights are rounded to bf16 (2^-9 each) in every block;
  // int8 keys and values to 2^-8 of the largest.
  const double relative = std::sqrt(error / norm);
  std::printf("    %s: relative error %.5f\n", small.name, relative);
  EXPECT_LT(relative, small.kv_type == KvType::kInt8 ? 0.03 : 0.02);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaPrefill, testing::Range(0, 10));

}  // namespace
}  // namespace loopspec
