// The instructions of Hopper (sm_90a) that prompts and steps of many rows run on: the copy engine
// with multicast, barriers that it completes, and the matrix instruction of a warpgroup (wgmma).
// Only files that are compiled for 90a alone include this.
#pragma once

#include <cstdint>

#include "backends/cuda/device/instructions.cuh"

namespace loopspec::cuda {

inline constexpr int kWarpgroup = 128;  // threads

// ---- Clusters ----

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives on the barrier that CTA `rank` of the cluster has at this address. It orders copies and
// matrix products, which complete by themselves before it, and no other memory: a wider order would
// cost a fence for each stage.
__device__ __forceinline__ void ArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// ---- The copy engine ----

inline constexpr uint64_t kEvictNormal = 0x1000000000000000;  // beside kEvictFirst

// A box (CopyBox) into every CTA of the cluster that `ctas` has a bit for, at the same address,
// each of whose barriers at that address is told.
__device__ __forceinline__ void CopyBoxToAll(uint32_t shared, const void* map, int column, int row,
                                             uint32_t barrier, uint16_t ctas, uint64_t hint) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(ctas), "l"(hint)
      : "memory");
}

// ---- Kernels that follow each other closely ----

// Blocks of the next kernel may start; they wait for this one's results in WaitForKernelBefore.
__device__ __forceinline__ void StartNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void WaitForKernelBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- A warpgroup's threads ----

// A barrier of warpgroup `group`; every one has its own.
__device__ __forceinline__ void WarpgroupSync(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kWarpgroup) : "memory");
}

// By a whole warp, one or two 8 x 8 matrices of 16-bit elements: lane 4 g + t has elements 2 t and
// 2 t + 1 of row g, and column c becomes the 16 bytes at the address that lane c (of the second
// matrix 8 + c) gives.
__device__ __forceinline__ void StoreTransposed(uint32_t shared, uint32_t pair) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared), "r"(pair)
               : "memory");
}
__device__ __forceinline__ void StoreTransposed(uint32_t shared, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared),
               "r"(first), "r"(second)
               : "memory");
}

// ---- The matrix instruction ----

template <int kRegisters>
__device__ __forceinline__ void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Operands lie in shared memory as boxes of 64 columns (128 bytes) that the copy engine swizzled:
// 16-byte part c of row r stands at part c ^ (r % 8). Boxes begin at multiples of 1024 bytes. An
// operand is described by its address and two distances, all in units of 16 bytes.
inline constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
inline constexpr int kSwizzleRows = 1024;  // bytes of eight rows, after which the pattern repeats

// Rows are the operand's long side, columns its k: the next eight rows stand 1024 bytes on. The
// next 16 columns of k are 32 bytes on: add kNextK to the description.
__device__ __forceinline__ uint64_t DescribeByRows(uint32_t shared) {
  return kSwizzle128 | uint64_t{kSwizzleRows >> 4} << 32 | uint64_t{1} << 16 |
         ((shared & 0x3FFFF) >> 4);
}
inline constexpr uint64_t kNextK = 32 >> 4;
// Rows are k, columns the operand's long side: the next eight of k stand 1024 bytes on, the next 64
// columns `box` bytes on.
__device__ __forceinline__ uint64_t DescribeByColumns(uint32_t shared, uint32_t box) {
  return kSwizzle128 | uint64_t{kSwizzleRows >> 4} << 32 | uint64_t{box >> 4} << 16 |
         ((shared & 0x3FFFF) >> 4);
}

__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kGroups committed groups are under way.
template <int kGroups>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// The compiler must not move what it does with the sums across this.
template <int kCount>
__device__ __forceinline__ void PinSums(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// clang-format off
#define LOOPSPEC_SUMS_8(d, i) \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), \
  "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define LOOPSPEC_SUMS_32(d, i) \
  LOOPSPEC_SUMS_8(d, i), LOOPSPEC_SUMS_8(d, (i) + 8), \
  LOOPSPEC_SUMS_8(d, (i) + 16), LOOPSPEC_SUMS_8(d, (i) + 24)

// d = (add ? d : 0) + a b^T over 16 of k: a 64 x 16, b N x 16, both by rows. Of the warpgroup's 64
// rows, warp w has 16 w ...; thread (g, t) = (lane / 4, lane % 4) holds in d[4 j + e] row g + 8 (e / 2),
// column 8 j + 2 t + e % 2.
__device__ __forceinline__ void MultiplyShared(float (&d)[16], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0; }"
      : LOOPSPEC_SUMS_8(d, 0),
        LOOPSPEC_SUMS_8(d, 8)
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyShared(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0; }"
      : LOOPSPEC_SUMS_32(d, 0)
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyShared(float (&d)[44], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %46, 0; "
      "wgmma.mma_async.sync.aligned.m64n88k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "
      "%43}, %44, %45, p, 1, 1, 0, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_8(d, 32),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyShared(float (&d)[64], uint64_t a, uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32)
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyShared(float (&d)[80], uint64_t a, uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %82, 0; "
      "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79}, %80, %81, p, 1, 1, 0, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32),
        LOOPSPEC_SUMS_8(d, 64),
        LOOPSPEC_SUMS_8(d, 72)
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyShared(float (&d)[96], uint64_t a, uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %98, 0; "
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, "
      "%88, %89, %90, %91, %92, %93, %94, %95}, %96, %97, p, 1, 1, 0, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32),
        LOOPSPEC_SUMS_32(d, 64)
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyShared(float (&d)[128], uint64_t a, uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, "
      "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, "
      "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "
      "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, "
      "0, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32),
        LOOPSPEC_SUMS_32(d, 64),
        LOOPSPEC_SUMS_32(d, 96)
      : "l"(a), "l"(b), "r"(add));
}

// d = (add ? d : 0) + a b^T over 16 of k, as above, with a in registers: the matrix instruction's
// 16 x 16 operand for each warp.
__device__ __forceinline__ void MultiplyByRows(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : LOOPSPEC_SUMS_8(d, 0),
        LOOPSPEC_SUMS_8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyByRows(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
      : LOOPSPEC_SUMS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyByRows(float (&d)[44], const uint32_t (&a)[4], uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %49, 0; "
      "wgmma.mma_async.sync.aligned.m64n88k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "
      "%43}, {%44, %45, %46, %47}, %48, p, 1, 1, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_8(d, 32),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyByRows(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
      "%58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void MultiplyByRows(float (&d)[128], const uint32_t (&a)[4], uint64_t b,
                                               int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %133, 0; "
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
      "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "
      "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
      "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "
      "%122, %123, %124, %125, %126, %127"
      "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32),
        LOOPSPEC_SUMS_32(d, 64),
        LOOPSPEC_SUMS_32(d, 96)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// d += a b over 16 of k: a in registers (the matrix instruction's 16 x 16 operand for each warp), b by
// columns.
__device__ __forceinline__ void MultiplyRegisters(float (&d)[32], const uint32_t (&a)[4],
                                                  uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.eq.b32 p, 0, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
      : LOOPSPEC_SUMS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void MultiplyRegisters(float (&d)[64], const uint32_t (&a)[4],
                                                  uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.eq.b32 p, 0, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
      : LOOPSPEC_SUMS_32(d, 0),
        LOOPSPEC_SUMS_32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef LOOPSPEC_SUMS_32
#undef LOOPSPEC_SUMS_8
// clang-format on

}  // namespace loopspec::cuda
