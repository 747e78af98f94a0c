// Passing small results between blocks without a barrier over the grid.
//
// Every value travels with the number of the operation that made it, in one store of eight bytes: a
// reader looks until the number is the one it waits for, and has the value with it. There is
// nothing to fence and nobody to count. What a block posts may be overwritten by the next posting
// to the same place; the program makes sure that every block has to post something after reading
// the one and before the other (Program::mail).
#pragma once

#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

// A value and its number in one word: that is what is stored and loaded in one piece.
__device__ __forceinline__ uint64_t MailWord(uint32_t value, uint32_t stamp) {
  return static_cast<uint64_t>(stamp) << 32 | value;
}
__device__ __forceinline__ void Post(Mail* to, uint32_t value, uint32_t stamp) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(MailWord(value, stamp))
               : "memory");
}
__device__ __forceinline__ void Post(Mail* to, float value, uint32_t stamp) {
  Post(to, __float_as_uint(value), stamp);
}
// Where a row's sums have element i: readers take four elements each, in two halves that lie apart,
// so that what neighbouring threads ask for at once lies together.
__device__ __forceinline__ int SumPlace(int i, int hidden) {
  return (i >> 2) * 2 + (i & 1) + (i & 2) * (hidden >> 2);
}
// Two neighbouring values; `to` is even.
__device__ __forceinline__ void PostTwo(Mail* to, float first, float second, uint32_t stamp) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to),
               "l"(MailWord(__float_as_uint(first), stamp)),
               "l"(MailWord(__float_as_uint(second), stamp))
               : "memory");
}

// Two neighbouring values as they are now: {value, stamp, value, stamp}.
__device__ __forceinline__ uint4 Peek(const Mail* from) {
  uint64_t first, second;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(from)
               : "memory");
  return make_uint4(static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
                    static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32));
}
// Zero when both have come.
__device__ __forceinline__ uint32_t Missing(const uint4& mail, uint32_t stamp) {
  return (mail.y ^ stamp) | (mail.w ^ stamp);
}

// Four values from kCount places each, as they come: asked for all at once, again and again. What
// is asked for early is there when it is needed.
template <int kCount>
class MailBox {
 public:
  // The third and fourth value of a group stand `apart` from the first two.
  explicit __device__ __forceinline__ MailBox(int apart = 2) : apart_(apart) {}

  // place(i): of group i.
  template <typename F>
  __device__ __forceinline__ void Ask(F place) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Mail* at = place(i);
      mail_[i][0] = Peek(at);
      mail_[i][1] = Peek(at + apart_);
    }
  }
  // Zero when all has come.
  __device__ __forceinline__ uint32_t StillMissing(uint32_t stamp) const {
    uint32_t missing = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      missing |= Missing(mail_[i][0], stamp) | Missing(mail_[i][1], stamp);
    return missing;
  }
  // After Ask at the same places.
  template <typename F>
  __device__ __forceinline__ void Wait(uint32_t stamp, F place) {
    while (StillMissing(stamp) != 0) Ask(place);
  }
  __device__ __forceinline__ uint4 Values(int i) const {
    return make_uint4(mail_[i][0].x, mail_[i][0].z, mail_[i][1].x, mail_[i][1].z);
  }

 private:
  int apart_;
  uint4 mail_[kCount][2];
};

}  // namespace loopspec::cuda
