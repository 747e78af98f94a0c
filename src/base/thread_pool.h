// A fixed team of threads that runs one function at a time, each member with its own index, in step
// at barriers. Work is divided by index, never stolen: the same thread does the same share every
// time, and there is no queue to contend for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace loopspec {

class ThreadPool;

// One member of the team inside a running function.
class Worker {
 public:
  int index() const { return index_; }
  int count() const { return count_; }

  // Waits until every member has come here; what each wrote before is then seen by all.
  void Sync();

  // The worker's share of [0, n), in whole multiples of `grain` except at the end.
  struct Range {
    int64_t begin, end;
  };
  Range Share(int64_t n, int64_t grain = 1) const;

 private:
  friend class ThreadPool;
  Worker(ThreadPool* pool, int index, int count) : pool_(pool), index_(index), count_(count) {}

  ThreadPool* pool_;
  int index_;
  int count_;
};

class ThreadPool {
 public:
  // `threads` counts the caller's own thread; 0 takes the number of usable cores.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return count_; }

  // Runs body(worker) on every member, the caller being member 0; returns when all are done. `body`
  // must not throw. Takes a plain function and a context, so that a call allocates nothing.
  void Run(void (*body)(void* context, Worker& worker), void* context);

  template <typename F>
  void Run(F&& body) {
    Run([](void* context,
           Worker& worker) { (*static_cast<std::remove_reference_t<F>*>(context))(worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  friend class Worker;
  void ThreadMain(int index);
  void Barrier();

  void Relax(int spin) const;

  const int count_;
  const bool crowded_;  // more members than cores: whoever waits gives its core away at once
  std::vector<std::thread> threads_;
  // A generation number starts each run; sleepers wait on it after a short spin.
  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  void (*body_)(void*, Worker&) = nullptr;
  void* context_ = nullptr;

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

// The cores this process may run on (respects affinity and container limits).
int UsableCores();

}  // namespace loopspec
