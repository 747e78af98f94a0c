// Builds the decode kernel's program for a model: its operations in order, and which CTA reads
// which weights.
#pragma once

#include <vector>

#include "backends/cuda/program/op.h"

namespace loopspec::cuda {

struct Program {
  std::vector<Op> ops;
  int ops_begin[kPhases], ops_end[kPhases];
  int core_start = 0;
  std::vector<MatrixShare> shares[2];  // [small_batch]: [cta][matrix]
  int matrices = 0;
  int matrices_end[kPhases];
  std::vector<DeviceMatrix> weights;  // [matrix]
  std::vector<MatrixKind> kinds;      // [matrix]
  int max_chunks = 1;                 // partial sums of any matrix
  std::vector<WideMatrix> wide;  // [matrix]; empty: more than kPassRows rows take several passes
  bool packed = false;           // some weights have few bits
  bool wide_pieces = false;      // q, k, v and inputs of `down` are whole pieces of 16 bytes
  bool low_latency = false;      // small batches may use the low-latency exchange
  bool producer = false;         // kernels with a producer warp may run it
};

// `ctas`: of the kernel's grid. Throws Error when the model has more matrices than the
// kernel's table.
Program BuildProgram(const DeviceModel& model, int ctas);

}  // namespace loopspec::cuda
