// A CUDA backend with random weights at small and at released widths, for tests of rows.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "backends/cuda/host/cuda_backend.h"
#include "cuda_driver.h"

namespace loopspec {

// Small models of real head sizes; K of the down projection is more than one chunk.
inline ModelSpec OuroLike() {
  ModelSpec spec;
  spec.family = "ouro";
  spec.hidden = 512;
  spec.heads = spec.kv_heads = 4;
  spec.head_dim = 128;
  spec.ff = 2816;
  spec.vocab = 1000;
  spec.max_positions = 20480;
  spec.core_layers = 2;
  spec.recurrence = 4;
  spec.norms = NormPlacement::kSandwich;
  spec.loop_norm = true;
  return spec;
}

inline ModelSpec RavenLike(bool olmo) {
  ModelSpec spec;
  spec.family = "raven";
  spec.hidden = 320;
  spec.heads = 8;
  spec.kv_heads = olmo ? 8 : 2;
  spec.head_dim = olmo ? 80 : 64;
  spec.ff = 1000;
  spec.vocab = 777;
  spec.max_positions = 20480;
  spec.prelude_layers = 1;
  spec.core_layers = 2;
  spec.coda_layers = 1;
  spec.recurrence = 6;
  spec.norms = olmo ? NormPlacement::kPost : NormPlacement::kPre;
  spec.qk_norm = olmo;
  spec.final_norm = true;
  spec.injection = Injection::kLinear;
  spec.start = StateStart::kNormal;
  spec.state_std = 0.5;
  return spec;
}

// Norms before the sublayers and between the loops; six query heads for each of the KV heads, and
// together twice as wide as the stream.
inline ModelSpec NanbeigeLike() {
  ModelSpec spec = OuroLike();
  spec.family = "nanbeige";
  spec.hidden = 384;
  spec.heads = 6;
  spec.kv_heads = 1;
  spec.recurrence = 2;
  spec.norms = NormPlacement::kPre;
  return spec;
}

// Norms of the sums, biases, neighbours rotated, heads of 96, the last norm on both sides of C.
inline ModelSpec HuginnLike() {
  ModelSpec spec = RavenLike(false);
  spec.family = "huginn";
  spec.hidden = 480;
  spec.heads = spec.kv_heads = 5;
  spec.head_dim = 96;
  spec.norms = NormPlacement::kAfterSum;
  spec.qk_bias = spec.coda_norm = spec.tied_head = true;
  spec.rope.interleaved = true;
  return spec;
}

// e injected by channel, a hashed initial state, neighbours rotated.
inline ModelSpec IfmLike(bool orthogonal) {
  ModelSpec spec = RavenLike(false);
  spec.family = "ifm";
  spec.recurrence = 5;
  spec.injection = orthogonal ? Injection::kOrthogonal : Injection::kDiagonal;
  spec.start = StateStart::kHashed;
  spec.prelude_norm = orthogonal;
  spec.loop_norm = orthogonal;
  spec.rope.interleaved = true;
  return spec;
}
// At the widths of Part II's S and M.
inline ModelSpec IfmLikeOfWidth(int hidden) {
  ModelSpec spec = IfmLike(false);
  spec.hidden = hidden;
  spec.heads = hidden / 64;
  spec.kv_heads = hidden / 256;
  spec.ff = hidden / 6 * 17;
  return spec;
}

// The widths of the released models, at which every multiprocessor works on every layer: up to
// eight rows then use the low-latency exchange.
inline ModelSpec AtWidthOfReleased(ModelSpec spec) {
  spec.hidden = 2048;
  spec.heads = spec.family == "ouro" ? 16 : 32;
  spec.kv_heads = spec.family == "ouro" ? 16 : 8;
  spec.head_dim = spec.family == "ouro" ? 128 : 64;
  spec.ff = 2816;
  return spec;
}

// A head of 256 takes the kernel without a producer warp, and splits of 16 positions.
inline ModelSpec WithHeadsOf256() {
  ModelSpec spec = OuroLike();
  spec.heads = spec.kv_heads = 2;
  spec.head_dim = 256;
  return spec;
}

inline constexpr int kPlainRowModels = 17;
// Of these, again with int8 keys and values: every size of head, with and without the exchange,
// padded, and one and several queries to a key.
inline constexpr int kInt8RowModels[] = {0, 3, 4, 6, 7, 9, 10, 12, 14};
// And with weights of few bits: several and single chunks of k, with and without the exchange, one
// kernel and a kernel for each operation, rows and elements that pad.
struct PackedRowModel {
  int which;
  cuda::WeightForm form;
  bool int8_keys = false;
};
inline constexpr PackedRowModel kPackedRowModels[] = {
    {0, cuda::WeightForm::kInt8},       {3, cuda::WeightForm::kInt8},
    {3, cuda::WeightForm::kInt4},       {3, cuda::WeightForm::kInt4Bias, true},
    {4, cuda::WeightForm::kInt8, true}, {4, cuda::WeightForm::kInt4},
    {2, cuda::WeightForm::kInt4Bias},   {8, cuda::WeightForm::kInt4},
    {9, cuda::WeightForm::kInt8},       {10, cuda::WeightForm::kInt8},
    {10, cuda::WeightForm::kInt4},      {11, cuda::WeightForm::kInt4Bias},
    {12, cuda::WeightForm::kInt4},      {13, cuda::WeightForm::kInt8},
};
// And with a plan of keys: with and without the exchange, several heads, one kernel and a kernel
// for each operation, loops that keep their own between loops that do not.
struct PlannedRowModel {
  int which;
  const char* plan;
};
inline constexpr PlannedRowModel kPlannedRowModels[] = {
    {0, "int8,last"}, {4, "int8*2,last"}, {7, "last"}, {9, "last,int8,last@128"}, {10, "last"},
};
inline constexpr int kFirstPackedRowModel =
    kPlainRowModels + static_cast<int>(std::size(kInt8RowModels));
inline constexpr int kFirstPlannedRowModel =
    kFirstPackedRowModel + static_cast<int>(std::size(kPackedRowModels));
inline constexpr int kRowModels =
    kFirstPlannedRowModel + static_cast<int>(std::size(kPlannedRowModels));
inline const char* KeyPlanOf(int which) {
  return which < kFirstPlannedRowModel ? nullptr
                                       : kPlannedRowModels[which - kFirstPlannedRowModel].plan;
}
inline bool HasInt8Keys(int which) {
  if (which >= kFirstPlannedRowModel) return false;
  if (which >= kFirstPackedRowModel)
    return kPackedRowModels[which - kFirstPackedRowModel].int8_keys;
  return which >= kPlainRowModels;
}
inline cuda::WeightForm FormOfWeights(int which) {
  return which < kFirstPackedRowModel || which >= kFirstPlannedRowModel
             ? cuda::WeightForm::kBF16
             : kPackedRowModels[which - kFirstPackedRowModel].form;
}
inline ModelSpec SpecOf(int which) {
  if (which >= kFirstPlannedRowModel) {
    which = kPlannedRowModels[which - kFirstPlannedRowModel].which;
  } else if (which >= kFirstPackedRowModel) {
    which = kPackedRowModels[which - kFirstPackedRowModel].which;
  } else if (HasInt8Keys(which)) {
    which = kInt8RowModels[which - kPlainRowModels];
  }
  switch (which) {
    case 0:
      return OuroLike();
    case 1:
      return RavenLike(false);
    case 2:
      return RavenLike(true);
    case 3:
      return AtWidthOfReleased(OuroLike());
    case 4:
      return AtWidthOfReleased(RavenLike(false));
    case 5:
      return AtWidthOfReleased(RavenLike(true));
    case 6: {
      ModelSpec spec = AtWidthOfReleased(RavenLike(false));
      spec.kv_heads = 4;  // eight query heads each, as many as a warp takes at once
      return spec;
    }
    case 7: {
      ModelSpec spec = AtWidthOfReleased(OuroLike());
      spec.head_dim = 32;
      spec.heads = 64;
      spec.kv_heads = 16;
      return spec;
    }
    case 8:
      return NanbeigeLike();
    case 9:
      return HuginnLike();
    case 10: {
      ModelSpec spec = NanbeigeLike();
      spec.hidden = 3072;
      spec.heads = 48;
      spec.kv_heads = 8;
      spec.ff = 10752;
      return spec;
    }
    case 12:
      return WithHeadsOf256();
    case 13:
      return IfmLike(true);
    case 14:
      return IfmLikeOfWidth(1536);  // uses the low-latency exchange
    case 15:
      return IfmLikeOfWidth(3072);
    case 16: {
      ModelSpec spec = IfmLike(false);
      spec.prelude_layers = spec.coda_layers = 0;  // P is the embedding and u
      spec.start = StateStart::kPrelude;
      return spec;
    }
    default: {
      ModelSpec spec = HuginnLike();
      spec.hidden = 5280;
      spec.heads = spec.kv_heads = 55;
      spec.ff = 17920;
      spec.core_layers = 1;
      return spec;
    }
  }
}

class CudaRows : public testing::TestWithParam<int> {
 protected:
  static constexpr int kPrompt = 300;

