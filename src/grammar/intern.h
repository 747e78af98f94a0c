// Tables behind the automaton: a map from numbers to numbers, and lists that are kept once each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace loopspec::grammar {

inline uint64_t MixHash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

// An open-addressing hash map.
class NumberMap {
 public:
  static constexpr uint32_t kMissing = ~0u;

  uint32_t Find(uint64_t key) const {
    if (slots_.empty()) return kMissing;
    for (size_t i = Slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].value == kMissing) return kMissing;
      if (slots_[i].key == key) return slots_[i].value;
    }
  }
  // `value` must not be kMissing.
  void Set(uint64_t key, uint32_t value) {
    if ((used_ + 1) * 2 > slots_.size()) Grow();
    for (size_t i = Slot(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].value == kMissing) {
        slots_[i] = {key, value};
        ++used_;
        return;
      }
      if (slots_[i].key == key) {
        slots_[i].value = value;
        return;
      }
    }
  }
  void Clear() {
    if (used_ > 0) std::ranges::fill(slots_, Entry{});
    used_ = 0;
  }
  size_t memory() const { return slots_.size() * sizeof(Entry); }

 private:
  struct Entry {
    uint64_t key = 0;
    uint32_t value = kMissing;
  };
  size_t Slot(uint64_t key) const { return MixHash(0, key) & (slots_.size() - 1); }
  void Grow() {
    std::vector<Entry> old(std::max<size_t>(16, slots_.size() * 2));
    old.swap(slots_);
    used_ = 0;
    for (const Entry& entry : old) {
      if (entry.value != kMissing) Set(entry.key, entry.value);
    }
  }

  std::vector<Entry> slots_;
  size_t used_ = 0;
};

// Lists of T, a type without padding, kept once each: equal lists have equal numbers.
template <typename T>
class ListTable {
 public:
  uint32_t Intern(std::span<const T> list) {
    uint64_t hash = list.size();
    for (const T& item : list) {
      uint32_t words[sizeof(T) / 4];
      std::memcpy(words, &item, sizeof(T));
      for (const uint32_t word : words) hash = MixHash(hash, word);
    }
    const uint32_t first = by_hash_.Find(hash);
    for (uint32_t i = first; i != NumberMap::kMissing; i = entries_[i].next) {
      const std::span<const T> other = (*this)[i];
      if (other.size() == list.size() &&
          (list.empty() || std::memcmp(other.data(), list.data(), list.size_bytes()) == 0)) {
        return i;
      }
    }
    const auto id = static_cast<uint32_t>(entries_.size());
    entries_.push_back({pool_.size(), static_cast<uint32_t>(list.size()), first});
    pool_.insert(pool_.end(), list.begin(), list.end());
    by_hash_.Set(hash, id);
    return id;
  }
  std::span<const T> operator[](uint32_t id) const {
    return {pool_.data() + entries_[id].start, entries_[id].size};
  }
  size_t size() const { return entries_.size(); }
  size_t memory() const {
    return pool_.size() * sizeof(T) + entries_.size() * sizeof(Entry) + by_hash_.memory();
  }

 private:
  struct Entry {
    size_t start;
    uint32_t size;
    uint32_t next;  // another list with the same hash
  };
  std::vector<T> pool_;
  std::vector<Entry> entries_;
  NumberMap by_hash_;
};

}  // namespace loopspec::grammar
