// The cache of prefixes: what is found is what was put in, and what is in use is never evicted.
#include "engine/pages/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace loopspec {
namespace {

// A text of `pages` pages, the first `shared` of which are those of every text.
std::vector<int32_t> Text(int pages, int shared, int32_t own) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < pages * kPageSize; ++i)
    tokens.push_back(i < shared * kPageSize ? i : 1000 * own + i);
  return tokens;
}

// Where keys are kept by a plan, a text can be gone on from at a window alone.
TEST(PrefixCache, HitsEndAtAWindow) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 6);
  const std::vector<int32_t> text = Text(4, 4, 1);
  const auto beginning = [&](int pages) { return std::span(text).first(64u * pages); };
  const auto find = [&](int64_t& known) {
    SequencePages hit(ledger);
    PrefixHit windows{0, 0, SequencePages(ledger)};
    const int64_t found = cache.Find(text, hit, {}, nullptr, &windows);
    EXPECT_EQ(hit.pages().size(), static_cast<size_t>(found / kPageSize));
    EXPECT_EQ(windows.window.pages().empty(), found == 0);
    known = windows.known;
    return found;
  };
  {
    SequencePages pages(ledger, 4 * kPageSize), two(ledger, 2 * kPageSize), one(ledger, 64);
    int64_t known = 0;
    EXPECT_FALSE(cache.LacksWindow(text, {}));
    EXPECT_FALSE(cache.KeepWindow(text, {}, one.pages()));
    cache.Insert(text, pages.pages());
    EXPECT_EQ(find(known), 0);
    EXPECT_EQ(known, 256);
    EXPECT_TRUE(cache.LacksWindow(beginning(2), {}));
    EXPECT_TRUE(cache.KeepWindow(beginning(2), {}, two.pages()));
    EXPECT_FALSE(cache.LacksWindow(beginning(2), {}));
    EXPECT_EQ(cache.size(), 6);
    EXPECT_EQ(find(known), 128);
    EXPECT_EQ(known, 256);
    // No room: everything else is in use.
    EXPECT_FALSE(cache.KeepWindow(text, {}, one.pages()));
  }
  EXPECT_EQ(ledger.pages().available(), 14);
  EXPECT_EQ(ledger.pages().kept_alone(), 6);
  // The least recently used goes first: the last page, then the one before it, then the window.
  int64_t known = 0;
  for (const int left : {5, 4}) {
    EXPECT_TRUE(cache.EvictOne());
    EXPECT_EQ(cache.size(), left);
    EXPECT_EQ(find(known), 128);
  }
  EXPECT_TRUE(cache.EvictOne());
  EXPECT_EQ(cache.size(), 2);
  EXPECT_EQ(find(known), 0);
  EXPECT_EQ(known, 128);
  EXPECT_TRUE(cache.EvictOne());
  EXPECT_TRUE(cache.EvictOne());
  EXPECT_FALSE(cache.EvictOne());
  EXPECT_EQ(ledger.pages().available(), 20);
}

TEST(PrefixCache, FindsTheLongestBeginningInWholePages) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 20);
  std::vector<int32_t> text = Text(3, 1, 1);
  text.push_back(5);  // a page that is not whole is not kept
  {
    SequencePages pages(ledger, 4 * kPageSize);
    cache.Insert(text, pages.pages());
    EXPECT_EQ(cache.size(), 3);
    for (const auto& [prompt, found] : std::vector<std::pair<std::vector<int32_t>, int64_t>>{
             {text, 192}, {Text(5, 1, 1), 192}, {Text(5, 1, 2), 64}, {Text(1, 0, 3), 0}, {{}, 0}}) {
      SequencePages hit(ledger);
      EXPECT_EQ(cache.Find(prompt, hit), found);
      EXPECT_TRUE(std::equal(hit.pages().begin(), hit.pages().end(), pages.pages().begin()));
      EXPECT_EQ(hit.pages().size(), static_cast<size_t>(found / kPageSize));
    }
    // 127 tokens are one page and a bit.
    SequencePages hit(ledger);
    EXPECT_EQ(cache.Find(std::span(text).first(127), hit), 64);
  }
  EXPECT_EQ(ledger.pages().available(), 17);
}

TEST(PrefixCache, GivesUpTheLeastRecentlyUsedThatNobodyReads) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 20);
  for (const int own : {1, 2, 3}) {
    const SequencePages pages(ledger, 2 * kPageSize);
    cache.Insert(Text(2, 0, own), pages.pages());
  }
  SequencePages reader(ledger);
  EXPECT_EQ(cache.Find(Text(2, 0, 1), reader), 128);
  {
    SequencePages touched(ledger);
    EXPECT_EQ(cache.Find(Text(2, 0, 2), touched), 128);
  }
  // 3 is the oldest, its end before its beginning; then 2. 1 is being read.
  const auto known = [&](int own) {
    SequencePages hit(ledger);
    std::vector<int32_t> text = Text(2, 0, own);
    return cache.Find(text, hit);
  };
  EXPECT_TRUE(cache.EvictOne());
  EXPECT_EQ(known(3), 64);
  EXPECT_EQ(known(2), 128);
  while (cache.EvictOne()) {
  }
  EXPECT_EQ(cache.size(), 2);
  EXPECT_EQ(known(1), 128);
  EXPECT_EQ(known(2), 0);
  reader.Clear();
  while (cache.EvictOne()) {
  }
  EXPECT_EQ(ledger.pages().available(), 20);
}

