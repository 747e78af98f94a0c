// Steps with many rows: a kernel for each operation, where fewer rows take one kernel for the whole
// step (decode_kernel.h). Every operation so has the whole chip, with as many CTAs as it likes, and
// weights are read once for all rows. The bits are those of a single row.
#pragma once

#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/program/program.h"

namespace loopspec::cuda {

class WideKernels {
 public:
  // For a device and a program of a model with rows of `hidden` elements; neither has to support
  // them (see available).
  WideKernels(const Program& program, int hidden, int device);

  bool available() const { return available_; }
  // Rows of a phase from which on they are the faster way.
  int from() const { return from_; }
  // Whether there are kernels for products in tiles of kWideShapes[shape].
  bool HasShape(int shape) const;
  // All products that it takes in such tiles; -1: as is best. For tests and benchmarks.
  void SetShape(int shape) { shape_ = shape; }

  // Runs phase `phase` of the step whose plan begins with `plan` and lies on the device at
  // params.plan.
  void Launch(const DecodeParams& params, const PlanHeader& plan, Phase phase,
              cudaStream_t stream) const;

 private:
  const Program* program_;
  bool available_ = false;
  int from_ = kWideFrom;
  int multiprocessors_ = 0;
  bool hopper_ = false;  // compute capability 9.0, and Program::wide_pieces
  int shape_ = -1;
};

}  // namespace loopspec::cuda
