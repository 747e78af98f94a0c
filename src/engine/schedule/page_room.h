// Room in the pages: for sequences that grow, for prefixes that are kept for later, and back again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "engine/schedule/prefix_cache.h"
#include "kv/ledger.h"

namespace loopspec {

class PageRoom {
 public:
  // `cache_bytes`: how much of the key/value memory may hold prefixes that nobody uses at the
  // moment; -1: all of it, 0: nothing is kept.
  PageRoom(Backend& backend, KvLedger& ledger, int64_t cache_bytes);

  // Room for `positions`, so that `spare` pages are left; cached prefixes make way. False, and
  // nothing taken, when that is impossible.
  bool Grow(SequencePages& pages, int64_t positions, int spare = 0);

  // ---- Prefixes ----
  // Puts what is known of `tokens` into `pages`, which is empty; returns the number of tokens.
  int64_t TakePrefix(std::span<const int32_t> tokens, SequencePages& pages);
  // What is known by now of `tokens`, whose first `known` are in `pages` already, takes the place
  // of pages that are not written yet. Returns how many tokens are there then.
  int64_t RetakePrefix(std::span<const int32_t> tokens, int64_t known, SequencePages& pages);
  void KeepPrefix(std::span<const int32_t> tokens, const SequencePages& pages);
  // The same text once more, for its first `positions` positions: whole pages are shared, which
  // returns how many positions that are; the page after them, once Grow has made room, is copied.
  int64_t ShareWhole(const SequencePages& from, int64_t positions, SequencePages& to);
  void CopyRest(const SequencePages& from, int64_t positions, const SequencePages& to);

  // ---- Sequences that are set aside ----
  // Moves the first `positions` positions to host memory, and gives the pages back.
  std::vector<std::byte> Save(SequencePages& pages, int64_t positions);
  // The other way, into pages that Grow has taken.
  void Load(std::span<const std::byte> saved, const SequencePages& pages);

  int64_t cached_pages() const { return cache_.size(); }

 private:
  Backend& backend_;
  KvLedger& ledger_;
  PagePool& pool_;
  PrefixCache cache_;
};

}  // namespace loopspec