TEST(PrefixCache, KeepsToItsLimit) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 3);
  {
    const SequencePages pages(ledger, 5 * kPageSize);
    cache.Insert(Text(5, 0, 1), pages.pages());
    EXPECT_EQ(cache.size(), 3);  // all of them in use: none can go
  }
  const SequencePages pages(ledger, 2 * kPageSize);
  cache.Insert(Text(2, 0, 2), pages.pages());
  EXPECT_EQ(cache.size(), 3);
  SequencePages hit(ledger);
  EXPECT_EQ(cache.Find(Text(2, 0, 2), hit), 128);
}

uint64_t AlwaysTheSame(uint64_t, const int32_t*) {
  return 42;
}

// Where all hashes collide, tokens decide: one request must not read another's keys and values.
TEST(PrefixCache, AHitIsTheSameTextWhateverTheHash) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 20, AlwaysTheSame);
  const std::vector<int32_t> text = Text(2, 0, 1);
  const SequencePages pages(ledger, 2 * kPageSize);
  cache.Insert(text, pages.pages());
  const auto hits = [&](const std::vector<int32_t>& prompt) {
    SequencePages hit(ledger);
    return cache.Find(prompt, hit);
  };
  EXPECT_EQ(hits(text), 128);
  for (size_t at = 0; at < text.size(); ++at) {
    std::vector<int32_t> other = text;
    ++other[at];
    EXPECT_EQ(hits(other), at < kPageSize ? 0 : 64) << "differs in token " << at;
  }
  // The second page alone, which stands after another text.
  EXPECT_EQ(hits({text.begin() + kPageSize, text.end()}), 0);
  // And what differs in one token is kept beside it, not in its place.
  std::vector<int32_t> other = text;
  ++other[kPageSize - 1];
  const SequencePages others(ledger, 2 * kPageSize);
  cache.Insert(other, others.pages());
  EXPECT_EQ(cache.size(), 4);
  for (const auto& [prompt, expected] :
       {std::pair(text, pages.pages()), std::pair(other, others.pages())}) {
    SequencePages hit(ledger);
    EXPECT_EQ(cache.Find(prompt, hit), 128);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), hit.pages().begin()));
  }
}

// ---- What a page holds ----

// A text that is decided at another depth has other planes: both are kept, side by side.
TEST(PrefixCache, TextsOfDifferentRecurrencesShareNoPages) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 20);
  const std::vector<int32_t> text = Text(2, 0, 1);
  const SequencePages four(ledger, 2 * kPageSize), two(ledger, 2 * kPageSize);
  cache.Insert(text, four.pages(), {4, {4}});
  SequencePages none(ledger);
  EXPECT_EQ(cache.Find(text, none, {2, {}}), 0);
  cache.Insert(text, two.pages(), {2, {}});
  EXPECT_EQ(cache.size(), 4);
  for (const auto& [needed, pages] :
       {std::pair(PagePlanes{4, {4}}, four.pages()), std::pair(PagePlanes{2, {}}, two.pages())}) {
    SequencePages hit(ledger);
    ASSERT_EQ(cache.Find(text, hit, needed), 128);
    EXPECT_TRUE(std::equal(pages.begin(), pages.end(), hit.pages().begin()));
  }
}

TEST(PrefixCache, APageIsFoundByThoseWhoseReadoutsItHolds) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 20);
  const std::vector<int32_t> text = Text(3, 0, 1);
  const SequencePages pages(ledger, 3 * kPageSize);
  // Prefilled, then an answer with drafts at depth 2, the end of it without.
  cache.Insert(std::span(text).first(64), pages.pages(), {8, {2, 4, 8}});
  cache.Insert(std::span(text).first(128), pages.pages(), {8, {2, 8}});
  cache.Insert(text, pages.pages(), {8, {8}});
  EXPECT_EQ(cache.size(), 3);
  const auto hit = [&](std::vector<int> readouts, PagePlanes* held = nullptr) {
    SequencePages sequence(ledger);
    return cache.Find(text, sequence, {8, std::move(readouts)}, held);
  };
  EXPECT_EQ(hit({8}), 192);
  EXPECT_EQ(hit({2, 8}), 128);
  EXPECT_EQ(hit({4, 8}), 64);
  EXPECT_EQ(hit({2, 4, 8}), 64);
  EXPECT_EQ(hit({6, 8}), 0);
  // What is prefilled after a hit holds no more than the pages that it was computed from.
  PagePlanes held{8, {2, 4, 6, 8}};
  EXPECT_EQ(hit({6, 8}, &held), 0);
  EXPECT_EQ(held.readouts, (std::vector<int>{2, 4, 6, 8}));
  EXPECT_EQ(hit({2, 8}, &held), 128);
  EXPECT_EQ(held.readouts, (std::vector<int>{2, 8}));
}

