// Who holds which key/value memory: indices only, the memory itself is the backend's.
//
// A live branch holds one *cell*: its token's keys and values on every plane, its hidden state, its
// proposals' distributions. Committed tokens of a sequence lie in *pages* of kPageSize positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loopspec {

inline constexpr int kPageSize = 64;  // positions

inline int PagesFor(int64_t positions) {
  return static_cast<int>((positions + kPageSize - 1) / kPageSize);
}

// A set of interchangeable numbered resources. No allocation after construction.
class FreeList {
 public:
  explicit FreeList(int count);
  // -1 when none is left.
  int Take();
  void Give(int id);
  int available() const { return static_cast<int>(free_.size()); }
  int capacity() const { return capacity_; }

 private:
  int capacity_;
  std::vector<int32_t> free_;
  std::vector<bool> taken_;  // catches a double release
};

class KvLedger {
 public:
  KvLedger(int pages, int cells) : pages_(pages), cells_(cells) {}

  FreeList& pages() { return pages_; }
  FreeList& cells() { return cells_; }

 private:
  FreeList pages_;
  FreeList cells_;
};

// The committed part of one sequence. Pages are reserved up front for the longest it may become, so
// that decoding never stops for want of one.
class SequencePages {
 public:
  // Throws Error when fewer pages than needed are left.
  SequencePages(KvLedger& ledger, int64_t positions);
  ~SequencePages();
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;

  std::span<const int32_t> pages() const { return held_; }

 private:
  KvLedger& ledger_;
  std::vector<int32_t> held_;
};

}  // namespace loopspec
