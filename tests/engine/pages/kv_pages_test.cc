// KV pages: who gets them, what is evicted for them, and that keys and values stay what they were.
#include "engine/pages/kv_pages.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/fake_backend.h"

namespace loopspec {
namespace {

std::vector<int32_t> TextOf(int pages, int32_t own) {
  std::vector<int32_t> tokens(static_cast<size_t>(pages) * kPageSize);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i) % 3 + own;
  return tokens;
}

class KvPagesTest : public testing::Test {
 protected:
  static constexpr int kPages = 8;

  // A prompt that was prefilled and has ended: its pages are cached, and held by nobody else.
  void Cache(const std::vector<int32_t>& text) {
    SequencePages pages(ledger_);
    ASSERT_TRUE(kv_.Grow(pages, std::ssize(text)));
    backend_->Prefill({{pages.pages().data()}, 0, text});
    kv_.CachePrefix(text, pages);
  }
  int64_t Hit(const std::vector<int32_t>& text) {
    SequencePages pages(ledger_);
    return kv_.TakePrefixHit(text, pages).positions;
  }
  // What the backend keeps for a position: tokens, in place of keys and values.
  std::vector<int32_t> Contents(const SequencePages& pages) {
    std::vector<int32_t> tokens(pages.pages().size() * kPageSize);
    backend_->SavePages(pages.pages(), reinterpret_cast<std::byte*>(tokens.data()));
    return tokens;
  }

