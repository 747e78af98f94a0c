#include "serve/http/fair_queue.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace loopspec::serve {

FairQueue::FairQueue(int threads, int nice) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, nice] { Run(nice); });
}

FairQueue::~FairQueue() {
  Join();
}

void FairQueue::Join() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void FairQueue::Post(const std::string& share, double weight, size_t bytes, Job job) {
  {
    const std::lock_guard lock(mutex_);
    // A share that comes, or comes back, has no claim on what others had meanwhile.
    double least = 0;
    if (!shares_.empty()) {
      least = std::min_element(shares_.begin(), shares_.end(), [](const auto& a, const auto& b) {
                return a.second.had < b.second.had;
              })->second.had;
    }
    const auto [place, is_new] = shares_.try_emplace(share);
    if (is_new) place->second.had = least;
    place->second.weight = weight;
    place->second.waiting.push_back({bytes, std::move(job)});
    ++waiting_;
  }
  posted_.notify_one();
}

template <typename F>
FairQueue::Shares::iterator FairQueue::Next(F may) {
  auto next = shares_.end();
  // With the jobs under way, so that a share with one does not get the next thread before others.
  const auto claim = [](const Share& share) { return std::pair(share.running, share.had); };
  for (auto it = shares_.begin(); it != shares_.end(); ++it) {
    if (it->second.waiting.empty() || !may(it->first, it->second)) continue;
    if (next == shares_.end() || claim(it->second) < claim(next->second)) next = it;
  }
  return next;
}

std::list<FairQueue::Task>::iterator FairQueue::SmallestOf(Share& share) {
  return std::min_element(share.waiting.begin(), share.waiting.end(),
                          [](const Task& a, const Task& b) { return a.bytes < b.bytes; });
}

void FairQueue::RunTask(Shares::iterator share, std::list<Task>::iterator task,
                        std::unique_lock<std::mutex>& lock) {
  Task taken = std::move(*task);
  share->second.waiting.erase(task);
  --waiting_;
  ++share->second.running;
  lock.unlock();
  taken.job();
  taken.job = nullptr;  // what it holds goes while the lock is not held
  lock.lock();
  Share& ended = share->second;
  ended.had += static_cast<double>(taken.bytes) / ended.weight;
  if (--ended.running == 0 && ended.waiting.empty()) shares_.erase(share);
}

void FairQueue::Run(int nice) {
  // Of this thread alone, as Linux has it. Where it is not allowed nothing is lost but some time.
  if (nice != 0) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + nice);
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return waiting_ > 0 || ending_; });
    const auto next = Next([](const std::string&, const Share&) { return true; });
    if (next == shares_.end()) return;
    Share& share = next->second;
    share.smallest = !share.smallest;
    RunTask(next, share.smallest ? SmallestOf(share) : share.waiting.begin(), lock);
  }
}

void FairQueue::Yield(const std::string& name, size_t bytes) {
  if (waiting_ == 0) return;  // as nearly always: no lock
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto mine = shares_.find(name);
    if (mine == shares_.end()) return;
    const double due = mine->second.had + static_cast<double>(bytes) / mine->second.weight;
    const auto next = Next([&](const std::string& other, Share& share) {
      const size_t size = SmallestOf(share)->bytes;
      return other != name && size <= bytes / 2 &&
             share.had + static_cast<double>(size) / share.weight <= due;
    });
    if (next == shares_.end()) return;
    RunTask(next, SmallestOf(next->second), lock);
  }
}

}  // namespace loopspec::serve
