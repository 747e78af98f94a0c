#include "decode/depths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/field_error.h"
#include "sampling/cascade.h"

namespace loopspec {

std::vector<int> DefaultDepths(int recurrence, DeviceClass device) {
  if (recurrence <= 1) return {};
  if (recurrence == 2) return {1};
  // R = 4 -> (1, 2) on both. R = 32 -> (2, 8) on a GPU, (4, 8) on a CPU, which gives up tokens per
  // pass for steps with far fewer rows. Between these d1 grows with the cube root of R, or with R;
  // it divides R, and d2 is a multiple of it near R/4.
  const double first = device == DeviceClass::kGpu ? std::cbrt(recurrence / 4.0) : recurrence / 8.0;
  int d1 = std::max(1, static_cast<int>(std::lround(first)));
  while (recurrence % d1 != 0) --d1;
  const int d2 = std::max(2, recurrence / 4 / d1) * d1;
  if (d2 >= recurrence) return {d1};
  return {d1, d2};
}

std::vector<int> ParseDepths(const std::string& text) {
  std::vector<int> depths;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    int depth = 0;
    const auto [next, error] = std::from_chars(at, end, depth);
    if (error != std::errc() || (next != end && *next != ',') || (next != end && next + 1 == end)) {
      throw FieldError("depths", fmt::format("\"{}\"", text),
                       "whole numbers with commas between, such as 1,2");
    }
    depths.push_back(depth);
    at = next == end ? end : next + 1;
  }
  return depths;
}

std::vector<int> ReadoutDepths(std::span<const int> proposals, int recurrence) {
  std::vector<int> depths(proposals.begin(), proposals.end());
  depths.push_back(recurrence);
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

void CheckDepths(std::span<const int> depths, int recurrence) {
  if (depths.size() > static_cast<size_t>(kMaxProposals)) {
    throw FieldError("depths", fmt::format("a list of {}", depths.size()),
                     fmt::format("at most {}", kMaxProposals));
  }
  int last = 0;
  for (const int depth : depths) {
    if (depth <= last || depth >= recurrence) {
      throw FieldError("depths", fmt::format("{}", fmt::join(depths, ",")),
                       fmt::format("rising numbers from 1 to {} for a model of depth {}",
                                   recurrence - 1, recurrence));
    }
    last = depth;
  }
}

void CheckReadouts(std::span<const int> depths, std::span<const int> readout_depths) {
  for (const int depth : depths) {
    if (std::find(readout_depths.begin(), readout_depths.end(), depth) != readout_depths.end())
      continue;
    throw FieldError(
        "depths",
        fmt::format("{}, of which {} is not read out here", fmt::join(depths, ","), depth),
        fmt::format("depths among {}",
                    fmt::join(readout_depths.begin(), readout_depths.end() - 1, ",")));
  }
}

std::optional<std::string> DepthsAdvice(std::span<const int> depths, int recurrence) {
  if (depths.empty()) return std::nullopt;
  std::vector<int> others(depths.begin() + 1, depths.end());
  others.push_back(recurrence);
  std::erase_if(others, [&](int d) { return d % depths[0] == 0; });
  if (others.empty()) return std::nullopt;
  return fmt::format(
      "depth {} does not divide {}: pre- and post-layers of different branches run apart, which is "
      "slower",
      depths[0], fmt::join(others, " and "));
}

int64_t BranchBound(int d1, int d2, int recurrence) {
  LOOPSPEC_CHECK(d1 > 0 && d2 % d1 == 0 && recurrence % d1 == 0);
  const int lag = d2 / d1;
  std::vector<int64_t> s;
  int64_t total = 0;
  for (int k = 0; k < recurrence / d1; ++k) {
    s.push_back(k < lag ? 1 : s[static_cast<size_t>(k) - 1] + s[static_cast<size_t>(k - lag)]);
    total += s.back();
  }
  return total;
}

double Gamma(std::span<const int64_t> accepted, int64_t fallback, std::span<const int> depths,
             int recurrence) {
  int64_t tokens = fallback;
  double steps = static_cast<double>(fallback) * recurrence;
  for (size_t j = 0; j < accepted.size(); ++j) {
    tokens += accepted[j];
    steps += static_cast<double>(accepted[j]) * depths[j];
  }
  return steps > 0 ? static_cast<double>(tokens) * recurrence / steps : 0.0;
}

OptimalDepths ComputeOptimalDepths(double alpha, double beta, int recurrence) {
  const double q = alpha * alpha + alpha + 1.0;
  const double ab = alpha * beta, r = 2.0 * alpha * recurrence;
  return {std::pow(ab, (alpha + 1.0) / q) * std::pow(r, 1.0 / q),
          std::pow(ab, alpha / q) * std::pow(r, (alpha + 1.0) / q)};
}

}  // namespace loopspec