  FakeModel model_{1, FakeShape::kNear, 4};
  std::unique_ptr<FakeBackend> backend_ =
      std::make_unique<FakeBackend>(model_, std::vector<int>{1}, 4, kPages* kPageSize);
  KvLedger ledger_{kPages, 4};
  KvPages kv_{*backend_, ledger_, -1};
};

TEST_F(KvPagesTest, GrowLeavesWhatOthersNeed) {
  SequencePages a(ledger_), b(ledger_);
  EXPECT_TRUE(kv_.Grow(a, 5 * kPageSize, 3));
  EXPECT_FALSE(kv_.Grow(b, 2 * kPageSize, 2));
  EXPECT_TRUE(b.pages().empty());
  EXPECT_EQ(kv_.free(), 3);
  EXPECT_TRUE(kv_.Grow(b, 2 * kPageSize, 1));
  // What is there already needs nothing, however little is left for others.
  EXPECT_TRUE(kv_.Grow(a, 5 * kPageSize, 100));
  EXPECT_EQ(a.Missing(5 * kPageSize), 0);
  EXPECT_EQ(a.Missing(5 * kPageSize + 1), 1);
  EXPECT_EQ(a.Missing(0), 0);
}

// An allocator that empties its cache for one page would pass every test of the text.
TEST_F(KvPagesTest, EvictsNoMoreThanIsNeeded) {
  Cache(TextOf(4, 1));
  Cache(TextOf(3, 2));
  EXPECT_EQ(kv_.cached(), 7);
  SequencePages pages(ledger_);
  EXPECT_TRUE(kv_.Grow(pages, kPageSize));
  EXPECT_EQ(kv_.cached(), 7);  // there was a free one
  EXPECT_TRUE(kv_.Grow(pages, 2 * kPageSize));
  EXPECT_EQ(kv_.cached(), 6);
  // The older text lost its end; its beginning and the newer one are still there.
  EXPECT_EQ(Hit(TextOf(3, 2)), 3 * kPageSize);
  EXPECT_EQ(Hit(TextOf(4, 1)), 3 * kPageSize);
  EXPECT_EQ(kv_.EvictFor(0), 0);
  EXPECT_EQ(kv_.cached(), 6);
}

TEST_F(KvPagesTest, NeverEvictsWhatASequenceReads) {
  Cache(TextOf(4, 1));
  SequencePages reader(ledger_);
  EXPECT_EQ(kv_.TakePrefixHit(TextOf(4, 1), reader).positions, 4 * kPageSize);
  EXPECT_EQ(kv_.EvictFor(kPages), 4);
  const std::vector<int32_t> before = Contents(reader);
  SequencePages other(ledger_);
  EXPECT_FALSE(kv_.Grow(other, 5 * kPageSize));
  EXPECT_TRUE(kv_.Grow(other, 4 * kPageSize));
  backend_->Prefill({{other.pages().data()}, 0, TextOf(4, 7)});
  EXPECT_EQ(Contents(reader), before);
  EXPECT_EQ(before, TextOf(4, 1));
}

// Two prompts that begin alike were admitted together; the second takes over what the first has
// prefilled meanwhile, and gives its own unwritten pages back.
TEST_F(KvPagesTest, APrefixHitGrowsWhileAPromptWaits) {
  const std::vector<int32_t> text = TextOf(3, 1);
  SequencePages first(ledger_), second(ledger_);
  ASSERT_TRUE(kv_.Grow(first, 3 * kPageSize + 1));
  ASSERT_TRUE(kv_.Grow(second, 3 * kPageSize + 1));
  EXPECT_EQ(kv_.free(), 0);
  EXPECT_EQ(kv_.ExtendPrefixHit(text, 0, second), 0);
  backend_->Prefill({{first.pages().data()}, 0, text});
  kv_.CachePrefix(text, first);
  EXPECT_EQ(kv_.ExtendPrefixHit(text, 10, second), 10);  // in the middle of a page
  EXPECT_EQ(kv_.ExtendPrefixHit(text, 0, second), 3 * kPageSize);
  EXPECT_EQ(kv_.free(), 3);
  EXPECT_EQ(second.pages().size(), 4u);
  EXPECT_NE(second.pages()[3], first.pages()[3]);
  EXPECT_TRUE(std::equal(first.pages().begin(), first.pages().end() - 1, second.pages().begin()));
}

// Choices of one submission: whole pages are shared, the one that will be written is each one's
// own.
TEST_F(KvPagesTest, ForksShareWholePages) {
  const std::vector<int32_t> text = TextOf(2, 1);
  const int64_t length = kPageSize + 10;
  SequencePages from(ledger_), to(ledger_);
  ASSERT_TRUE(kv_.Grow(from, length + 1));
  backend_->Prefill({{from.pages().data()}, 0, std::span(text).first(length)});
  EXPECT_EQ(kv_.ForkWhole(from, length, to), kPageSize);
  ASSERT_TRUE(kv_.Grow(to, length + 1));
  kv_.ForkRest(from, length, to);
  EXPECT_EQ(to.pages()[0], from.pages()[0]);
  EXPECT_NE(to.pages()[1], from.pages()[1]);
  EXPECT_EQ(Contents(to), Contents(from));
  EXPECT_EQ(kv_.free(), kPages - 3);
  const int32_t more[] = {9};
  backend_->Prefill({{to.pages().data()}, static_cast<int32_t>(length), more});
  EXPECT_NE(Contents(to), Contents(from));
}

// A window of two pages, which are used in turn: the same for a hit, a fork and a swap.
TEST_F(KvPagesTest, WindowsAreKeptCopiedAndSwapped) {
  KvLedger ledger(16, 4, 2);
  FakeBackend backend(model_, {1}, 4, 16 * kPageSize);
  KvPages kv(backend, ledger, -1);
  const std::vector<int32_t> text = TextOf(3, 1);
  const auto write = [&](int32_t page, int32_t what) {
    const std::vector<int32_t> tokens(kPageSize, what);
    backend.LoadPages({&page, 1}, reinterpret_cast<const std::byte*>(tokens.data()));
  };
  const auto read = [&](int32_t page) {
    std::vector<int32_t> tokens(kPageSize);
    backend.SavePages({&page, 1}, reinterpret_cast<std::byte*>(tokens.data()));
    return tokens[7];
  };
  {
    SequencePages first(ledger);
    ASSERT_TRUE(kv.Grow(first, 3 * kPageSize));
    write(first.window()[0], 20);  // of the third page, 2 % 2
    write(first.window()[1], 10);  // of the second
    kv.CachePrefix(std::span(text).first(2 * kPageSize + 5), first, {}, true);
    EXPECT_EQ(kv.cached(), 3);  // two pages, and the second's window
    write(first.window()[1], 30);
    SequencePages fork(ledger);
    EXPECT_EQ(kv.ForkWhole(first, 2 * kPageSize, fork), 2 * kPageSize);
    ASSERT_TRUE(kv.Grow(fork, 3 * kPageSize));
    kv.ForkRest(first, 2 * kPageSize, fork);
    EXPECT_EQ(read(fork.window()[0]), 20);
    EXPECT_EQ(read(fork.window()[1]), 30);
    write(fork.window()[0], 21);
    EXPECT_EQ(read(first.window()[0]), 20);
    const std::vector<std::byte> swapped = kv.SwapOut(fork, 2 * kPageSize);
    EXPECT_TRUE(fork.window().empty());
    ASSERT_TRUE(kv.Grow(fork, 3 * kPageSize));
    write(fork.window()[0], 0);
    kv.SwapIn(swapped, fork);
    EXPECT_EQ(read(fork.window()[0]), 21);
    EXPECT_EQ(read(fork.window()[1]), 30);
  }
  SequencePages second(ledger);
  const PrefixHit hit = kv.TakePrefixHit(text, second);
  EXPECT_EQ(hit.positions, 2 * kPageSize);
  EXPECT_EQ(kv.TakePrefixHit(std::span(text).first(kPageSize), second).known, kPageSize);
  ASSERT_TRUE(kv.Grow(second, 3 * kPageSize));
  write(second.window()[0], 0);
  write(second.window()[1], 0);
  kv.PutWindow(hit, second);
  EXPECT_EQ(read(second.window()[1]), 10);
  EXPECT_EQ(read(second.window()[0]), 0);
  // Going on behind position 70 needs the first two pages' window, until the fourth is written.
  EXPECT_TRUE(kv.WindowReaches(70, 128));
  EXPECT_FALSE(kv.WindowReaches(70, 129));
}

// Swapped out and in: other pages, the same keys and values.
TEST_F(KvPagesTest, SwapsOutAndIn) {
  const std::vector<int32_t> text = TextOf(3, 1);
  SequencePages pages(ledger_), other(ledger_);
  ASSERT_TRUE(kv_.Grow(pages, 3 * kPageSize));
  backend_->Prefill({{pages.pages().data()}, 0, text});
  const std::vector<int32_t> before = Contents(pages);
  const int32_t first = pages.pages()[0];
  const std::vector<std::byte> swapped = kv_.SwapOut(pages, 2 * kPageSize + 1);
  EXPECT_EQ(swapped.size(), static_cast<size_t>(3 * backend_->page_bytes()));
  EXPECT_TRUE(pages.pages().empty());
  EXPECT_EQ(kv_.free(), kPages);
  ASSERT_TRUE(kv_.Grow(other, 4 * kPageSize));
  backend_->Prefill({{other.pages().data()}, 0, TextOf(4, 7)});
  ASSERT_TRUE(kv_.Grow(pages, 3 * kPageSize));
  EXPECT_NE(pages.pages()[0], first);
  kv_.SwapIn(swapped, pages);
  EXPECT_EQ(Contents(pages), before);
}

}  // namespace
}  // namespace loopspec
