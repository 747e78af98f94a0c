// The branch tree and the ledger of cells and pages under long random histories, beside a plain
// model of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "decode/branch_tree.h"
#include "kv/ledger.h"

namespace loopspec {
namespace {

TEST(BranchTree, RandomHistoriesAgainstAPlainModel) {
  struct Plain {
    int32_t parent, token, position, cell;
  };
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const int cells = 1 + static_cast<int>(random() % 20),
              capacity = 1 + static_cast<int>(random() % 20);
    KvLedger ledger(1, cells);
    {
      BranchTree tree(ledger, capacity);
      std::map<int32_t, Plain> plain;
      std::vector<int32_t> order;  // older ones first
      const auto descends = [&](int32_t id, int32_t from) {
        while (id != kNoBranch && id != from) id = plain.at(id).parent;
        return id != kNoBranch;
      };
      for (int step = 0; step < 400; ++step) {
        if (plain.empty() || random() % 4 != 0) {
          const int32_t parent = plain.empty() ? kNoBranch : order[random() % order.size()];
          const auto token = static_cast<int32_t>(random() % 100);
          const int32_t position = parent == kNoBranch ? step : plain.at(parent).position + 1;
          const int32_t id = tree.Add(parent, token, position);
          if (static_cast<int>(plain.size()) == std::min(cells, capacity)) {
            ASSERT_EQ(id, kNoBranch);
            continue;
          }
          ASSERT_NE(id, kNoBranch);
          ASSERT_FALSE(plain.contains(id));
          plain[id] = {parent, token, position, tree[id].cell};
          order.push_back(id);
        } else if (random() % 8 == 0) {
          tree.Clear();
          plain.clear();
          order.clear();
        } else {
          const int32_t root = random() % 5 == 0 ? kNoBranch : order[random() % order.size()];
          std::set<int32_t> expected;
          for (const int32_t id : order) {
            if (!descends(id, root)) expected.insert(plain.at(id).cell);
          }
          std::set<int32_t> pruned;
          tree.Reroot(root, [&](const Branch& branch) { pruned.insert(branch.cell); });
          ASSERT_EQ(pruned, expected);
          std::erase_if(order, [&](int32_t id) { return expected.contains(plain.at(id).cell); });
          std::erase_if(plain,
                        [&](const auto& entry) { return expected.contains(entry.second.cell); });
          if (root != kNoBranch) plain.at(root).parent = kNoBranch;
          ASSERT_EQ(tree.root(), root);
        }
        ASSERT_EQ(std::vector<int32_t>(tree.active().begin(), tree.active().end()), order);
        ASSERT_EQ(ledger.cells().available(), cells - static_cast<int>(plain.size()));
        std::set<int32_t> distinct;
        for (const auto& [id, want] : plain) {
          const Branch& branch = tree[id];
          ASSERT_EQ(branch.token, want.token);
          ASSERT_EQ(branch.position, want.position);
          ASSERT_EQ(branch.parent, want.parent);
          ASSERT_EQ(branch.cell, want.cell);
          distinct.insert(branch.cell);
        }
        ASSERT_EQ(distinct.size(), plain.size());
      }
    }
    EXPECT_EQ(ledger.cells().available(), cells);
  }
}

TEST(KvLedger, RandomHistoriesOfPages) {
  std::mt19937 random(1);
  KvLedger ledger(40, 1);
  std::vector<std::unique_ptr<SequencePages>> sequences;
  size_t held = 0;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0) {
      const auto positions = static_cast<int64_t>(random() % 700);
      const auto needed = static_cast<size_t>((positions + kPageSize - 1) / kPageSize);
      if (needed > 40 - held) {
        EXPECT_THROW(SequencePages(ledger, positions), Error);
      } else {
        sequences.push_back(std::make_unique<SequencePages>(ledger, positions));
        ASSERT_EQ(sequences.back()->pages().size(), needed);
        held += needed;
      }
    } else if (!sequences.empty()) {
      const size_t which = random() % sequences.size();
      held -= sequences[which]->pages().size();
      sequences.erase(sequences.begin() + static_cast<int64_t>(which));
    }
    ASSERT_EQ(ledger.pages().available(), static_cast<int>(40 - held));
    std::set<int32_t> distinct;
    for (const auto& sequence : sequences)
      distinct.insert(sequence->pages().begin(), sequence->pages().end());
    ASSERT_EQ(distinct.size(), held);
  }
  sequences.clear();
  EXPECT_EQ(ledger.pages().available(), 40);
}

TEST(FreeListDeathTest, DoubleReleaseIsCaught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  FreeList list(2);
  const int id = list.Take();
  list.Give(id);
  EXPECT_DEATH(list.Give(id), "does not hold");
  EXPECT_DEATH(list.Give(7), "does not hold");
}

}  // namespace
}  // namespace loopspec
