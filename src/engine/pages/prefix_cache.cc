#include "engine/pages/prefix_cache.h"

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
  for (Entry& entry : entries_) {
    DropWindow(entry);
    pages_.Drop(entry.page);
  }
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
                          const PagePlanes& needed, PagePlanes* held, PrefixHit* at_window) {
  std::vector<Entry*> found;
  size_t used = 0;  // of them
  uint64_t hash = 0;
  for (size_t at = 0; at + kPageSize <= tokens.size(); at += kPageSize) {
    hash = hash_(hash, tokens.data() + at);
    const Entry* last = found.empty() ? nullptr : found.back();
    const Place place = Look(hash, last, tokens.data() + at, needed.recurrence);
    if (place == entries_.end() || !place->planes.Hold(needed)) break;
    found.push_back(&*place);
    if (at_window == nullptr || !place->window.empty()) used = found.size();
  }
  for (size_t i = 0; i < used; ++i) {
    sequence.Share(found[i]->page);
    if (held == nullptr) continue;
    const std::vector<int>& readouts = found[i]->planes.readouts;
    std::erase_if(held->readouts, [&](int depth) {
      return !std::binary_search(readouts.begin(), readouts.end(), depth);
    });
  }
  if (at_window != nullptr) {
    at_window->known = static_cast<int64_t>(found.size()) * kPageSize;
    if (used > 0) {
      for (const int32_t page : found[used - 1]->window) at_window->window.Share(page);
    }
  }
  Touch(found.empty() ? nullptr : found.back());
  return static_cast<int64_t>(used) * kPageSize;
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

PrefixCache::Entry* PrefixCache::Last(std::span<const int32_t> tokens, const PagePlanes& planes) {
  Entry* last = nullptr;
  uint64_t hash = 0;
  for (size_t at = 0; at + kPageSize <= tokens.size(); at += kPageSize) {
    hash = hash_(hash, tokens.data() + at);
    const Place place = Look(hash, last, tokens.data() + at, planes.recurrence);
    if (place == entries_.end()) return nullptr;
    last = &*place;
  }
  return last;
}

bool PrefixCache::LacksWindow(std::span<const int32_t> tokens, const PagePlanes& planes) {
  const Entry* last = Last(tokens, planes);
  return last != nullptr && last->window.empty();
}

bool PrefixCache::KeepWindow(std::span<const int32_t> tokens, const PagePlanes& planes,
                             std::span<const int32_t> window) {
  while (size() + std::ssize(window) > limit_) {
    if (!EvictOne()) return false;
  }
  Entry* last = Last(tokens, planes);  // unless it had to go itself
  if (last == nullptr || !last->window.empty()) return false;
  last->window.assign(window.begin(), window.end());
  for (const int32_t page : window) pages_.Keep(page);
  window_pages_ += std::ssize(window);
  return true;
}

void PrefixCache::DropWindow(Entry& entry) {
  for (const int32_t page : entry.window) pages_.Drop(page);
  window_pages_ -= std::ssize(entry.window);
  entry.window.clear();
}

bool PrefixCache::EvictOne() {
  for (Place place = entries_.end(); place != entries_.begin();) {
    --place;
    if (!place->window.empty() && pages_.references(place->window[0]) == 1) {
      DropWindow(*place);
      return true;
    }
    if (place->children > 0 || pages_.references(place->page) > 1) continue;
    if (place->parent != nullptr) --place->parent->children;
    const auto [begin, end] = by_hash_.equal_range(place->hash);
    by_hash_.erase(
        std::find_if(begin, end, [&](const auto& entry) { return entry.second == place; }));
    DropWindow(*place);
    pages_.Drop(place->page);
    entries_.erase(place);
    return true;
  }
  return false;
}

}  // namespace loopspec