  void Start(int cells, int prompt = kPrompt) {
    const ModelSpec spec = SpecOf(GetParam());
    cuda::Check(cudaSetDevice(0), "selecting the GPU");
    BackendOptions options = AllDepths(spec, cells);
    options.kv_positions = std::max<int64_t>(options.kv_positions, prompt + 64);
    if (HasInt8Keys(GetParam())) options.kv_type = KvType::kInt8;
    if (const char* plan = KeyPlanOf(GetParam())) {
      options.kv_type = KvType::kLoops;
      options.key_plan = SpannedKeyPlan::Parse(plan, spec.recurrence);
    }
    backend_ = std::make_unique<cuda::CudaBackend>(
        cuda::DeviceModel::Random(spec, 7, FormOfWeights(GetParam())), options, 0);
    driver_ = std::make_unique<StepDriver>(*backend_, backend_->pages());
    std::mt19937 random(3);
    prompt_.clear();
    for (int i = 0; i < prompt; ++i)
      prompt_.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(spec.vocab)));
    backend_->Prefill({driver_->Sequence(), 0, prompt_});
  }

  int Token(int i) const { return (i * 37 + 11) % backend_->spec().vocab; }

  std::unique_ptr<cuda::CudaBackend> backend_;
  std::unique_ptr<StepDriver> driver_;
  std::vector<int32_t> prompt_;
};

}  // namespace loopspec
