#include "text/bpe_vocab.h"

#include <algorithm>
#include <array>
#include <bit>

namespace loopspec {

void BpeVocab::Reserve(size_t tokens, size_t bytes) {
  bytes_.reserve(bytes);
  entries_.reserve(tokens);
  Grow(std::bit_ceil(std::max<size_t>(16, tokens * 2)));
}

void BpeVocab::Grow(size_t capacity) {
  slots_.assign(capacity, Slot{0, 0});
  for (size_t i = 0; i < entries_.size(); ++i) {
    const uint64_t hash = HashBytes(View(entries_[i]));
    slots_[SlotOf(View(entries_[i]), hash)] = {static_cast<uint32_t>(hash >> 32),
                                               static_cast<uint32_t>(i + 1)};
  }
}

size_t BpeVocab::SlotOf(std::string_view token, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[i];
    if (slot.entry == 0) return i;
    if (slot.tag == tag && View(entries_[slot.entry - 1]) == token) return i;
  }
}

void BpeVocab::Set(std::string_view token, int32_t id) {
  if (entries_.size() * 2 >= slots_.size()) Grow(std::max<size_t>(16, slots_.size() * 2));
  largest_id_ = std::max(largest_id_, id);
  const uint64_t hash = HashBytes(token);
  Slot& slot = slots_[SlotOf(token, hash)];
  if (slot.entry != 0) {
    entries_[slot.entry - 1].id = id;
    return;
  }
  entries_.push_back(
      {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(token.size()), id});
  bytes_.append(token);
  slot = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(entries_.size())};
}

void BpeVocab::Index() {
  by_id_.assign(static_cast<size_t>(largest_id_ + 1), 0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    by_id_[static_cast<size_t>(entries_[i].id)] = static_cast<uint32_t>(i + 1);
  }
}

int32_t BpeVocab::Find(std::string_view token) const {
  if (slots_.empty()) return -1;
  const Slot& slot = slots_[SlotOf(token, HashBytes(token))];
  return slot.entry == 0 ? -1 : entries_[slot.entry - 1].id;
}

void BpeVocab::FindMany(std::span<const std::string_view> tokens, std::span<int32_t> ids) const {
  constexpr size_t kBlock = 64;
  std::array<uint64_t, kBlock> hashes;
  if (slots_.empty()) return std::fill(ids.begin(), ids.end(), -1);
  for (size_t done = 0; done < tokens.size(); done += kBlock) {
    const size_t count = std::min(kBlock, tokens.size() - done);
    const auto slot = [&](size_t i) -> const Slot& {
      return slots_[hashes[i] & (slots_.size() - 1)];
    };
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = HashBytes(tokens[done + i]);
      __builtin_prefetch(&slot(i));
    }
    for (size_t i = 0; i < count; ++i) {
      if (slot(i).entry != 0) __builtin_prefetch(&entries_[slot(i).entry - 1]);
    }
    for (size_t i = 0; i < count; ++i) {
      if (slot(i).entry != 0) __builtin_prefetch(&bytes_[entries_[slot(i).entry - 1].offset]);
    }
    for (size_t i = 0; i < count; ++i) {
      const Slot& found = slots_[SlotOf(tokens[done + i], hashes[i])];
      ids[done + i] = found.entry == 0 ? -1 : entries_[found.entry - 1].id;
    }
  }
}

void BpeMerges::Reserve(size_t merges) {
  slots_.assign(std::bit_ceil(std::max<size_t>(16, merges + merges / 3 + 1)),
                Slot{kFree, {kNone, 0}});
}

void BpeMerges::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t i = Start(key);
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, merge};
}

}  // namespace loopspec
