// Causal attention of a prompt's positions to all before them and to themselves.
//
// Queries and keys are gone through in tiles at absolute positions, keys from the last tile to the
// first, with the online softmax and its rescaling the same for every row: a row's bits do not
// depend on where a prompt was cut or what else is in the batch. A position that a query does not
// see weighs exactly zero.
#pragma once

#include "backends/cuda/host/tensor_maps.h"
#include "backends/cuda/prefill/prefill_plan.h"

namespace loopspec::cuda {

struct AttentionArguments {
  PromptBuffers buffers;
  PromptMemory memory;
  int32_t plane = 0;
  const AttentionTile* tiles = nullptr;
  const int32_t* pages = nullptr;
  int32_t tile_count = 0;
};

// On Hopper's matrix instruction, for head_dim 64, 96 and 128. Heads of 96 lie 128 apart, with
// zeros between.
class HopperAttention {
 public:
  static bool Takes(const PromptMemory& memory) {
    return (memory.head_dim == 96 && memory.head_stride == 128) ||
           (memory.head_dim == memory.head_stride &&
            (memory.head_dim == 64 || memory.head_dim == 128));
  }
  // `rows`: of the query buffer.
  HopperAttention(const PromptBuffers& buffers, const PromptMemory& memory, int rows);
  void Run(const AttentionArguments& arguments, cudaStream_t stream) const;

 private:
  TensorMap queries_, keys_;
};

// On any GPU, for any head.
void PortableAttention(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace loopspec::cuda
