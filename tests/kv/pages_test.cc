// Pages with several holders: none is lost, none is given away while somebody still reads it.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kv/ledger.h"

namespace loopspec {
namespace {

TEST(PagePool, APageIsFreeWhenItsLastHolderHasReleasedIt) {
  PagePool pool(2);
  const int page = pool.Take();
  pool.Retain(page);
  EXPECT_EQ(pool.references(page), 2);
  pool.Release(page);
  EXPECT_EQ(pool.available(), 1);
  pool.Release(page);
  EXPECT_EQ(pool.available(), 2);
  EXPECT_EQ(pool.references(page), 0);
  EXPECT_DEATH(pool.Release(page), "internal error");
  EXPECT_DEATH(pool.Retain(page), "internal error");
}

TEST(SequencePages, GrowTakesAllOrNothing) {
  KvLedger ledger(3, 1);
  SequencePages a(ledger), b(ledger);
  EXPECT_TRUE(a.Grow(0));
  EXPECT_TRUE(a.Grow(1));
  EXPECT_TRUE(a.Grow(64));
  EXPECT_EQ(a.pages().size(), 1u);
  EXPECT_TRUE(b.Grow(65));
  EXPECT_FALSE(a.Grow(65));
  EXPECT_EQ(a.pages().size(), 1u);
  b.Clear();
  EXPECT_TRUE(a.Grow(129));
  EXPECT_EQ(ledger.pages().available(), 0);
  SequencePages moved(std::move(a));
  EXPECT_EQ(moved.pages().size(), 3u);
  EXPECT_EQ(ledger.pages().available(), 0);
  EXPECT_THROW(SequencePages(ledger, 1), Error);
}

TEST(SequencePages, TheWindowComesWithTheFirstPageAndGoesWithTheLast) {
  KvLedger ledger(8, 1, 2);
  SequencePages a(ledger), b(ledger);
  EXPECT_EQ(a.Missing(0), 0);
  EXPECT_EQ(a.Missing(1), 3);
  EXPECT_EQ(a.Missing(4 * kPageSize), 6);
  EXPECT_TRUE(a.Grow(0));
  EXPECT_TRUE(a.window().empty());
  EXPECT_TRUE(a.Grow(65));
  EXPECT_EQ(a.pages().size(), 2u);
  EXPECT_EQ(a.window().size(), 2u);
  EXPECT_EQ(a.Missing(3 * kPageSize), 1);
  // Two pages are shared, so only the window and one more are needed; one too few is there.
  b.Share(a.pages()[0]);
  b.Share(a.pages()[1]);
  EXPECT_EQ(b.Missing(5 * kPageSize), 5);
  EXPECT_FALSE(b.Grow(5 * kPageSize));
  EXPECT_TRUE(b.window().empty());
  EXPECT_TRUE(b.Grow(4 * kPageSize));
  EXPECT_EQ(ledger.pages().available(), 0);
  SequencePages moved(std::move(b));
  EXPECT_EQ(moved.window().size(), 2u);
  moved.Clear();
  EXPECT_TRUE(moved.window().empty());
  a.Clear();
  EXPECT_EQ(ledger.pages().available(), 8);
  EXPECT_THROW(SequencePages(ledger, 7 * kPageSize), Error);
}

// Sequences that grow, share the beginnings of others, and end, in any order.
TEST(SequencePages, RandomHistoriesWithSharedPages) {
  std::mt19937 random(7);
  KvLedger ledger(50, 1);
  std::vector<SequencePages> sequences;
  const auto pick = [&] { return static_cast<size_t>(random() % sequences.size()); };
  for (int step = 0; step < 5000; ++step) {
    const auto what = random() % 3;
    if (what == 0 || sequences.empty()) {
      SequencePages fresh(ledger);
      if (!sequences.empty() && random() % 2 == 0) {
        const SequencePages& donor = sequences[pick()];
        const size_t shared = donor.pages().empty() ? 0 : random() % donor.pages().size();
        for (size_t i = 0; i < shared; ++i) fresh.Share(donor.pages()[i]);
      }
      sequences.push_back(std::move(fresh));
    } else if (what == 1) {
      SequencePages& grown = sequences[pick()];
      const int free = ledger.pages().available();
      const auto needed = static_cast<int>(grown.pages().size()) + static_cast<int>(random() % 4);
      const int more = needed - static_cast<int>(grown.pages().size());
      EXPECT_EQ(grown.Grow(int64_t{needed} * kPageSize), more <= free);
    } else {
      const size_t which = pick();
      std::swap(sequences[which], sequences.back());
      sequences.pop_back();
    }
    std::multiset<int32_t> held;
    for (const SequencePages& sequence : sequences)
      held.insert(sequence.pages().begin(), sequence.pages().end());
    const std::set<int32_t> distinct(held.begin(), held.end());
    ASSERT_EQ(ledger.pages().available(), 50 - static_cast<int>(distinct.size()));
    for (const int32_t page : distinct)
      ASSERT_EQ(ledger.pages().references(page), static_cast<int>(held.count(page)));
  }
  sequences.clear();
  EXPECT_EQ(ledger.pages().available(), 50);
}

}  // namespace
}  // namespace loopspec
