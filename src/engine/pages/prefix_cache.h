// Keys and values of texts that were computed before, for requests that begin alike.
//
// A tree of whole pages: an entry is the kPageSize tokens of one page after the tokens of its
// parents. Entries are found by a hash chained over the text and compared token by token, so a hit
// is never a wrong one. Pages have reference counts: an entry is one holder among others, and a
// page that a sequence still reads is never evicted. Readout depths, state seed
// and compute mode belong to the backend, so a cache serves one backend only.
//
// Pages of one text need not hold the same planes. Prefill writes the coda's planes at every
// readout depth; decoding writes them only at the depths that the request was read out at. An entry
// therefore says which planes its page holds (PagePlanes), and a request is given a page only if
// that holds every plane that the request reads. So what a request finds in the cache has, bit for
// bit, what prefilling its prompt would have written, and its text does not depend on the cache.
//
// By a plan of keys (kv/kept_planes.h) a text can be gone on from only where the window before that
// place is kept too. So entries at chosen ends have pages for a window, and a hit ends at one.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/ledger.h"

namespace loopspec {

// The hash of a text that ends with a whole page, from the hash of the text before that page.
using PageHash = uint64_t (*)(uint64_t before, const int32_t* tokens);
uint64_t HashPage(uint64_t before, const int32_t* tokens);

// Planes whose keys and values a page holds for all its positions, or that a request reads.
struct PagePlanes {
  int recurrence = 0;  // depths of B; 0 in tests that have one depth alone
  // Ascending: depths whose coda planes are among them. Empty for a model without coda layers.
  std::vector<int> readouts = {};

  bool Hold(const PagePlanes& needed) const;
  bool operator==(const PagePlanes&) const = default;
};

// The cached beginning of a text.
struct PrefixHit {
  int64_t positions = 0;  // that can be gone on from
  int64_t known = 0;      // that are cached, perhaps without the window at their end
  SequencePages window;   // by a plan of keys: pages of the window at the hit's end
};

class PrefixCache {
 public:
  // At most `limit` pages. `hash` decides how fast entries are found, not which.
  PrefixCache(PagePool& pages, int64_t limit, PageHash hash = HashPage)
      : pages_(pages), limit_(limit), hash_(hash) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Shares the pages of the longest known beginning of `tokens` with `sequence`, which is empty.
  // Only pages that hold `needed` are taken; texts of different recurrences share no pages. Returns
  // how many tokens were found, a multiple of kPageSize. `held`, where given, loses the readouts
  // that one of these pages lacks. `at_window`: where given, the hit ends at an entry with a
  // window, and gets all but its positions.
  int64_t Find(std::span<const int32_t> tokens, SequencePages& sequence,
               const PagePlanes& needed = {}, PagePlanes* held = nullptr,
               PrefixHit* at_window = nullptr);

  // Keeps the pages of `tokens`, as far as they are whole; pages[i] holds tokens [64 i, 64 i + 64)
  // for good, and all of them hold `planes`. Where a beginning is known already, the known page
  // stays if it holds these planes too; otherwise the new one takes its place.
  void Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages,
              const PagePlanes& planes = {});

  // Whether the text's whole pages are all here, the last of them without a window.
  bool LacksWindow(std::span<const int32_t> tokens, const PagePlanes& planes);
  // Keeps these pages as the window at the end of the text's whole pages. False where that is not
  // here, or the limit leaves no room.
  bool KeepWindow(std::span<const int32_t> tokens, const PagePlanes& planes,
                  std::span<const int32_t> window);

  // Evicts what was used least recently: the window of an entry, or an entry whose page has no
  // other holder. False when there is none.
  bool EvictOne();

  int64_t size() const { return static_cast<int64_t>(entries_.size()) + window_pages_; }

 private:
  struct Entry {
    Entry* parent;      // null: the text begins here
    uint64_t hash;      // of the text up to the end of this page
    PagePlanes planes;  // of the page
    std::array<int32_t, kPageSize> tokens;
    int32_t page;
    int children;
    std::vector<int32_t> window = {};  // pages of the window at this page's end; empty: not kept
  };
  using Place = std::list<Entry>::iterator;

  // The entry for a page of tokens after `parent`, whatever its readouts; end() when there is none.
  Place Look(uint64_t hash, const Entry* parent, const int32_t* tokens, int recurrence);
  // Marks `last` and its parents as used now, the parents as the more recent: so the one at the end
  // of the list has no children.
  void Touch(Entry* last);
  // The entry of the text's last whole page; null where one of them is not here.
  Entry* Last(std::span<const int32_t> tokens, const PagePlanes& planes);
  void DropWindow(Entry& entry);

  PagePool& pages_;
  int64_t limit_;
  int64_t window_pages_ = 0;
  PageHash hash_;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_multimap<uint64_t, Place> by_hash_;
};

}  // namespace loopspec
