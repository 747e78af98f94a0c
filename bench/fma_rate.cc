#include "bench/fma_rate.h"

#include <algorithm>
#include <atomic>

#include "base/timer.h"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/fma_rate.cc"
// foreach_target.h comes first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace loopspec {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Runs `rounds` x 12 vector multiply-adds; returns how many scalar ones that was, and a value that
// depends on all.
double Chains(int rounds, float* sink) {
  const hn::ScalableTag<float> d;
  constexpr int kChains = 12;
  hn::Vec<decltype(d)> acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(d, 1.0f + static_cast<float>(i));
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  for (int round = 0; round < rounds; ++round) {
    for (auto& v : acc) v = hn::MulAdd(a, b, v);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = hn::Add(acc[0], acc[i]);
  *sink = hn::GetLane(hn::SumOfLanes(d, acc[0]));
  return static_cast<double>(rounds) * kChains * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace loopspec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loopspec {

HWY_EXPORT(Chains);

double MeasureFmaRate(ThreadPool& pool) {
  double best = 0.0;
  std::atomic<double> sink{0.0};
  for (int pass = 0; pass < 5; ++pass) {
    std::atomic<double> done{0.0};
    Timer timer;
    pool.Run([&](Worker&) {
      float value = 0.0f;
      const double count = HWY_DYNAMIC_DISPATCH(Chains)(2'000'000, &value);
      done.fetch_add(count);
      sink.fetch_add(static_cast<double>(value));
    });
    best = std::max(best, done.load() / timer.Seconds());
  }
  return best;
}

}  // namespace loopspec
#endif
