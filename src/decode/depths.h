// Proposal depths: which are allowed, which are good, and the paper's formulas about them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace loopspec {

// Depths of proposals for a model of depth R when neither the user nor a calibration says: (1, 2)
// for R = 4, (2, 8) for R = 32, and in proportion to these for others. Empty (autoregressive) for
// R = 1.
std::vector<int> DefaultDepths(int recurrence);

// The same by what runs the model. A GPU reads weights and has rows to spare, so that the depths
// above, the paper's, are right. See the definition for CPUs.
enum class DeviceClass { kCpu, kGpu };
std::vector<int> DefaultDepths(int recurrence, DeviceClass device);

// Parses "1,2"; empty text is no proposals. Throws Error.
std::vector<int> ParseDepths(const std::string& text);

// The depths at which C is applied when drafts are made at `proposals`: these, in order and each
// once, and R.
std::vector<int> ReadoutDepths(std::span<const int> proposals, int recurrence);

// Throws Error unless 1 <= d1 < d2 < ... < R, at most kMaxProposals of them.
void CheckDepths(std::span<const int> depths, int recurrence);

// Throws Error naming a depth that the backend keeps no readout planes for.
void CheckReadouts(std::span<const int> depths, std::span<const int> readout_depths);

// A sentence when d1 does not divide the other depths and R, so that P and C cannot run batched;
// else nothing.
std::optional<std::string> DepthsAdvice(std::span<const int> depths, int recurrence);

// Most branches alive at once when every branch forks at d1 and d2: s_k = s_{k-1} + s_{k-d2/d1},
// s_k = 1 for k < d2/d1, summed over k < R/d1. d1 must divide d2 and R.
int64_t BranchBound(int d1, int d2, int recurrence);

// The paper's gamma: tokens per full model execution of R recurrences. accepted[j] counts tokens
// from proposal j.
double Gamma(std::span<const int64_t> accepted, int64_t fallback, std::span<const int> depths,
             int recurrence);

// Depths that minimise the bound on expected steps per token under TV <= beta r^-alpha (Theorem 2).
struct OptimalDepths {
  double d1, d2;
};
OptimalDepths ComputeOptimalDepths(double alpha, double beta, int recurrence);

}  // namespace loopspec