// A page that lacks planes gives way to one that has them; the pages after it stay.
TEST(PrefixCache, APageThatHoldsWhatTheKnownOneLacksTakesItsPlace) {
  KvLedger ledger(20, 1);
  PrefixCache cache(ledger.pages(), 20);
  const std::vector<int32_t> text = Text(2, 0, 1);
  {
    const SequencePages plain(ledger, 2 * kPageSize), prefilled(ledger, 2 * kPageSize),
        other(ledger, 2 * kPageSize);
    cache.Insert(text, plain.pages(), {8, {8}});
    cache.Insert(std::span(text).first(64), prefilled.pages(), {8, {2, 8}});
    EXPECT_EQ(cache.size(), 2);
    SequencePages all(ledger), drafts(ledger);
    ASSERT_EQ(cache.Find(text, all, {8, {8}}), 128);
    EXPECT_EQ(all.pages()[0], prefilled.pages()[0]);
    EXPECT_EQ(all.pages()[1], plain.pages()[1]);
    EXPECT_EQ(cache.Find(text, drafts, {8, {2, 8}}), 64);
    // One that holds less, or the same, changes nothing.
    cache.Insert(text, other.pages(), {8, {8}});
    SequencePages again(ledger);
    ASSERT_EQ(cache.Find(text, again, {8, {8}}), 128);
    EXPECT_TRUE(std::equal(all.pages().begin(), all.pages().end(), again.pages().begin()));
  }
  EXPECT_EQ(ledger.pages().available(), 18);
  while (cache.EvictOne()) {
  }
  EXPECT_EQ(ledger.pages().available(), 20);
}

// Random texts over few tokens, so that they share beginnings, against a plain map of texts.
void RandomHistory(PageHash hash) {
  std::mt19937 random(3);
  KvLedger ledger(60, 1);
  PrefixCache cache(ledger.pages(), 40, hash);
  // What each page holds: written once, when its sequence took it.
  std::map<int32_t, std::vector<int32_t>> contents;
  struct Live {
    std::unique_ptr<SequencePages> pages;
    std::vector<int32_t> text;
  };
  std::vector<Live> live;
  for (int step = 0; step < 4000; ++step) {
    if (random() % 2 == 0) {
      std::vector<int32_t> text;
      const auto blocks = 1 + random() % 6;
      for (size_t b = 0; b < blocks; ++b) text.insert(text.end(), kPageSize, random() % 2);
      auto pages = std::make_unique<SequencePages>(ledger);
      const int64_t found = cache.Find(text, *pages);
      for (size_t i = 0; i < static_cast<size_t>(found / kPageSize); ++i) {
        const std::vector<int32_t> prefix(text.begin(),
                                          text.begin() + static_cast<int64_t>(i + 1) * kPageSize);
        ASSERT_EQ(contents[pages->pages()[i]], prefix);
      }
      while (!pages->Grow(static_cast<int64_t>(text.size()))) {
        if (!cache.EvictOne()) break;
      }
      if (pages->pages().size() < blocks) continue;
      for (size_t i = static_cast<size_t>(found / kPageSize); i < blocks; ++i)
        contents[pages->pages()[i]].assign(text.begin(),
                                           text.begin() + static_cast<int64_t>(i + 1) * kPageSize);
      cache.Insert(text, pages->pages());
      ASSERT_LE(cache.size(), 40);
      live.push_back({std::move(pages), std::move(text)});
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      live.pop_back();
    }
    for (const Live& l : live) {
      for (size_t i = 0; i < l.pages->pages().size(); ++i) {
        const std::vector<int32_t> prefix(l.text.begin(),
                                          l.text.begin() + static_cast<int64_t>(i + 1) * kPageSize);
        ASSERT_EQ(contents[l.pages->pages()[i]], prefix) << "a page in use was given away";
      }
    }
  }
  live.clear();
  while (cache.EvictOne()) {
  }
  EXPECT_EQ(ledger.pages().available(), 60);
}

TEST(PrefixCache, RandomHistories) {
  RandomHistory(HashPage);
}

TEST(PrefixCache, RandomHistoriesWhereHashesCollide) {
  RandomHistory(AlwaysTheSame);
  RandomHistory([](uint64_t, const int32_t* tokens) { return static_cast<uint64_t>(tokens[0]); });
}

}  // namespace
}  // namespace loopspec
