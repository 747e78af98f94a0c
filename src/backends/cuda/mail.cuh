// Passing small results between blocks without a barrier over the grid.
//
// Every value travels with the number of the operation that made it, in one store of eight bytes: a
// reader looks until the number is the one it waits for, and has the value with it. There is
// nothing to fence and nobody to count. What a block posts may be overwritten by the next posting
// to the same place; the program makes sure that every block has to post something after reading
// the one and before the other (Program::mail).
#pragma once

#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

__device__ __forceinline__ void Post(Mail* to, uint32_t value, uint32_t stamp) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(value), "r"(stamp)
               : "memory");
}
__device__ __forceinline__ void Post(Mail* to, float value, uint32_t stamp) {
  Post(to, __float_as_uint(value), stamp);
}
// Two neighbouring values; `to` is even.
__device__ __forceinline__ void PostTwo(Mail* to, float first, float second, uint32_t stamp) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to),
               "r"(__float_as_uint(first)), "r"(stamp), "r"(__float_as_uint(second))
               : "memory");
}

// Two neighbouring values as they are now: {value, stamp, value, stamp}.
__device__ __forceinline__ uint4 Peek(const Mail* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool HasCome(const uint4& mail, uint32_t stamp) {
  return mail.y == stamp && mail.w == stamp;
}

// Waits until kCount groups of four values have come, group i from from(i); to(i, values) takes
// them. All are asked for at once, again and again.
template <int kCount, typename From, typename To>
__device__ __forceinline__ void Receive(uint32_t stamp, From from, To to) {
  uint4 mail[kCount][2];
  bool all;
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Mail* at = from(i);
      mail[i][0] = Peek(at);
      mail[i][1] = Peek(at + 2);
    }
    all = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      all = all && HasCome(mail[i][0], stamp) && HasCome(mail[i][1], stamp);
  } while (!all);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    to(i, make_uint4(mail[i][0].x, mail[i][0].z, mail[i][1].x, mail[i][1].z));
}

}  // namespace loopspec::cuda
