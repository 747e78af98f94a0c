#include "base/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/check.h"

namespace loopspec {
namespace {

using std::chrono::nanoseconds;

// How long a member spins before it sleeps. Inside a run the others are a few microseconds behind
// unless they were preempted; between runs the caller soon returns unless the work is done. To be
// woken takes some 10 to 50 us.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kIdleSpin = std::chrono::microseconds(200);

// How often it is looked up where the members' time went. Rarely: to ask for a thread's CPU time
// makes the system look whether another one is due.
constexpr auto kSample = std::chrono::milliseconds(25);

inline void Pause() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

// Sleeps unless `word` differs from `seen`; may return early.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}
static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// CPU time of the calling thread.
nanoseconds ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

double Seconds(nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void Worker::Sync() {
  if (count_ > 1) pool_->Barrier(pool_->members_[static_cast<size_t>(index_)]);
}

Worker::Range Worker::Share(int64_t n, int64_t grain) const {
  const int64_t units = (n + grain - 1) / grain;
  const int64_t begin = units * index_ / count_ * grain;
  const int64_t end = units * (index_ + 1) / count_ * grain;
  return {std::min(begin, n), std::min(end, n)};
}

ThreadPool::ThreadPool(int threads)
    : count_(threads > 0 ? threads : UsableCores()),
      cores_(UsableCores()),
      size_(count_),
      members_(static_cast<size_t>(count_)),
      places_(static_cast<size_t>(count_)),
      times_(static_cast<size_t>(count_)) {
  for (int i = 1; i < count_; ++i) threads_.emplace_back([this, i] { ThreadMain(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  for (int i = 1; i < count_; ++i) Call(members_[static_cast<size_t>(i)]);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::FixTeam(int members) {
  LOOPSPEC_CHECK(members >= 0 && members <= count_);
  fixed_ = members;
}

void ThreadPool::Run(void (*body)(void*, Worker&), void* context) {
  const bool choose = fixed_ == 0 && count_ > 1;
  const Clock::time_point start = choose ? Clock::now() : Clock::time_point();
  body_ = body;
  context_ = context;
  team_ = choose ? size_.current() : fixed_ > 0 ? fixed_ : count_;
  Place(choose && size_.measuring());
  sample_ = measuring_ && (!sampled_ || busy_ >= kSample);
  for (int i = 1; i < team_; ++i) Call(members_[static_cast<size_t>(i)]);
  RunMember(0);
  if (choose) Account(start, Clock::now());
}

// Tells size_ from time to time where the members' time went.
void ThreadPool::Account(Clock::time_point start, Clock::time_point end) {
  busy_ += end - start;
  if (measuring_ ? !sample_ : busy_ < kSample) return;
  // Without a first sample there is nothing to compare the CPU times with; and if the caller was
  // away for long between two runs, they say little.
  const nanoseconds wall = measuring_ ? end - sampled_at_ : busy_;
  const bool report = !measuring_ || (sampled_ && busy_ > wall * 4 / 5);
  for (int i = 0; i < team_; ++i) {
    Member& member = members_[static_cast<size_t>(i)];
    times_[static_cast<size_t>(i)] = {Seconds(member.cpu - member.cpu_before), Seconds(member.spun),
                                      Seconds(member.slept)};
    member.cpu_before = member.cpu;
    member.spun = member.slept = nanoseconds(0);
  }
  if (report) size_.Add(Seconds(wall), std::span(times_).first(static_cast<size_t>(team_)));
  sampled_ = measuring_ && size_.current() == team_;
  sampled_at_ = end;
  busy_ = nanoseconds(0);
}

// While the team loses time, its members are kept on cores of their own.
void ThreadPool::Place(bool measuring) {
  const std::span<ThreadPlace> others = std::span(places_).subspan(1);
  if (measuring && team_ > 1 && team_ <= cores_) {
    SpreadOut(others.first(static_cast<size_t>(team_) - 1));
  } else if (measuring_ && !measuring) {
    LetGo(others);
    sampled_ = false;
  }
  measuring_ = measuring;
}

// Tells a member that a run has begun.
void ThreadPool::Call(Member& member) {
  member.run.store(member.run.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (member.asleep.load(std::memory_order_seq_cst) > 0) FutexWakeAll(member.run);
}

void ThreadPool::ThreadMain(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  places_[static_cast<size_t>(index)].thread = CurrentThread();
  AskForShortTurns();
  nanoseconds patience{0};
  for (uint32_t seen = 0;; ++seen) {
    Wait(member.run, seen, patience, member.asleep, nullptr);
    if (stop_) return;
    patience = Patience(kIdleSpin);
    RunMember(index);
  }
}

// A member's part in the run. Only the caller waits for the end: it alone goes on from there.
void ThreadPool::RunMember(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  places_[static_cast<size_t>(index)].seen_on = CurrentCore();
  Worker worker(this, index, team_);
  body_(context_, worker);
  if (index == 0 && team_ > 1) Barrier(member);
  if (sample_) member.cpu = ThreadTime();
  if (index > 0) Arrive();
}

// True for the last to arrive, which lets the others go on.
bool ThreadPool::Arrive() {
  const int team = team_;  // read before: once all have arrived, the next run may change it
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) != team - 1) return false;
  arrived_.store(0, std::memory_order_relaxed);
  phase_.fetch_add(1, std::memory_order_seq_cst);
  if (phase_sleepers_.load(std::memory_order_seq_cst) > 0) FutexWakeAll(phase_);
  return true;
}

void ThreadPool::Barrier(Member& member) {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (!Arrive()) Wait(phase_, phase, Patience(kSpin), phase_sleepers_, &member);
}

// With more members than cores, whoever waits gives its core away at once.
nanoseconds ThreadPool::Patience(nanoseconds spin) const {
  return team_ <= cores_ ? spin : nanoseconds(0);
}

// A sleeper counts itself before it looks at the word for the last time, and whoever changes the
// word does so before it looks for sleepers: one of the two sees the other.
void ThreadPool::Wait(const std::atomic<uint32_t>& word, uint32_t seen, nanoseconds patience,
                      std::atomic<uint32_t>& sleepers, Member* account) const {
  if (word.load(std::memory_order_acquire) != seen) return;
  const Clock::time_point start = Clock::now();
  for (int spin = 1; patience.count() > 0; ++spin) {
    if (word.load(std::memory_order_acquire) != seen) {
      if (account != nullptr && measuring_)
        account->spun += std::min<nanoseconds>(Clock::now() - start, patience);
      return;
    }
    if (spin % 32 == 0 && Clock::now() - start > patience) break;
    Pause();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == seen) FutexWait(word, seen);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (account == nullptr) return;
  account->slept += Clock::now() - start - patience;
  account->spun += patience;
}

}  // namespace loopspec
