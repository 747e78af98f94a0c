// A CTA as a team (sampling/team.h), and the CTA-wide reductions that sampling
// needs. Sums have one fixed order: a thread's own elements in order, lanes in a tree, warps in
// order.
#pragma once

#include <cstdint>

namespace loopspec::cuda {

inline constexpr int kTeamThreads = 1024;
inline constexpr int kTeamWarps = kTeamThreads / 32;

struct TeamScratch {
  double sums[kTeamWarps];
  float values[kTeamWarps];
  int32_t indices[kTeamWarps];
  int32_t answer;
};

struct CtaTeam {
  TeamScratch* scratch;

  template <typename F>
  __device__ void ForEach(int n, F f) const {
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kTeamThreads) f(i);
    __syncthreads();
  }

  template <typename F>
  __device__ double Sum(int n, F f) const {
    double part = 0.0;
    for (int i = threadIdx.x; i < n; i += kTeamThreads) part += static_cast<double>(f(i));
    return Total(part);
  }

  // The CTA's sum of one value per thread, in every thread.
  __device__ double Total(double part) const {
    for (int mask = 1; mask < 32; mask <<= 1) part += __shfl_xor_sync(0xFFFFFFFFu, part, mask);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch->sums[threadIdx.x / 32] = part;
    __syncthreads();
    double sum = 0.0;
    for (int w = 0; w < kTeamWarps; ++w) sum += scratch->sums[w];
    return sum;
  }

  // Largest value over all threads' (value, index) pairs, the lowest index among equals; index -1
  // never wins.
  __device__ int ArgMax(float value, int index, float* best = nullptr) const {
    for (int mask = 1; mask < 32; mask <<= 1) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, value, mask);
      const int other_index = __shfl_xor_sync(0xFFFFFFFFu, index, mask);
      if (Before(other, other_index, value, index)) {
        value = other;
        index = other_index;
      }
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
      scratch->values[threadIdx.x / 32] = value;
      scratch->indices[threadIdx.x / 32] = index;
    }
    __syncthreads();
    value = scratch->values[0];
    index = scratch->indices[0];
    for (int w = 1; w < kTeamWarps; ++w) {
      if (Before(scratch->values[w], scratch->indices[w], value, index)) {
        value = scratch->values[w];
        index = scratch->indices[w];
      }
    }
    if (best != nullptr) *best = value;
    return index;
  }

  static __device__ bool Before(float a, int i, float b, int j) {
    if (i < 0 || j < 0) return i >= 0;
    return a > b || (a == b && i < j);
  }

  // Where the running sum of weight(i) first exceeds u * total; entries of weight zero are never
  // returned. Each warp sums a stretch of its own, then the warp that holds the target walks its
  // stretch.
  template <typename F>
  __device__ int Choose(int n, F weight, double total, double u) const {
    const double target = u * total;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int stretch = (n + kTeamThreads - 1) / kTeamThreads * 32;
    const int begin = warp * stretch, end = min(n, begin + stretch);
    double part = 0.0;
    int last = -1;  // of positive weight
    for (int i = begin + lane; i < end; i += 32) {
      const double w = static_cast<double>(weight(i));
      if (w > 0.0) {
        part += w;
        last = i;
      }
    }
    for (int mask = 1; mask < 32; mask <<= 1) {
      part += __shfl_xor_sync(0xFFFFFFFFu, part, mask);
      last = max(last, __shfl_xor_sync(0xFFFFFFFFu, last, mask));
    }
    __syncthreads();
    if (lane == 0) {
      scratch->sums[warp] = part;
      scratch->indices[warp] = last;
    }
    if (threadIdx.x == 0) scratch->answer = -1;
    __syncthreads();
    // The first warp whose sums pass the target; when rounding lets none do so, the last one with a
    // positive entry.
    double before = 0.0;
    int owner = -1;
    double owner_before = 0.0;
    for (int w = 0; w < kTeamWarps; ++w) {
      if (scratch->indices[w] < 0) continue;
      owner = w;
      owner_before = before;
      before += scratch->sums[w];
      if (before > target) break;
    }
    if (owner == warp) {
      double sum = owner_before;
      int answer = -1;
      for (int i = begin; i < end && answer < 0; i += 32) {
        const double w = i + lane < end ? static_cast<double>(weight(i + lane)) : 0.0;
        double prefix = w > 0.0 ? w : 0.0;
        for (int step = 1; step < 32; step <<= 1) {
          const double other = __shfl_up_sync(0xFFFFFFFFu, prefix, step);
          if (lane >= step) prefix += other;
        }
        const unsigned past = __ballot_sync(0xFFFFFFFFu, w > 0.0 && sum + prefix > target);
        if (past != 0) answer = i + __ffs(static_cast<int>(past)) - 1;
        sum += __shfl_sync(0xFFFFFFFFu, prefix, 31);
      }
      if (lane == 0) scratch->answer = answer >= 0 ? answer : last;
    }
    __syncthreads();
    const int answer = scratch->answer;
    __syncthreads();
    return answer;
  }
};

}  // namespace loopspec::cuda
