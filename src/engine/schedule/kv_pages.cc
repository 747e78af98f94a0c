#include "engine/schedule/kv_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loopspec {

KvPages::KvPages(Backend& backend, KvLedger& ledger, int64_t cache_bytes)
    : backend_(backend),
      ledger_(ledger),
      pool_(ledger.pages()),
      cache_(ledger.pages(),
             cache_bytes < 0 ? backend.pages() : cache_bytes / backend.page_bytes()) {}

int KvPages::Missing(const SequencePages& pages, int64_t positions) {
  return std::max(0, PagesFor(positions) - static_cast<int>(pages.pages().size()));
}

int KvPages::EvictFor(int pages) {
  while (pool_.available() < pages && cache_.EvictOne()) {
  }
  return pool_.available();
}

bool KvPages::Grow(SequencePages& pages, int64_t positions, int spare) {
  const int missing = Missing(pages, positions);
  if (missing == 0) return true;
  return EvictFor(missing + spare) >= missing + spare && pages.Grow(positions);
}

int64_t KvPages::TakePrefixHit(std::span<const int32_t> tokens, SequencePages& pages,
                               const PagePlanes& needed, PagePlanes* held) {
  return cache_.Find(tokens, pages, needed, held);
}

int64_t KvPages::ExtendPrefixHit(std::span<const int32_t> tokens, int64_t known,
                                 SequencePages& pages, const PagePlanes& needed, PagePlanes* held) {
  if (known % kPageSize != 0) return known;  // a page that is half written is written to its end
  SequencePages found(ledger_);
  PagePlanes found_planes = held != nullptr ? *held : PagePlanes{};
  const int64_t now = cache_.Find(tokens, found, needed, &found_planes);
  if (now <= known) return known;
  if (held != nullptr) *held = found_planes;
  pages.ReplaceFront(std::move(found));
  return now;
}

void KvPages::CachePrefix(std::span<const int32_t> tokens, const SequencePages& pages,
                          const PagePlanes& planes) {
  cache_.Insert(tokens, pages.pages(), planes);
}

int64_t KvPages::ForkWhole(const SequencePages& from, int64_t positions, SequencePages& to) {
  LOOPSPEC_CHECK(to.pages().empty());
  const int64_t whole = positions / kPageSize;
  for (int64_t i = 0; i < whole; ++i) to.Share(from.pages()[static_cast<size_t>(i)]);
  return whole * kPageSize;
}

void KvPages::ForkRest(const SequencePages& from, int64_t positions, const SequencePages& to) {
  if (positions % kPageSize == 0) return;
  const auto last = static_cast<size_t>(positions / kPageSize);
  backend_.CopyPage(from.pages()[last], to.pages()[last]);
}

std::vector<std::byte> KvPages::SwapOut(SequencePages& pages, int64_t positions) {
  const auto used = pages.pages().first(static_cast<size_t>(PagesFor(positions)));
  std::vector<std::byte> swapped(used.size() * static_cast<size_t>(backend_.page_bytes()));
  if (!used.empty()) backend_.SavePages(used, swapped.data());
  pages.Clear();
  return swapped;
}

void KvPages::SwapIn(std::span<const std::byte> swapped, const SequencePages& pages) {
  const size_t used = swapped.size() / static_cast<size_t>(backend_.page_bytes());
  LOOPSPEC_CHECK(used <= pages.pages().size());
  if (used > 0) backend_.LoadPages(pages.pages().first(used), swapped.data());
}

}  // namespace loopspec
