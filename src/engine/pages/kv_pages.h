// KV pages: for sequences that grow, for prefixes that are kept for later, and swapped out and in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "engine/pages/prefix_cache.h"
#include "kv/ledger.h"

namespace loopspec {

class KvPages {
 public:
  // `cache_bytes`: how much of the key/value memory may hold prefixes that no sequence uses at the
  // moment; -1: all of it, 0: nothing is kept.
  KvPages(Backend& backend, KvLedger& ledger, int64_t cache_bytes);

  // Pages for `positions`, so that `spare` ones stay free; cached prefixes are evicted for them.
  // False, and nothing taken, when that is impossible.
  bool Grow(SequencePages& pages, int64_t positions, int spare = 0);
  // Evicts cached prefixes until `pages` are free or none can go. Returns how many are free then.
  int EvictFor(int pages);

  // ---- Prefixes ----
  // Puts the cached beginning of `tokens` into `pages`, which is empty; PutWindow has to follow
  // once Grow has taken pages. `needed` and `held` are those of PrefixCache::Find.
  PrefixHit TakePrefixHit(std::span<const int32_t> tokens, SequencePages& pages,
                          const PagePlanes& needed = {}, PagePlanes* held = nullptr);
  void PutWindow(const PrefixHit& hit, const SequencePages& pages);
  // The same later on, when the first `known` tokens are in `pages` already: what is cached by now
  // takes the place of pages that are not written yet. Returns how many tokens are there then.
  int64_t ExtendPrefixHit(std::span<const int32_t> tokens, int64_t known, SequencePages& pages,
                          const PagePlanes& needed = {}, PagePlanes* held = nullptr);
  // `planes`: what all these pages hold. `end`: of a text that others may go on from, so the window
  // is kept; `tokens` are all that the pages hold.
  void CachePrefix(std::span<const int32_t> tokens, const SequencePages& pages,
                   const PagePlanes& planes = {}, bool end = false);
  // Whether the window still holds what going on at `positions` needs, when those up to `written`
  // have been written.
  bool WindowReaches(int64_t positions, int64_t written) const;
  // The same text once more, for its first `positions` positions: whole pages are shared, which
  // returns how many positions that are; the page after them, once Grow has taken it, is copied.
  int64_t ForkWhole(const SequencePages& from, int64_t positions, SequencePages& to);
  void ForkRest(const SequencePages& from, int64_t positions, const SequencePages& to);

  // ---- Preempted sequences ----
  // Moves the first `positions` positions to host memory, and gives the pages back.
  std::vector<std::byte> SwapOut(SequencePages& pages, int64_t positions);
  // The other way, into pages that Grow has taken.
  void SwapIn(std::span<const std::byte> swapped, const SequencePages& pages);

  int64_t cached() const { return cache_.size(); }
  int free() const { return pool_.available(); }
  int evictable() const { return pool_.kept_alone(); }  // cached, and nobody uses them

 private:
  void CacheWindow(std::span<const int32_t> tokens, const SequencePages& pages,
                   const PagePlanes& planes);
  // Which pages of a window hold what going on at `positions` needs.
  std::vector<int> WindowAt(int64_t positions) const;

  Backend& backend_;
  KvLedger& ledger_;
  PagePool& pool_;
  PrefixCache cache_;
  int span_ = kPageSize;  // of a plan of keys
};

}  // namespace loopspec
