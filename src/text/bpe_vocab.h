// The two tables of a BPE model as flat hash tables: tokens to ids and back, and pairs of ids to
// merges.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec {

inline uint64_t HashBytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9FB21C651E98DF25u;
  uint64_t hash = bytes.size() * 0x9E3779B97F4A7C15u;
  const char* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
  }
  uint64_t tail = 0;
  if (left > 0) std::memcpy(&tail, data, left);
  hash = (hash ^ tail) * kMultiplier;
  return hash ^ hash >> 29;
}

class BpeVocab {
 public:
  static constexpr int64_t kLargestId =
      (1 << 22) - 1;  // bounds the id table that a hostile file can ask for

  // Room for `tokens` of `bytes` in all.
  void Reserve(size_t tokens, size_t bytes);
  // Adds a token or gives a known one a new id; `id` in [0, kLargestId].
  void Set(std::string_view token, int32_t id);
  // Call once after the last Set: makes Token work.
  void Index();

  int32_t Find(std::string_view token) const;  // -1 when unknown
  // The same for many tokens at once, which hides most of the waiting for memory; ids[i] belongs to
  // tokens[i].
  void FindMany(std::span<const std::string_view> tokens, std::span<int32_t> ids) const;
  std::string_view Token(int32_t id) const {  // empty when unknown
    if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return {};
    const uint32_t entry = by_id_[static_cast<size_t>(id)];
    return entry == 0 ? std::string_view() : View(entries_[entry - 1]);
  }
  size_t size() const { return entries_.size(); }
  std::string_view Entry(size_t index) const {
    return View(entries_[index]);
  }  // index below size()
  int32_t largest_id() const { return largest_id_; }

 private:
  struct Item {
    uint32_t offset, length;
    int32_t id;
  };
  struct Slot {
    uint32_t tag;    // high half of the hash
    uint32_t entry;  // index + 1; 0 is free
  };
  std::string_view View(const Item& e) const {
    return std::string_view(bytes_).substr(e.offset, e.length);
  }
  // The slot of `token`, or the free one where it would go.
  size_t SlotOf(std::string_view token, uint64_t hash) const;
  void Grow(size_t capacity);

  std::string bytes_;  // all tokens, one after the other
  std::vector<Item> entries_;
  std::vector<Slot> slots_;      // a power of two, at most half full
  std::vector<uint32_t> by_id_;  // entry index + 1
  int32_t largest_id_ = -1;
};

class BpeMerges {
 public:
  struct Merge {
    uint32_t rank;  // lower goes first; kNone when the pair does not merge
    int32_t id;     // what the pair becomes
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void Reserve(size_t merges);
  void Set(int32_t left, int32_t right, Merge merge);  // a later merge of the same pair wins

  void Prefetch(int32_t left, int32_t right) const {
    __builtin_prefetch(&slots_[Start(Key(left, right))]);
  }
  Merge Find(int32_t left, int32_t right) const {
    if (slots_.empty()) return {kNone, 0};
    const uint64_t key = Key(left, right);
    for (size_t i = Start(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kFree) return {kNone, 0};
    }
  }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t kFree = UINT64_MAX;
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Start(uint64_t key) const {
    const uint64_t hash =
        (key ^ key >> 32) * 0x9E3779B97F4A7C15u + (key >> 32) * 0xD6E8FEB86659FD93u;
    return (hash >> 32) & (slots_.size() - 1);
  }

  std::vector<Slot> slots_;  // a power of two, at most three quarters full
};

}  // namespace loopspec
