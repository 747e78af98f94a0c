// A team of threads that runs one function at a time, each member with its own index, in step at
// barriers. Work is divided by index, so that the same thread does the same share every time and
// its caches stay warm.
//
// Members that wait spin for some microseconds, then sleep: beside other busy processes the one
// they wait for may be away for milliseconds, and needs the core more than they do. What is lost to
// such waits is watched: if it is much, members are kept on cores of their own
// (thread_placement.h), and a smaller team takes over where it gets more done (team_size.h). A
// function must therefore ask its worker for the number of members in every run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/team_size.h"
#include "base/thread_placement.h"

namespace loopspec {

class ThreadPool;

// One member of the team inside a running function.
class Worker {
 public:
  int index() const { return index_; }
  int count() const { return count_; }  // members that take part in this run

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

  // From now on `members` members take part in every run; 0 (the default) lets the pool choose.
  void FixTeam(int members);

  // Runs body(worker) on the members of the team, the caller being member 0; returns when all are
  // done. `body` must not throw. Takes a plain function and a context, so that a call allocates
  // nothing.
  void Run(void (*body)(void* context, Worker& worker), void* context);

  template <typename F>
  void Run(F&& body) {
    Run([](void* context,
           Worker& worker) { (*static_cast<std::remove_reference_t<F>*>(context))(worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  friend class Worker;
  using Nanoseconds = std::chrono::nanoseconds;
  using Clock = std::chrono::steady_clock;

  struct alignas(64) Member {
    std::atomic<uint32_t> run{0};  // the last run that this member was called to
    std::atomic<uint32_t> asleep{0};
    // Written by the member in runs, by the caller between them.
    Nanoseconds cpu{0}, cpu_before{0};  // its CPU time at this sample and at the one before
    Nanoseconds spun{0}, slept{0};      // at barriers, since that
  };
  void ThreadMain(int index);
  void RunMember(int index);
  void Place(bool measuring);
  void Account(Clock::time_point start, Clock::time_point end);
  void Call(Member& member);
  bool Arrive();
  void Barrier(Member& member);
  Nanoseconds Patience(Nanoseconds spin) const;
  // Waits until `word` differs from `seen`: spins, then sleeps, counted in `sleepers` meanwhile.
  // Inside a run the time is written down in `account`.
  void Wait(const std::atomic<uint32_t>& word, uint32_t seen, Nanoseconds patience,
            std::atomic<uint32_t>& sleepers, Member* account) const;

  const int count_;
  const int cores_;
  int fixed_ = 0;
  TeamSize size_;
  std::vector<Member> members_;
  std::vector<ThreadPlace> places_;  // of the members; only they and the caller write to them, in
                                     // and between runs
  std::vector<MemberTime> times_;    // of the last run, as size_ takes them
  std::vector<std::thread> threads_;

  // Since the last sample of the members' time.
  bool sampled_ = false;  // this team has been sampled before
  Clock::time_point sampled_at_;
  Nanoseconds busy_{0};  // in runs

  // The run: written by the caller before it calls the members, constant until all have arrived.
  void (*body_)(void*, Worker&) = nullptr;
  void* context_ = nullptr;
  int team_ = 1;
  bool measuring_ = false;  // all time spent spinning counts, not only that of long waits
  bool sample_ = false;     // members note their CPU time at the end
  bool stop_ = false;

  // The barrier of the run. A phase ends when the whole team has arrived.
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<uint32_t> phase_sleepers_{0};
};

}  // namespace loopspec
