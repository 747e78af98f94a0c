#include "backends/cuda/decode/wide/wide_kernels.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/attention/combine_op.cuh"
#include "backends/cuda/attention/wide_attention.cuh"
#include "backends/cuda/attention/wide_attention_int8.cuh"
#include "backends/cuda/decode/ops/matrix_inputs.cuh"
#include "backends/cuda/decode/ops/row_op.cuh"
#include "backends/cuda/decode/wide/wide_product_kernels.h"
#include "backends/cuda/host/architecture.h"

namespace loopspec::cuda {
namespace {

// One CTA for each row, and then one for each row's rotary table. kHidden: the widest row. kSums:
// the operation takes a matrix's sums and does nothing of what P and the start of a stack need.
template <int kHidden, bool kSums>
__global__ void __launch_bounds__(kThreads, 1)
    RowsKernel(const __grid_constant__ DecodeParams p, const __grid_constant__ Op op,
               const __grid_constant__ WideRun run) {
  if constexpr (kCompiled) {
    __shared__ float scratch[kNormsOfRow * kWarps];
    LetNextOperationStart();
    const int row = static_cast<int>(blockIdx.x);
    if (kSums || row < run.rows) {
      RowOp<WideRows<kHidden, kSums>>(p, op,
                                      {run.infos, run.phase, row, false, false, {}, 0, scratch},
                                      [] { WaitForOperationsBefore(); });
    } else {
      WaitForOperationsBefore();
      FillRope(p, run.phase, row - run.rows, run.infos[row - run.rows].position);
    }
  }
}

// Without norms several CTAs share a row.
__global__ void __launch_bounds__(kThreads)
    FinishQkKernel(const __grid_constant__ DecodeParams p, const __grid_constant__ Op op,
                   const __grid_constant__ WideRun run) {
  if constexpr (kCompiled) {
    __shared__ float scratch[kNormsOfRow * kWarps];
    LetNextOperationStart();
    WaitForOperationsBefore();
    const int row = static_cast<int>(blockIdx.y);
    FinishQkOp(p, op, run.phase, run.infos[row], row, run.recurrence, scratch,
               static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
}

// CTAs of four warps on a multiprocessor. Those for int8 keys take half the room, and have half as
// much in flight each.
template <bool kMerged, bool kInt8Keys>
constexpr int AttentionCtas() {
  return kInt8Keys && !kMerged ? 4 : 3;
}
template <int kHead, bool kMerged, bool kInt8Keys>
__global__ void __launch_bounds__(32 * kWideAttentionWarps, AttentionCtas<kMerged, kInt8Keys>())
    WideAttentionKernel(const __grid_constant__ DecodeParams params, const __grid_constant__ Op op,
                        const __grid_constant__ WideRun run) {
  if constexpr (kCompiled) {
    FillContext(params, op, run);
    if (threadIdx.x < kWideAttentionWarps)
      InitBarrier(SharedAddress(&Context().full[threadIdx.x]), 1);
    FenceBarrierInit();
    __syncthreads();
    LetNextOperationStart();
    if constexpr (kInt8Keys) {
      AttendWideInt8<kHead, kMerged>();
    } else {
      AttendWide<kHead, kMerged>();
    }
    WaitForOperationsBefore();
  }
}

struct AttentionLaunch {
  void (*kernel)(DecodeParams, Op, WideRun);
  size_t shared;
};
template <int kHead>
AttentionLaunch AttentionOfHead(bool merged, bool int8_keys) {
  if (int8_keys) {
    return {
        merged ? WideAttentionKernel<kHead, true, true> : WideAttentionKernel<kHead, false, true>,
        kWideContextBytes + kWideAttentionWarps * WideInt8RoomBytes(kHead)};
  }
  return {
      merged ? WideAttentionKernel<kHead, true, false> : WideAttentionKernel<kHead, false, false>,
      kWideContextBytes + kWideAttentionWarps * WideRoomBytes(kHead)};
}
AttentionLaunch AttentionFor(int head_stride, bool merged, bool int8_keys) {
  switch (head_stride) {
    case 32:
      return AttentionOfHead<32>(merged, int8_keys);
    case 64:
      return AttentionOfHead<64>(merged, int8_keys);
    default:
      return AttentionOfHead<128>(merged, int8_keys);
  }
}

// Two CTAs on a multiprocessor.
inline constexpr int kCombineCtas = 2;
template <int kLanes>
__global__ void __launch_bounds__(kThreads, kCombineCtas)
    CombineKernel(const __grid_constant__ DecodeParams params, const __grid_constant__ Op op,
                  const __grid_constant__ WideRun run) {
  if constexpr (kCompiled) {
    FillContext(params, op, run);
    __syncthreads();
    LetNextOperationStart();
    WaitForOperationsBefore();
    CombinePieces<kLanes, kLanes <= 4 ? 2 : 1, false>();
  }
}

// Writes down the time when all operations before have ended.
__global__ void ClockKernel(uint64_t* to) {
  if constexpr (kCompiled) {
    WaitForOperationsBefore();
    *to = GlobalClock();
  }
}

// Launches of one phase, in order.
class Launcher {
 public:
  Launcher(const DecodeParams& params, cudaStream_t stream) : params_(params), stream_(stream) {}

  template <typename... Parameters, typename... Arguments>
  void Run(void (*kernel)(Parameters...), int ctas, int threads, size_t shared,
           const Arguments&... arguments) {
    Run(kernel, dim3(static_cast<unsigned>(ctas)), threads, shared, arguments...);
  }
  template <typename... Parameters, typename... Arguments>
  void Run(void (*kernel)(Parameters...), dim3 ctas, int threads, size_t shared,
           const Arguments&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = ctas;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared;
    config.stream = stream_;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = first_ ? 0 : 1;  // whatever was launched before the first knows nothing of it
    first_ = false;
    Check(cudaLaunchKernelEx(&config, kernel, arguments...), "launching an operation");
  }

  void MarkTime(uint64_t* to) { Run(ClockKernel, 1, 1, 0, to); }

  const DecodeParams& params() const { return params_; }

 private:
  const DecodeParams& params_;
  cudaStream_t stream_;
  bool first_ = true;
};

WideProductKernel ProductKernel(const WideMatrix& matrix, int shape) {
  return kWideShapes[shape].hopper ? HopperProduct(matrix, shape)
                                   : PortableProduct(matrix.kind, shape);
}

void LaunchProduct(Launcher& launcher, const Op& op, const WideRun& run, const WideMatrix& matrix,
                   int shape) {
  const DecodeParams& p = launcher.params();
  WideProductParams how{};
  how.matrix = matrix;
  how.work = WideWork::Of(matrix, kWideShapes[shape], run.rows);
  how.map = p.program.wide_maps + op.matrix * kWideBoxSizes + WideBoxIndex(kWideShapes[shape]);
  how.scales = op.scales;
  int ld;
  how.input = Input(p, matrix.input, ld);
  how.input += WideInputsBegin(p.shapes.row_stride, ld);
  how.input_rows = WideInputRows(p.shapes.row_stride);
  how.plane_offset = op.layer + run.recurrence * p.shapes.core_layers;
  const WideProductKernel kernel = ProductKernel(matrix, shape);
  launcher.Run(kernel.function, how.work.items, kernel.threads,
               static_cast<size_t>(kernel.shared_bytes), p, run, how);
}

template <int kHidden>
void LaunchRows(Launcher& launcher, const Op& op, const WideRun& run) {
  const bool sums = (op.source == RowSource::kAdd || op.source == RowSource::kReplace) &&
                    !op.flags.HasAny(OpFlags(OpFlag::kRope) | OpFlag::kFinishPrelude);
  launcher.Run(sums ? RowsKernel<kHidden, true> : RowsKernel<kHidden, false>,
               op.flags.Has(OpFlag::kRope) ? 2 * run.rows : run.rows, kThreads, 0,
               launcher.params(), op, run);
}

void LaunchFinishQk(Launcher& launcher, const Op& op, const WideRun& run) {
  const ShapeParams& shapes = launcher.params().shapes;
  const int slices = op.q_norm != nullptr ? 1 : (shapes.q_size / 2 + kThreads - 1) / kThreads;
  launcher.Run(FinishQkKernel, dim3(static_cast<unsigned>(slices), static_cast<unsigned>(run.rows)),
               kThreads, 0, launcher.params(), op, run);
}

void LaunchAttention(Launcher& launcher, const Op& op, const WideRun& run) {
  const DecodeParams& p = launcher.params();
  const int pieces = run.unit_count * p.shapes.kv_heads,
            ctas = (pieces + kWideAttentionWarps - 1) / kWideAttentionWarps;
  const AttentionLaunch how = AttentionFor(p.shapes.head_stride, run.merged != 0,
                                           p.shapes.key_words != p.shapes.head_stride);
  launcher.Run(how.kernel, ctas, 32 * kWideAttentionWarps, how.shared, p, op, run);
}

// A lane loads 16 bytes of a partial result. Fewer than two lanes side by side waste half of what
// is read: at one row that took 3 us a layer longer than sixteen lanes.
void LaunchCombine(Launcher& launcher, const Op& op, const WideRun& run, int multiprocessors) {
  const DecodeParams& p = launcher.params();
  const int warps = multiprocessors * kCombineCtas * kWarps;
  const int lanes =
      std::max(2, CombineLanes(run.rows * p.shapes.q_size, warps, p.shapes.head_stride, false));
  const int elements = 4 * lanes;
  const int pieces = run.rows * p.shapes.heads * ((p.shapes.head_dim + elements - 1) / elements);
  const auto launch = [&](auto* kernel) {
    launcher.Run(kernel, (pieces + kWarps - 1) / kWarps, kThreads, kWideContextBytes, p, op, run);
  };
  switch (lanes) {
    case 2:
      return launch(CombineKernel<2>);
    case 4:
      return launch(CombineKernel<4>);
    case 8:
      return launch(CombineKernel<8>);
    default:
      return launch(CombineKernel<16>);
  }
}

}  // namespace

WideKernels::WideKernels(const Program& program, int hidden, int device) : program_(&program) {
  Check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
        "reading the device");
  cudaFuncAttributes attributes{};
  Check(cudaFuncGetAttributes(&attributes, ClockKernel), "looking for the kernels of operations");
  hopper_ = UsesHopperKernels(device) && program.wide_pieces;
  from_ = WideFrom(hidden, hopper_, program.packed);
  if (program.wide.empty() || !IsCompiled(attributes.ptxVersion)) return;
  if (program.packed && !hopper_) return;
  for (const WideMatrix& matrix : program.wide) {
    for (int shape = 0; shape < kWideShapeCount; ++shape) {
      if (!HasShape(shape) || !TakesMatrix(kWideShapes[shape], matrix)) continue;
      const WideProductKernel kernel = ProductKernel(matrix, shape);
      Check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kernel.shared_bytes),
            "setting the shared memory of a product");
    }
  }
  for (const int head : {32, 64, 128}) {
    for (const bool merged : {false, true}) {
      for (const bool int8_keys : {false, true}) {
        const AttentionLaunch how = AttentionFor(head, merged, int8_keys);
        Check(cudaFuncSetAttribute(how.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(how.shared)),
              "setting the shared memory of attention");
      }
    }
  }
  available_ = true;
}

