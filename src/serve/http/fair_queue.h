// Threads for work that takes long, divided between shares: large bodies that are parsed and made
// into tokens.
//
// The next job is that of the share that has had the fewest bytes for its weight; within a share
// the smallest and the oldest take turns. A job that is under way calls Yield now and then: a job
// of another share that is at most half as large goes before the rest of it, on the same thread, as
// long as its share has had no more than the other gets with the job under way. So one share's
// megabytes do not hold up another's kilobytes, whoever came first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace loopspec::serve {

class FairQueue {
 public:
  using Job = std::function<void()>;

  // `nice`: added to the threads' niceness, so that others go before them on a busy machine.
  explicit FairQueue(int threads, int nice = 0);
  ~FairQueue();  // Join()
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // `bytes`: what the job is worth, at least 1. The job must not throw.
  void Post(const std::string& share, double weight, size_t bytes, Job job);
  // From within a job of `bytes` bytes of that share.
  void Yield(const std::string& share, size_t bytes);
  // Runs what was posted, and ends the threads.
  void Join();

 private:
  struct Task {
    size_t bytes;
    Job job;
  };
  struct Share {
    double weight = 1;
    double had = 0;         // bytes of jobs that have ended, over the weight
    int running = 0;        // jobs under way
    bool smallest = false;  // whether the next job is the smallest, else the oldest
    std::list<Task> waiting;
  };
  using Shares = std::map<std::string, Share>;

  void Run(int nice);
  // The share whose turn it is among those that wait and that `may` be taken; end(): none.
  template <typename F>
  Shares::iterator Next(F may);
  static std::list<Task>::iterator SmallestOf(Share& share);
  // Takes the job out, and runs it while the lock is not held.
  void RunTask(Shares::iterator share, std::list<Task>::iterator task,
               std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable posted_;
  Shares shares_;  // that have jobs, waiting or under way
  std::atomic<int> waiting_{0};
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace loopspec::serve
