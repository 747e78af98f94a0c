#include "backends/cpu/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backends/cpu/memory.h"
#include "base/thread_pool.h"
#include "base/timer.h"

namespace loopspec {
namespace {

// Sums whole cache lines with several chains, which compilers turn into vector loads.
uint64_t ReadAll(const uint64_t* data, int64_t words) {
  uint64_t sum[32] = {};
  for (int64_t i = 0; i + 32 <= words; i += 32) {
    for (int lane = 0; lane < 32; ++lane) sum[lane] += data[i + lane];
  }
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  return total;
}

}  // namespace

double MeasureReadBandwidth(int threads) {
  ThreadPool pool(threads);
  const int64_t bytes = int64_t{512} << 20;
  const cpu::LazyBuffer buffer(static_cast<size_t>(bytes));
  auto* words = reinterpret_cast<uint64_t*>(buffer.data());
  std::atomic<uint64_t> sink{0};
  // Touched by the threads that will read it.
  pool.Run([&](Worker& worker) {
    const Worker::Range mine = worker.Share(bytes / 8, 4096);
    for (int64_t i = mine.begin; i < mine.end; ++i) words[i] = static_cast<uint64_t>(i);
  });
  double best = 0.0;
  for (int pass = 0; pass < 6; ++pass) {
    Timer timer;
    pool.Run([&](Worker& worker) {
      const Worker::Range mine = worker.Share(bytes / 8, 4096);
      sink += ReadAll(words + mine.begin, mine.end - mine.begin);
    });
    best = std::max(best, static_cast<double>(bytes) / timer.Seconds());
  }
  return best;
}

}  // namespace loopspec
