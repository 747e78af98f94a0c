#include "backends/cuda/decode/decode_kernel.h"

#include <algorithm>

#include "backends/cuda/decode/decode_loop.cuh"

namespace loopspec::cuda {
namespace {

__global__ void CommitKernel(const __grid_constant__ DecodeParams p) {
  const CommitInfo commit = At<CommitInfo>(p.plan, p.plan->commits_at)[blockIdx.y];
  const int words = p.shapes.head_stride / 8;  // of 16 bytes per key or value
  const int total = p.shapes.planes * p.shapes.kv_heads * 2 * words;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const int word = i % words, which = i / words % 2,
              vector = i / words / 2;  // vector: (plane, head)
    const bf16* from =
        p.buffers.cell_kv +
        (static_cast<size_t>(commit.cell) * p.shapes.planes * p.shapes.kv_heads + vector) * 2 *
            p.shapes.head_stride +
        which * p.shapes.head_stride + word * 8;
    bf16* to =
        p.buffers.page_kv +
        ((static_cast<size_t>(commit.page) * p.shapes.planes * p.shapes.kv_heads + vector) * 2 +
         which) *
            kPageSize * p.shapes.head_stride +
        commit.slot * p.shapes.head_stride + word * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
}

// Cycles from one copy of a producer warp to the next, such that all CTAs together request `share`
// of the nominal memory bandwidth.
int ProducerInterval(int device, int ctas, double share) {
  int memory_khz = 0, bus_bits = 0, core_khz = 0;
  Check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&core_khz, cudaDevAttrClockRate, device), "reading the device");
  const double bytes_per_ms = 2.0 * memory_khz * bus_bits / 8;
  if (bytes_per_ms <= 0) return 1;
  return std::max(1, static_cast<int>(core_khz * static_cast<double>(kStageBytes) * ctas /
                                      (bytes_per_ms * share)));
}

}  // namespace

DecodeLaunch PrepareDecode(int device, bool int8_keys, bool packed) {
  int multiprocessors = 0, limit = 0, cooperative = 0;
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device),
        "reading the device");
  if (cooperative == 0) {
    FailText("GPU " + std::to_string(device) +
             " cannot launch cooperative kernels, which decoding needs");
  }
  DecodeLaunch launch;
  launch.ctas = multiprocessors;
  // A faster pace gains less than the longer memory queues cost the exchanges, of which larger
  // batches have more.
  launch.producer_interval[0] = ProducerInterval(device, multiprocessors, 1.0);
  launch.producer_interval[1] = ProducerInterval(device, multiprocessors, 1.07);
  const bool prepared = packed      ? PreparePackedKernels(int8_keys, limit, launch)
                        : int8_keys ? PrepareInt8Kernels(limit, launch)
                                    : PrepareKernels<false, false>(limit, launch);
  if (prepared) return launch;
  FailText("GPU " + std::to_string(device) + " has " + std::to_string(limit) +
           " bytes of shared memory per CTA, decoding needs " +
           std::to_string(SharedBytes<RingKind<1>>()));
}

// Kernels with a producer warp expect shapes that the program says it has (Builder::AllowsProducer,
// AllowsLowLatency), and that attention takes all queries of a KV head at once.
int ProducerRows(const DecodeLaunch& launch, const DecodeParams& params) {
  if (params.program.producer == 0 || params.shapes.group > kUnitQueries) return 0;
  return std::max(launch.with_producer[0].producer_rows, launch.with_producer[1].producer_rows);
}

void LaunchDecode(const DecodeLaunch& launch, const WideKernels& wide, DecodeParams params,
                  const PlanHeader& plan, cudaStream_t stream) {
  const auto& rows = plan.rows;
  const auto is_wide = [&](int count) { return wide.available() && count >= launch.wide_from; };
  // If one phase needs the kernel for more rows, the others run in it too: another launch would
  // cost more than the smaller kernel gains.
  const DecodeKernelLaunch* with_producer_kernel = nullptr;
  if (ProducerRows(launch, params) > 0) {
    with_producer_kernel = &launch.with_producer[0];
    for (const int count : rows) {
      if (!is_wide(count) && count > launch.with_producer[0].producer_rows &&
          count <= launch.with_producer[1].producer_rows)
        with_producer_kernel = &launch.with_producer[1];
    }
  }
  // Neighbouring phases that run in the same kernel share a launch.
  const DecodeKernelLaunch* kernel = nullptr;
  const auto run_to = [&](int end) {
    params.phases_end = end;
    void* arguments[] = {&params};
    if (kernel != nullptr) {
      Check(cudaLaunchCooperativeKernel(kernel->kernel, dim3(static_cast<unsigned>(launch.ctas)),
                                        dim3(static_cast<unsigned>(kernel->threads)), arguments,
                                        kernel->shared_bytes, stream),
            "launching the decode kernel");
    }
    params.phases_begin = end;
    kernel = nullptr;
  };
  params.phases_begin = 0;
  for (int phase = 0; phase < kPhases; ++phase) {
    const int count = rows[phase];
    if (count == 0) continue;
    if (is_wide(count)) {
      run_to(phase);
      wide.Launch(params, plan, static_cast<Phase>(phase), stream);
      params.phases_begin = phase + 1;
      continue;
    }
    const DecodeKernelLaunch* next =
        with_producer_kernel != nullptr && count <= with_producer_kernel->producer_rows
            ? with_producer_kernel
            : &launch.any;
    if (next != kernel) run_to(phase);
    kernel = next;
  }
  run_to(kPhases);
}

void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream) {
  if (commits == 0) return;
  if (params.shapes.key_words != params.shapes.head_stride) {
    LaunchInt8Commits(params, commits, stream);
    return;
  }
  CommitKernel<<<dim3(64, static_cast<unsigned>(commits)), 256, 0, stream>>>(params);
  Check(cudaGetLastError(), "launching the commits");
}

}  // namespace loopspec::cuda
