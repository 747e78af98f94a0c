// Prompts: the decode kernel's program run over up to 256 positions at a time, with cuBLASLt for
// the matrices.
#pragma once

#include <vector>

#include "backends/backend.h"
#include "backends/cuda/decode/kernel_params.h"
#include "backends/cuda/prefill/matmul_lt.h"
#include "backends/cuda/program/program.h"

namespace loopspec::cuda {

// Chunks begin and end at multiples of this, and a position always takes the same place in its
// chunk.
inline constexpr int kPrefillRows = 256;

class Prefiller {
 public:
  // `params`: the decode kernel's, for shapes and key/value memory; its buffers of queries and
  // rotations hold kPrefillRows rows and are shared.
  Prefiller(const DeviceModel& model, const Program& program, const DecodeParams& params,
            const std::vector<int>& readout_depths, cudaStream_t stream);

  // Commits the plan's positions; `sink`, where given, gets the logits of each at every readout
  // depth. Returns when done.
  void Run(const PrefillPlan& plan, const LogitsSink* sink);

 private:
  struct Chunk {
    int base;         // absolute position of row 0
    int first, last;  // rows [first, last) are there
  };
  void RunChunk(const PrefillPlan& plan, const Chunk& chunk, const LogitsSink* sink);
  void RunOps(int begin, int end, int phase, int stack, const Chunk& chunk);
  void RunMatrix(const Op& op, int phase, int plane_offset, const Chunk& chunk);
  void Readout(int readout, const Chunk& chunk, const LogitsSink* sink);

  const DeviceModel& model_;
  const Program& program_;
  std::vector<int> readout_depths_;
  cudaStream_t stream_;
  MatMulLt products_;

  DecodeParams params_;  // rows are numbered as cells
  DeviceArray<float> state_, coda_x_, sums_, logits_;
  DeviceArray<bf16> prelude_out_, hidden_, coda_hidden_, attention_, ff_, adapter_;
  DeviceArray<RowInfo> infos_[kPhases];
  DeviceArray<int32_t> pages_;
  PinnedArray<RowInfo> host_infos_;
  PinnedArray<int32_t> host_pages_;
  PinnedArray<float> host_logits_;
};

}  // namespace loopspec::cuda
