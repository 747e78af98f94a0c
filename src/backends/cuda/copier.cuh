// A warp that does nothing but copy weights, for steps whose sets all are narrow.
//
// The chain of operations consists of small exchanges between blocks, and whatever queues for
// memory delays them: warps that each refill their ring as soon as they have read it send bursts.
// Here one thread fills all rings in turn, a slot at a time and no faster than memory delivers, so
// that what is copied later waits in the order of this loop and not in front of the exchanges.
#pragma once

#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/weight_stream.cuh"

namespace loopspec::cuda {

__device__ inline uint32_t CycleClock() {
  uint32_t t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
  return t;
}

// By one thread of the block's last warp. The warps' rings get their blocks of a piece in turn.
template <typename Kind>
__device__ __noinline__ void CopyStream() {
  const auto interval = static_cast<uint32_t>(Context().p.copy_interval);
  uint32_t slot[kWarps] = {}, parity[kWarps];  // of the next copy; of the reading before it
#pragma unroll
  for (int w = 0; w < kWarps; ++w) parity[w] = 1;  // that of a barrier which no one arrived at
  RingState at{};
  at.matrix = -1;
  uint32_t due = CycleClock();  // when the next copy may begin
#pragma unroll 1
  for (;;) {
    StreamPass pass = NextPass(at, 0);  // the first warp has a block in every chunk
    if (pass.matrix == kStreamEnd) return;
    PrefetchMap(Context().p.maps + min(pass.matrix + 1, Context().p.matrices - 1));
    const int blocks = Context().shares[pass.matrix].blocks;
    do {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (pass.chunk * kWarps + w >= blocks) continue;
        WaitBarrier(FreeBarrier(w, 0) + slot[w] * 8, parity[w]);
        while (due - CycleClock() - 1 < interval) {  // it is never further ahead
        }
        // Time that was not used is not made up for.
        const uint32_t now = CycleClock();
        due = (now - due > interval ? now : due) + interval;
        CopyBlock<Kind>(pass, static_cast<int>(slot[w]), w);
        if (++slot[w] == Kind::kSlots) {
          slot[w] = 0;
          parity[w] ^= 1;
        }
      }
    } while (StepPass(pass));
  }
}

}  // namespace loopspec::cuda
