#include "decode/ngram_index.h"

#include <algorithm>
#include <bit>

namespace loopspec {
namespace {

constexpr int kLongest = GuessRates::kLongestMatch;

uint64_t Extend(uint64_t hash, int32_t token) {
  return (hash ^ (static_cast<uint64_t>(token) + 1)) * 0x9E3779B97F4A7C15u;
}

}  // namespace

NgramIndex::NgramIndex(int64_t capacity) {
  if (capacity <= 0) return;
  text_.reserve(static_cast<size_t>(capacity));
  const uint64_t slots = std::bit_ceil(static_cast<uint64_t>(capacity) * kLongest);
  shift_ = 64 - std::countr_zero(slots);
  ends_.assign(slots, -1);
}

void NgramIndex::Push(int32_t token) {
  if (ends_.empty()) return;
  // The text's last token gets its entries when a token follows it: an end without a continuation
  // would answer nothing, and hide the place before it.
  const auto end = static_cast<int32_t>(text_.size()) - 1;
  text_.push_back(token);
  uint64_t hash = 0;
  for (int n = 0; n < kLongest && n <= end; ++n) {
    hash = Extend(hash, text_[static_cast<size_t>(end - n)]);
    ends_[Slot(hash)] = end;
  }
}

bool NgramIndex::Matches(int32_t end, std::span<const int32_t> last) const {
  if (end + 1 < static_cast<int32_t>(last.size())) return false;
  for (size_t i = 0; i < last.size(); ++i) {
    if (text_[static_cast<size_t>(end) - i] != last[i]) return false;
  }
  return true;
}

Guess NgramIndex::Find(std::span<const int32_t> chain) const {
  if (ends_.empty()) return {};
  int32_t last[kLongest];  // the end of the prefix, latest token first
  size_t length = 0;
  for (const int32_t token : chain) {
    if (length < kLongest) last[length++] = token;
  }
  for (size_t i = text_.size(); i > 0 && length < kLongest; --i) last[length++] = text_[i - 1];
  Guess best;
  uint64_t hash = 0;
  for (size_t n = 0; n < length; ++n) {
    hash = Extend(hash, last[n]);
    const int32_t end = ends_[Slot(hash)];
    if (end < 0 || !Matches(end, {last, n + 1})) continue;
    best = {text_[static_cast<size_t>(end) + 1], static_cast<int32_t>(n) + 1};
  }
  return best;
}

}  // namespace loopspec
