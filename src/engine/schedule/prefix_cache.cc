#include "engine/schedule/prefix_cache.h"

#include <algorithm>

namespace loopspec {

bool PagePlanes::Hold(const PagePlanes& needed) const {
  return recurrence == needed.recurrence &&
         std::includes(readouts.begin(), readouts.end(), needed.readouts.begin(),
                       needed.readouts.end());
}

// The finaliser of SplitMix64 for every token.
uint64_t HashPage(uint64_t hash, const int32_t* tokens) {
  for (int i = 0; i < kPageSize; ++i) {
    hash += 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])) + 1);
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
    hash ^= hash >> 31;
  }
  return hash;
}

PrefixCache::~PrefixCache() {
  for (const Entry& entry : entries_) pages_.Drop(entry.page);
}

PrefixCache::Place PrefixCache::Look(uint64_t hash, const Entry* parent, const int32_t* tokens,
                                     int recurrence) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = *it->second;
    if (entry.parent == parent && entry.planes.recurrence == recurrence &&
        std::equal(entry.tokens.begin(), entry.tokens.end(), tokens))
      return it->second;
  }
  return entries_.end();
}

void PrefixCache::Touch(Entry* last) {
  for (Entry* entry = last; entry != nullptr; entry = entry->parent) {
    const Place place =
        Look(entry->hash, entry->parent, entry->tokens.data(), entry->planes.recurrence);
    entries_.splice(entries_.begin(), entries_, place);
  }
}

int64_t PrefixCache::Find(std::span<const int32_t> tokens, SequencePages& sequence,
                          const PagePlanes& needed, PagePlanes* held) {
  Entry* last = nullptr;
  uint64_t hash = 0;
  int64_t found = 0;
  for (; found + kPageSize <= static_cast<int64_t>(tokens.size()); found += kPageSize) {
    hash = hash_(hash, tokens.data() + found);
    const Place place = Look(hash, last, tokens.data() + found, needed.recurrence);
    if (place == entries_.end() || !place->planes.Hold(needed)) break;
    last = &*place;
    sequence.Share(place->page);
    if (held == nullptr) continue;
    std::erase_if(held->readouts, [&](int depth) {
      return !std::binary_search(last->planes.readouts.begin(), last->planes.readouts.end(), depth);
    });
  }
  Touch(last);
  return found;
}

void PrefixCache::Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages,
                         const PagePlanes& planes) {
  Entry* parent = nullptr;
  uint64_t hash = 0;
  for (size_t i = 0; i < pages.size() && (i + 1) * kPageSize <= tokens.size(); ++i) {
    const int32_t* block = tokens.data() + i * kPageSize;
    hash = hash_(hash, block);
    const Place known = Look(hash, parent, block, planes.recurrence);
    if (known != entries_.end()) {
      parent = &*known;
      if (known->page == pages[i] || known->planes.Hold(planes)) continue;
      // Entries below stay: what their pages hold does not depend on this one.
      pages_.Drop(known->page);
      pages_.Keep(pages[i]);
      known->page = pages[i];
      known->planes = planes;
      continue;
    }
    if (parent != nullptr) ++parent->children;  // so that EvictOne below cannot evict it
    if (size() >= limit_ && !EvictOne()) {
      if (parent != nullptr) --parent->children;
      break;
    }
    pages_.Keep(pages[i]);
    entries_.push_front({parent, hash, planes, {}, pages[i], 0});
    std::copy_n(block, kPageSize, entries_.front().tokens.begin());
    by_hash_.emplace(hash, entries_.begin());
    parent = &entries_.front();
  }
  Touch(parent);
}

bool PrefixCache::EvictOne() {
  for (Place place = entries_.end(); place != entries_.begin();) {
    --place;
    if (place->children > 0 || pages_.references(place->page) > 1) continue;
    if (place->parent != nullptr) --place->parent->children;
    const auto [begin, end] = by_hash_.equal_range(place->hash);
    by_hash_.erase(
        std::find_if(begin, end, [&](const auto& entry) { return entry.second == place; }));
    pages_.Drop(place->page);
    entries_.erase(place);
    return true;
  }
  return false;
}

}  // namespace loopspec
