// Who holds which key/value memory: indices only, the memory itself is the backend's.
//
// A live branch holds one *cell*: its token's keys and values on every plane, its hidden state, its
// proposals' distributions. Committed tokens of a sequence lie in *pages* of kPageSize positions,
// which sequences with the same beginning may share.
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

// Pages with reference counts: a page is free again when the last of its holders has released it.
class PagePool {
 public:
  explicit PagePool(int count)
      : free_(count),
        references_(static_cast<size_t>(count), 0),
        kept_(static_cast<size_t>(count), false) {}

  // A page with one holder; -1 when none is left.
  int Take();
  // One holder more, or fewer.
  void Retain(int page);
  void Release(int page);
  // The same for the one holder that keeps pages for later: how many it has alone is counted.
  void Keep(int page);
  void Drop(int page);
  int kept_alone() const { return kept_alone_; }

  int references(int page) const { return references_[static_cast<size_t>(page)]; }
  int available() const { return free_.available(); }
  int capacity() const { return free_.capacity(); }

 private:
  FreeList free_;
  std::vector<int32_t> references_;
  std::vector<bool> kept_;
  int kept_alone_ = 0;
};

class KvLedger {
 public:
  // `window`: pages that every sequence holds beside those of its positions (Backend::window).
  KvLedger(int pages, int cells, int window = 0) : window_(window), pages_(pages), cells_(cells) {}

  int window() const { return window_; }
  PagePool& pages() { return pages_; }
  FreeList& cells() { return cells_; }

 private:
  int window_;
  PagePool pages_;
  FreeList cells_;
};

// The committed part of one sequence: its pages in order of position, and its window, which holds
// what a backend keeps of the last positions alone. The window comes with the first page.
class SequencePages {
 public:
  // None yet: they come as the sequence grows.
  explicit SequencePages(KvLedger& ledger) : ledger_(&ledger) {}
  // Enough for `positions` at once. Throws Error when fewer pages than needed are left.
  SequencePages(KvLedger& ledger, int64_t positions);
  ~SequencePages();
  SequencePages(SequencePages&& other) noexcept;
  SequencePages& operator=(SequencePages&& other) noexcept;

  // Pages that Grow would take, those of the window among them.
  int Missing(int64_t positions) const;
  // Takes pages until they hold `positions`. False, and nothing taken, when too few are
  // left. Pages may move in memory: not while a step that names them is in flight.
  bool Grow(int64_t positions);
  // Growing up to `positions` allocates nothing from now on; no page is taken.
  void Reserve(int64_t positions) { held_.reserve(static_cast<size_t>(PagesFor(positions))); }
  // Puts a page that somebody else holds at the end. Its positions must not be written any more.
  void Share(int32_t page);
  // Puts the pages of `front`, which holds no more than this one, in the place of its own first
  // ones.
  void ReplaceFront(SequencePages front);
  // Releases all pages.
  void Clear();

  std::span<const int32_t> pages() const { return held_; }
  // Empty until Grow has taken it.
  std::span<const int32_t> window() const { return window_; }

 private:
  KvLedger* ledger_;
  std::vector<int32_t> held_;
  std::vector<int32_t> window_;
};

}  // namespace loopspec
