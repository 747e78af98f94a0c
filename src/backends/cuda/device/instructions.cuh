// The instructions that the kernels are made of: matrix products and transposes, asynchronous
// copies, mbarriers and TMA, cache hints, bf16 packing.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace loopspec::cuda {

// c += a b: a 16 x 16 (weights or queries), b 16 x 8, bf16 in, float32 sums.
__device__ inline void Mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with rows 8 ... 15 of a zero, of which nothing is kept.
__device__ inline void MmaEight(float (&c)[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
  [[maybe_unused]] float unused2, unused3;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%6,%5,%6}, {%7,%8}, "
      "{%0,%1,%9,%9};"
      : "+f"(c[0]), "+f"(c[1]), "=f"(unused2), "=f"(unused3)
      : "r"(a0), "r"(a2), "r"(0), "r"(b0), "r"(b1), "f"(0.0f));
}

// n / d for n >= 0; a shift where d is a power of two, which it nearly always is.
__device__ inline int Quotient(int n, int d) {
  return (d & (d - 1)) == 0 ? n >> (__ffs(d) - 1) : n / d;
}

// Two such products over 32 elements of k. A thread holds 16 contiguous bytes of each of its rows.
// The instruction so takes the elements of k in a permuted order, the same for every operand loaded
// this way.
__device__ inline void Mma32(float (&c)[4], const uint4& low, const uint4& high, const uint4& b) {
  Mma(c, low.x, high.x, low.y, high.y, b.x, b.y);
  Mma(c, low.z, high.z, low.w, high.w, b.z, b.w);
}

// Returns `address`, but only once the load of `value` is complete: it makes the address depend on
// the value. Loads from shared memory may still be in flight when later instructions start, and
// neither an mbarrier arrival nor TMA waits for them.
__device__ __forceinline__ uint32_t After(uint32_t value, uint32_t address) {
  uint32_t zero;  // grids have one dimension, but the compiler does not know that this is 0
  asm("mov.u32 %0, %%ctaid.y;" : "=r"(zero));
  return address + (value & zero);
}

// The four 8 x 8 parts of a 16 x 16 operand `a`; each lane gives the address of one row of one
// part.
__device__ inline void LoadMatrix(uint32_t address, uint32_t (&a)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit elements held across the warp.
__device__ inline uint32_t Transpose(uint32_t value) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(value));
  return out;
}

__device__ inline uint32_t PackBF16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 2^x; denormal results become zero.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// SwiGLU.
__device__ inline float Gated(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global)
               : "memory");
}
__device__ inline void CopyAsync4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
// Arrives on an mbarrier when this thread's copies so far are done.
__device__ inline void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// A barrier of the CTA's compute threads; a producer warp takes no part in it.
__device__ inline void CtaSync() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- mbarriers and TMA (Hopper and later) ----

__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised mbarriers visible to TMA.
__device__ inline void FenceBarrierInit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ inline void Arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
__device__ inline void ExpectBytes(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
// Whether the barrier's phase of this parity is complete.
__device__ inline bool TestBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t over;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
      "p; }"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return over != 0;
}
// Waits as long as it takes: for barriers that this CTA's own copies complete.
__device__ inline void WaitBarrier(uint32_t barrier, uint32_t parity) {
  while (!TestBarrier(barrier, parity)) {
  }
}
// Prefetches a matrix's tensor map.
__device__ inline void PrefetchMap(const void* map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}
// An L2 cache policy: evict first, for what will hardly be read again.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;

// TMA: a stage from (group of 64 columns, row) of the matrix that `map` describes.
__device__ inline void CopyTile(uint32_t shared, const void* map, int group, int row,
                                uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], "
      "[%2], %6;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(group), "l"(kEvictFirst)
      : "memory");
#endif
}

// TMA: a box from (column, row) of the array that `map` describes. What lies outside the array is
// filled with zeros, and counts as bytes that came.
__device__ inline void CopyBox(uint32_t shared, const void* map, int column, int row,
                               uint32_t barrier, uint64_t hint) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "l"(hint)
      : "memory");
#endif
}
// Makes what other threads wrote, and this one may read, visible to its copies by TMA.
__device__ inline void FenceBeforeCopies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// TMA: contiguous memory, a multiple of 16 bytes, that will be read again.
__device__ inline void CopyLasting(uint32_t shared, const void* from, uint32_t bytes,
                                   uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// TMA: contiguous memory, a multiple of 16 bytes.
__device__ inline void CopyBulk(uint32_t shared, const void* from, uint32_t bytes,
                                uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
#endif
}

__device__ inline uint4 LoadShared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ inline uint2 LoadShared8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

__device__ inline uint32_t LoadShared4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// Zero unless `there`, without a branch.
__device__ inline uint32_t LoadShared4If(bool there, uint32_t address) {
  uint32_t v;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.shared.u32 %0, [%1]; }"
               : "=&r"(v)
               : "r"(address), "r"(there ? 1 : 0)
               : "memory");
  return v;
}

__device__ inline void StoreShared4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ inline void StoreShared16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Bypasses the L1 cache, which is not coherent with other CTAs' writes.
__device__ inline uint4 LoadCoherent16(const void* p) {
  return __ldcg(static_cast<const uint4*>(p));
}

// The same, only if `load`.
__device__ inline void LoadCoherent16(bool load, const void* p, uint4& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4]; }"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "l"(p), "r"(static_cast<uint32_t>(load))
               : "memory");
}

// One store of 16 bytes, where the compiler does not see that it may use one.
__device__ inline void StoreGlobal16(float* p, const float4& v) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// Prefetches `bytes` (a multiple of 16) into the L2 cache.
__device__ inline void Prefetch(const void* p, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
  for (int i = 0; i < bytes; i += 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p) + i));
  }
#endif
}

// Norm weights are small and read in every recurrence: they should stay in the L2 cache while the
// matrices stream through it.
__device__ inline float4 LoadLasting(const float* p) {
  float4 v;
  constexpr uint64_t kEvictLast = 0x14F0000000000000;
  asm volatile("ld.global.nc.L2::cache_hint.v4.f32 {%0,%1,%2,%3}, [%4], %5;"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p), "l"(kEvictLast));
  return v;
}

__device__ inline uint64_t GlobalClock() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ inline float WarpSum(float v) {
  for (int mask = 1; mask < 32; mask <<= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, mask);
  return v;
}

}  // namespace loopspec::cuda