bool WideKernels::HasShape(int shape) const {
  return !kWideShapes[shape].hopper || hopper_;
}

void WideKernels::Launch(const DecodeParams& params, const PlanHeader& plan, Phase phase,
                         cudaStream_t stream) const {
  const auto at = [&](int32_t offset) {
    return reinterpret_cast<const char*>(params.plan) + offset;
  };
  WideRun run{};
  run.phase = phase;
  run.rows = plan.rows[phase];
  run.unit_count = plan.units[phase];
  run.merged = plan.merged[phase];
  run.infos = reinterpret_cast<const RowInfo*>(at(plan.row_at[phase]));
  run.query_rows = reinterpret_cast<const QueryRow*>(at(plan.query_rows_at[phase]));
  run.units = reinterpret_cast<const AttentionUnit*>(at(plan.unit_at[phase]));
  const int32_t spans_at = plan.later_spans_at[phase];
  run.later_spans = spans_at != 0 ? reinterpret_cast<const KeySpan*>(at(spans_at)) : nullptr;
  run.chains = reinterpret_cast<const int32_t*>(at(plan.chains_at));

  Launcher launcher(params, stream);
  uint64_t* trace = params.trace;
  const auto launch = [&](const Op& op) {
    switch (op.type) {
      case OpType::kRows:
        if (params.shapes.hidden <= kLocalHidden) {
          LaunchRows<kLocalHidden>(launcher, op, run);
        } else {
          LaunchRows<kProducerHidden>(launcher, op, run);
        }
        break;
      case OpType::kMatrix: {
        const WideMatrix& matrix = program_->wide[static_cast<size_t>(op.matrix)];
        LaunchProduct(launcher, op, run, matrix,
                      shape_ >= 0 && TakesMatrix(kWideShapes[shape_], matrix)
                          ? shape_
                          : ChooseWideShape(matrix, run.rows, multiprocessors_, hopper_));
        break;
      }
      case OpType::kFinishQk:
        LaunchFinishQk(launcher, op, run);
        break;
      case OpType::kAttention:
        LaunchAttention(launcher, op, run);
        break;
      case OpType::kCombine:
        LaunchCombine(launcher, op, run, multiprocessors_);
        break;
    }
    if (trace != nullptr) launcher.MarkTime(trace++);
  };
  launcher.MarkTime(params.clock + 2 * phase);
  if (trace != nullptr) launcher.MarkTime(trace++);
  const int begin = program_->ops_begin[phase], end = program_->ops_end[phase];
  if (phase == kPhaseCore) launch(program_->ops[static_cast<size_t>(program_->core_start)]);
  const int times = phase == kPhaseCore ? plan.recurrences : 1;
  for (run.recurrence = 0; run.recurrence < times; ++run.recurrence) {
    for (int i = begin; i < end; ++i) launch(program_->ops[static_cast<size_t>(i)]);
  }
  launcher.MarkTime(params.clock + 2 * phase + 1);
}

}  // namespace loopspec::cuda
