// Lays a model down as the decode kernel's program: its operations in order, and which block reads
// which weights.
#pragma once

#include <vector>

#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

struct Program {
  std::vector<Op> ops;
  int ops_begin[kSets], ops_end[kSets];
  int core_start = 0;
  std::vector<MatrixShare> shares[2];  // [narrow]: [block][matrix]
  int matrices = 0;
  int matrices_end[kSets];
  std::vector<DeviceMatrix> weights;  // [matrix]
  std::vector<MatrixKind> kinds;      // [matrix]
  int max_chunks = 1;                 // partial sums of any matrix
  bool mail = false;                  // narrow sets may pass results by mail (mail.cuh)
};

// `blocks`: blocks of the kernel's grid. Throws Error when the model has more matrices than the
// kernel's table.
Program BuildProgram(const DeviceModel& model, int blocks);

}  // namespace loopspec::cuda
