// The low-latency exchange: small results go from CTA to CTA without a barrier over the grid.
//
// Every value travels with the number of the operation that made it (its epoch), in one store of
// eight bytes. A receiver polls until the epoch is the one it waits for, and then has the value as
// well: no fence and no counter is needed. NCCL's LL protocol is the same idea.
//
// A word may be overwritten by the next value sent to the same place. The program makes sure that
// it has been read by then: between reading the one and sending the other, every CTA has to receive
// something that its readers sent afterwards (Program::low_latency, tests/backends/cuda/
// exchange_order_test.cc).
#pragma once

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/watchdog.cuh"

namespace loopspec::cuda {

// Value and epoch in one 64-bit word, which is stored and loaded whole.
__device__ __forceinline__ uint64_t PackWord(uint32_t value, uint32_t epoch) {
  return static_cast<uint64_t>(epoch) << 32 | value;
}
__device__ __forceinline__ void Send(LLWord* to, uint32_t value, uint32_t epoch) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(PackWord(value, epoch))
               : "memory");
}
__device__ __forceinline__ void Send(LLWord* to, float value, uint32_t epoch) {
  Send(to, __float_as_uint(value), epoch);
}
// Where element i of a row's sums is. Receivers take four elements each, in two halves that lie
// apart, so that the loads of neighbouring threads are contiguous.
__device__ __forceinline__ int ExchangedSumAt(int i, int hidden) {
  return (i >> 2) * 2 + (i & 1) + (i & 2) * (hidden >> 2);
}
// Two neighbouring values; `to` is even.
__device__ __forceinline__ void SendTwo(LLWord* to, float first, float second, uint32_t epoch) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to),
               "l"(PackWord(__float_as_uint(first), epoch)),
               "l"(PackWord(__float_as_uint(second), epoch))
               : "memory");
}

// Two neighbouring words as they are now: {value, epoch, value, epoch}.
__device__ __forceinline__ uint4 Poll(const LLWord* from) {
  uint64_t first, second;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(from)
               : "memory");
  return make_uint4(static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
                    static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32));
}
// Zero when both words have the epoch.
__device__ __forceinline__ uint32_t Missing(const uint4& words, uint32_t epoch) {
  return (words.y ^ epoch) | (words.w ^ epoch);
}

// Receives four values from each of kCount places. All loads are issued together, and again until
// every word has the epoch. Request early what is needed late.
template <int kCount>
class Receiver {
 public:
  // The third and fourth value of a place stand `apart` words after the first two.
  explicit __device__ __forceinline__ Receiver(int apart = 2) : apart_(apart) {}

  // place(i): of the first two values of group i.
  template <typename F>
  __device__ __forceinline__ void Request(F place) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const LLWord* at = place(i);
      words_[i][0] = Poll(at);
      words_[i][1] = Poll(at + apart_);
    }
  }
  // Zero when everything has arrived.
  __device__ __forceinline__ uint32_t StillMissing(uint32_t epoch) const {
    uint32_t missing = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      missing |= Missing(words_[i][0], epoch) | Missing(words_[i][1], epoch);
    return missing;
  }
  // After Request of the same places.
  template <typename F>
  __device__ __forceinline__ void Wait(uint32_t epoch, F place) {
    while (StillMissing(epoch) != 0) {
      Request(place);
      if (MustGiveUp()) break;
    }
  }
  __device__ __forceinline__ uint4 Values(int i) const {
    return make_uint4(words_[i][0].x, words_[i][0].z, words_[i][1].x, words_[i][1].z);
  }

 private:
  int apart_;
  uint4 words_[kCount][2];
};

}  // namespace loopspec::cuda
