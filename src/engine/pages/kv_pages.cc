#include "engine/pages/kv_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loopspec {

KvPages::KvPages(Backend& backend, KvLedger& ledger, int64_t cache_bytes)
    : backend_(backend),
      ledger_(ledger),
      pool_(ledger.pages()),
      cache_(ledger.pages(),
             cache_bytes < 0 ? backend.pages() : cache_bytes / backend.page_bytes()) {
  if (backend.options().key_plan) span_ = backend.options().key_plan->span;
}

int KvPages::EvictFor(int pages) {
  while (pool_.available() < pages && cache_.EvictOne()) {
  }
  return pool_.available();
}

bool KvPages::Grow(SequencePages& pages, int64_t positions, int spare) {
  const int missing = pages.Missing(positions);
  if (missing == 0) return true;
  return EvictFor(missing + spare) >= missing + spare && pages.Grow(positions);
}

PrefixHit KvPages::TakePrefixHit(std::span<const int32_t> tokens, SequencePages& pages,
                                 const PagePlanes& needed, PagePlanes* held) {
  PrefixHit hit{0, 0, SequencePages(ledger_)};
  const bool windows = ledger_.window() > 0;
  hit.positions = cache_.Find(tokens, pages, needed, held, windows ? &hit : nullptr);
  if (!windows) hit.known = hit.positions;
  return hit;
}

// A query in span g reads its own span and the one before from the window, as far as they are
// there.
std::vector<int> KvPages::WindowAt(int64_t positions) const {
  std::vector<int> at;
  const int64_t pages_of_span = span_ / kPageSize, ring = 2 * pages_of_span;
  const int64_t each = ledger_.window() / ring;
  const int64_t first = std::max<int64_t>(0, positions / span_ - 1) * pages_of_span;
  for (int64_t page = first; page < PagesFor(positions); ++page) {
    for (int64_t i = 0; i < each; ++i) at.push_back(static_cast<int>(page % ring * each + i));
  }
  return at;
}

bool KvPages::WindowReaches(int64_t positions, int64_t written) const {
  return ledger_.window() == 0 || written <= (positions / span_ + 1) * span_;
}

void KvPages::PutWindow(const PrefixHit& hit, const SequencePages& pages) {
  const std::span<const int32_t> from = hit.window.pages();
  if (from.empty()) return;
  const std::vector<int> to = WindowAt(hit.positions);
  LOOPSPEC_CHECK(to.size() == from.size());
  for (size_t i = 0; i < to.size(); ++i)
    backend_.CopyPage(from[i], pages.window()[static_cast<size_t>(to[i])]);
}

// In pages of its own: those of the sequence are written again.
void KvPages::CacheWindow(std::span<const int32_t> tokens, const SequencePages& pages,
                          const PagePlanes& planes) {
  if (!cache_.LacksWindow(tokens, planes)) return;
  const std::vector<int> from = WindowAt(std::ssize(tokens) / kPageSize * kPageSize);
  if (EvictFor(static_cast<int>(from.size())) < static_cast<int>(from.size())) return;
  SequencePages kept(ledger_);
  for (const int i : from) {
    const int page = pool_.Take();
    backend_.CopyPage(pages.window()[static_cast<size_t>(i)], page);
    kept.Share(page);
    pool_.Release(page);
  }
  cache_.KeepWindow(tokens, planes, kept.pages());
}

int64_t KvPages::ExtendPrefixHit(std::span<const int32_t> tokens, int64_t known,
                                 SequencePages& pages, const PagePlanes& needed, PagePlanes* held) {
  if (known % kPageSize != 0) return known;  // a page that is half written is written to its end
  SequencePages found(ledger_);
  PagePlanes found_planes = held != nullptr ? *held : PagePlanes{};
  const PrefixHit now = TakePrefixHit(tokens, found, needed, &found_planes);
  if (now.positions <= known) return known;
  if (held != nullptr) *held = found_planes;
  pages.ReplaceFront(std::move(found));
  PutWindow(now, pages);
  return now.positions;
}

void KvPages::CachePrefix(std::span<const int32_t> tokens, const SequencePages& pages,
                          const PagePlanes& planes, bool end) {
  cache_.Insert(tokens, pages.pages(), planes);
  if (end && ledger_.window() > 0 && std::ssize(tokens) >= kPageSize)
    CacheWindow(tokens, pages, planes);
}

int64_t KvPages::ForkWhole(const SequencePages& from, int64_t positions, SequencePages& to) {
  LOOPSPEC_CHECK(to.pages().empty());
  const int64_t whole = positions / kPageSize;
  for (int64_t i = 0; i < whole; ++i) to.Share(from.pages()[static_cast<size_t>(i)]);
  return whole * kPageSize;
}

void KvPages::ForkRest(const SequencePages& from, int64_t positions, const SequencePages& to) {
  for (size_t i = 0; i < from.window().size(); ++i)
    backend_.CopyPage(from.window()[i], to.window()[i]);
  if (positions % kPageSize == 0) return;
  const auto last = static_cast<size_t>(positions / kPageSize);
  backend_.CopyPage(from.pages()[last], to.pages()[last]);
}

std::vector<std::byte> KvPages::SwapOut(SequencePages& pages, int64_t positions) {
  const auto used = pages.pages().first(static_cast<size_t>(PagesFor(positions)));
  const auto bytes = static_cast<size_t>(backend_.page_bytes());
  const std::span<const int32_t> window = pages.window();
  std::vector<std::byte> swapped((used.size() + window.size()) * bytes);
  if (!used.empty()) backend_.SavePages(used, swapped.data());
  if (!window.empty()) backend_.SavePages(window, swapped.data() + used.size() * bytes);
  pages.Clear();
  return swapped;
}

void KvPages::SwapIn(std::span<const std::byte> swapped, const SequencePages& pages) {
  const auto bytes = static_cast<size_t>(backend_.page_bytes());
  const std::span<const int32_t> window = pages.window();
  const size_t used = swapped.size() / bytes - window.size();
  LOOPSPEC_CHECK(used <= pages.pages().size());
  if (used > 0) backend_.LoadPages(pages.pages().first(used), swapped.data());
  if (!window.empty()) backend_.LoadPages(window, swapped.data() + used * bytes);
}

}  // namespace loopspec
