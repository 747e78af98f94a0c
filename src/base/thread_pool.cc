#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "base/check.h"

namespace loopspec {
namespace {

inline void Pause() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

// How long a member spins before it gives its core away. Inside a run the others are close behind;
// between runs the caller may be away for long, and a spinning core would only burn power.
constexpr int kSpinsInside = 20000;
constexpr auto kIdleSpin = std::chrono::microseconds(2000);

}  // namespace

int UsableCores() {
  cpu_set_t set;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  // A container may have a share of time instead of a set of cores: "quota period", or "max period"
  // for no limit.
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (limit >> quota >> period && quota > 0 && period > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
  }
  return std::max(1, cores);
}

void Worker::Sync() {
  if (count_ > 1) pool_->Barrier();
}

Worker::Range Worker::Share(int64_t n, int64_t grain) const {
  const int64_t units = (n + grain - 1) / grain;
  const int64_t begin = units * index_ / count_ * grain;
  const int64_t end = units * (index_ + 1) / count_ * grain;
  return {std::min(begin, n), std::min(end, n)};
}

ThreadPool::ThreadPool(int threads)
    : count_(threads > 0 ? threads : UsableCores()), crowded_(count_ > UsableCores()) {
  for (int i = 1; i < count_; ++i) threads_.emplace_back([this, i] { ThreadMain(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_seq_cst);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(void (*body)(void*, Worker&), void* context) {
  if (count_ == 1) {
    Worker only(this, 0, 1);
    body(context, only);
    return;
  }
  body_ = body;
  context_ = context;
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard lock(mutex_);
    }  // a sleeper is either waiting by now or will see the new generation
    wake_.notify_all();
  }
  Worker self(this, 0, count_);
  body(context, self);
  Barrier();  // all are done with body_ and context_
}

void ThreadPool::ThreadMain(int index) {
  uint32_t seen = 0;
  while (true) {
    // Spin for a while, then sleep until the next generation.
    const auto deadline = std::chrono::steady_clock::now() + kIdleSpin;
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spin = 1; now == seen; ++spin) {
      Relax(0);
      now = generation_.load(std::memory_order_acquire);
      if (now == seen && spin % 256 == 0 && std::chrono::steady_clock::now() > deadline) {
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        now = generation_.load(std::memory_order_acquire);
      }
    }
    seen = now;
    if (stop_.load(std::memory_order_acquire)) return;
    Worker worker(this, index, count_);
    body_(context_, worker);
    Barrier();
  }
}

void ThreadPool::Barrier() {
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin) {
    Relax(spin);
  }
}

void ThreadPool::Relax(int spin) const {
  if (crowded_ || spin >= kSpinsInside) {
    std::this_thread::yield();  // let the others arrive
  } else {
    Pause();
  }
}

}  // namespace loopspec
