// Weights of few bits as bf16 rows, for products of prompts that are cuBLASLt's: each matrix again
// before every product, into memory that all of them share.
#pragma once

#include <cstddef>

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

// Rows [first, first + rows) of a matrix of few bits, multiples of kTileRows: to[rows, ld].
void WidenRows(const DeviceMatrix& from, int first, int rows, bf16* to, cudaStream_t stream);

class WidenedWeights {
 public:
  // Bytes for the largest matrix of few bits that a layer has; a head, which may be larger, goes
  // through them in parts. 0 where no weights have few bits.
  static size_t RoomFor(const DeviceModel& model);
  WidenedWeights(const DeviceModel& model, cudaStream_t stream);

  // Rows of a matrix that there is room for at once.
  int RowsAtOnce(const DeviceMatrix& matrix) const;
  // Puts the widening on the stream. What is returned holds until the next call.
  DeviceMatrix Widen(const DeviceMatrix& matrix, int first, int rows);

 private:
  cudaStream_t stream_;
  DeviceArray<bf16> room_;
};

}  // namespace loopspec::cuda
