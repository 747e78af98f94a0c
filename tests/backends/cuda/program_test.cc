// The decode kernel's program for models of many shapes, without a GPU: every tile of every matrix
// is read by exactly one CTA, and what the kernel assumes about its operations holds.
#include "backends/cuda/program/program.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "backends/cuda/program/step_encoder.h"
#include "program_shapes.h"

namespace loopspec::cuda {
namespace {

// How often each (tile, chunk of k) of a matrix is read.
std::vector<int> Readers(const Program& program, int small_batch, int ctas, int matrix,
                         int chunks) {
  const int tiles = program.weights[static_cast<size_t>(matrix)].tiles();
  std::vector<int> readers(static_cast<size_t>(tiles) * static_cast<size_t>(chunks), 0);
  for (int cta = 0; cta < ctas; ++cta) {
    const MatrixShare& share =
        program.shares[small_batch][static_cast<size_t>(cta * program.matrices + matrix)];
    for (int tile = share.tile_begin; tile < share.tile_end; ++tile) {
      for (int chunk = share.chunk_begin; chunk < share.chunk_end; ++chunk)
        ++readers.at(static_cast<size_t>(tile * chunks + chunk));
    }
  }
  return readers;
}

TEST(Program, AssignsEveryTileOnce) {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const ModelSpec spec = RandomSpec(random);
    const int ctas = std::array{16, 108, 132, 148}[static_cast<size_t>(i % 4)];
    const Program program = BuildProgram(ShapesOf(spec), ctas);
    for (int matrix = 0; matrix < program.matrices; ++matrix) {
      const int k = program.weights[static_cast<size_t>(matrix)].ld / kBlockK;
      const int chunks = (k + kWarps - 1) / kWarps;
      for (const int small_batch : {0, 1}) {
        for (const int readers : Readers(program, small_batch, ctas, matrix, chunks))
          ASSERT_EQ(readers, 1) << "model " << i << ", matrix " << matrix << ", small_batch "
                                << small_batch;
      }
    }
  }
}

// The kernel calls one function for shares of a single chunk of k and another for several, by the
// operation's flags alone.
TEST(Program, SaysWhichSharesHaveSeveralChunks) {
  std::mt19937 random(6);
  for (int i = 0; i < 60; ++i) {
    const int ctas = 132;
    const Program program = BuildProgram(ShapesOf(RandomSpec(random)), ctas);
    for (const Op& op : program.ops) {
      if (op.type != OpType::kMatrix) continue;
      for (const int small_batch : {0, 1}) {
        const bool several = op.flags.Has(ChunksFlag(small_batch != 0));
        for (int cta = 0; cta < ctas; ++cta) {
          const MatrixShare& share =
              program.shares[small_batch][static_cast<size_t>(cta * program.matrices + op.matrix)];
          if (share.tile_begin == share.tile_end) continue;
          ASSERT_EQ(share.chunk_end - share.chunk_begin > 1, several)
              << "model " << i << ", matrix " << op.matrix << ", small_batch " << small_batch;
        }
      }
    }
  }
}

// No barrier follows a row operation that every CTA does for itself: the matrix after it must not
// write what other CTAs may still be reading for it. That holds around the end of B as well, where
// the adapter comes after the last layer.
TEST(Program, ReplicatesNoRowOperationBeforeSumsAreOverwritten) {
  std::mt19937 random(7);
  int replicated = 0;
  for (int i = 0; i < 60; ++i) {
    const Program program = BuildProgram(ShapesOf(RandomSpec(random)), 132);
    for (int phase = 0; phase < kPhases; ++phase) {
      const int begin = program.ops_begin[phase], end = program.ops_end[phase];
      for (int at = begin; at < end; ++at) {
        const Op& op = program.ops[static_cast<size_t>(at)];
        if (!op.flags.Has(OpFlag::kReplicate)) continue;
        ++replicated;
        const Op& next = program.ops[static_cast<size_t>(at + 1 < end ? at + 1 : begin)];
        ASSERT_EQ(op.type, OpType::kRows);
        ASSERT_EQ(next.type, OpType::kMatrix);
        ASSERT_NE(program.kinds[static_cast<size_t>(next.matrix)], MatrixKind::kPartial);
      }
    }
  }
  EXPECT_GT(replicated, 100);
}

// u is made once for a token, at the end of P, and B begins with its injection. No other operation
// of B or C reads or makes it, so that C reads the state without it.
TEST(Program, InjectsAnUpdateThatPreludesEndWith) {
  std::mt19937 random(10);
  int injecting = 0;
  for (int i = 0; i < 200; ++i) {
    const ModelSpec spec = RandomSpec(random);
    const Program program = BuildProgram(ShapesOf(spec), 132);
    for (int at = 0; at < static_cast<int>(program.ops.size()); ++at) {
      const Op& op = program.ops[static_cast<size_t>(at)];
      const bool rows = op.type == OpType::kRows;
      ASSERT_EQ(rows && op.source == RowSource::kUpdate,
                spec.injects_update() && at + 1 == program.ops_end[kPhasePrelude]);
      ASSERT_EQ(rows && op.source == RowSource::kInject,
                spec.injects_update() && at == program.ops_begin[kPhaseCore]);
    }
    if (!spec.injects_update()) continue;
    ++injecting;
    // A barrier over the grid follows the operations around it: the next one reads from memory.
    for (const int at : {program.core_start, program.ops_begin[kPhaseCore],
                         program.ops_end[kPhaseCore] - 1, program.ops_end[kPhasePrelude] - 1}) {
      const OpFlags flags = program.ops[static_cast<size_t>(at)].flags;
      ASSERT_FALSE(flags.HasAny(OpFlags(OpFlag::kSend) | OpFlag::kReplicate)) << "model " << i;
    }
  }
  EXPECT_GT(injecting, 20);
}

// What one CTA sends tells the others that it has read what they are about to overwrite: where the
// exchange is used, every CTA has a share of every matrix that takes a row operation's results.
// Sums are not split over k.
TEST(Program, HasAllCtasAtWorkWhereTheExchangeIsUsed) {
  std::mt19937 random(8);
  int low_latency = 0;
  for (int i = 0; i < 2000; ++i) {
    const int ctas = std::array{16, 108, 132, 148}[static_cast<size_t>(i % 4)];
    const Program program = BuildProgram(ShapesOf(RandomSpec(random)), ctas);
    if (!program.low_latency) continue;
    ++low_latency;
    // Kernels with a producer warp assume that larger batches have shares of a single chunk.
    for (const Op& op : program.ops)
      ASSERT_TRUE(op.type != OpType::kMatrix || !op.flags.Has(OpFlag::kChunks)) << "model " << i;
    for (int matrix = 0; matrix < program.matrices; ++matrix) {
      const MatrixKind kind = program.kinds[static_cast<size_t>(matrix)];
      if (kind == MatrixKind::kHead) continue;
      for (int cta = 0; cta < ctas; ++cta) {
        const MatrixShare& share =
            program.shares[1][static_cast<size_t>(cta * program.matrices + matrix)];
        const bool works = share.tile_begin < share.tile_end;
        ASSERT_TRUE(works || kind == MatrixKind::kPartial) << "model " << i << ", cta " << cta;
        if (works) {
          ASSERT_EQ(share.chunk_end - share.chunk_begin, (share.k_blocks + kWarps - 1) / kWarps);
        }
      }
    }
  }
  EXPECT_GT(low_latency, 5);
}

// A piece of 16 bytes is of one head, of its lower or its upper half, and has no padding.
TEST(Program, SaysWhetherResultsAreWholePieces) {
  std::mt19937 random(9);
  ModelSpec spec = RandomSpec(random);
  const auto whole = [&](int head_dim, int ff) {
    spec.head_dim = head_dim;
    spec.ff = ff;
    return BuildProgram(ShapesOf(spec), 132).wide_pieces;
  };
  for (const int head_dim : {16, 32, 64, 80, 128}) EXPECT_TRUE(whole(head_dim, 1000)) << head_dim;
  for (const int head_dim : {8, 50, 72}) EXPECT_FALSE(whole(head_dim, 1000)) << head_dim;
  EXPECT_FALSE(whole(64, 1004));
}

// With a kernel for each operation the row operation after a matrix adds up as many partial sums as
// that matrix has items for each output; all other sums are whole. Rows may be as wide as Huginn's.
TEST(Program, HasRowOperationsAddUpThePartialSumsOfManyRows) {
  std::mt19937 random(11);
  int wide_rows = 0;
  for (int i = 0; i < 60; ++i) {
    const ModelSpec spec = RandomSpec(random);
    const Program program = BuildProgram(ShapesOf(spec), 132);
    if (program.wide.empty()) continue;
    if (spec.hidden > kLocalHidden) ++wide_rows;
    for (size_t at = 0; at < program.ops.size(); ++at) {
      if (program.ops[at].type != OpType::kMatrix) continue;
      const WideMatrix& matrix = program.wide.at(static_cast<size_t>(program.ops[at].matrix));
      const int sums = matrix.kind == MatrixKind::kPartial ? program.ops.at(at + 1).chunks[0] : 1;
      ASSERT_EQ(matrix.chunks, sums) << "model " << i << ", operation " << at;
      ASSERT_LE(matrix.chunks, program.max_chunks);
    }
  }
  EXPECT_GT(wide_rows, 5);
}

// A parent in cell 5 and its child in cell 6.
StepPlan ParentAndChild(int parent_depth, int child_depth, int recurrences) {
  StepPlan plan;
  plan.chains = {5};
  RowPlan parent{};
  parent.cell = 5;
  parent.position = 10;
  parent.depth = parent_depth;
  RowPlan child{};
  child.cell = 6;
  child.position = 11;
  child.depth = child_depth;
  child.chain_begin = 0;
  child.chain_length = 1;
  plan.rows = {parent, child};
  plan.recurrences = recurrences;
  return plan;
}

// One recurrence apart: two recurrences at once take the child to where the parent has only just
// been.
TEST(Step, KnowsWhenRowsAttendToEarlierRecurrences) {
  EXPECT_EQ(RelationOf(ParentAndChild(2, 1, 1), kPhaseCore), PhaseRelation::kNone);
  EXPECT_EQ(RelationOf(ParentAndChild(2, 1, 2), kPhaseCore), PhaseRelation::kEarlierRecurrence);
  EXPECT_EQ(RelationOf(ParentAndChild(3, 1, 2), kPhaseCore), PhaseRelation::kNone);
  EXPECT_EQ(RelationOf(ParentAndChild(3, 1, 3), kPhaseCore), PhaseRelation::kEarlierRecurrence);
  StepPlan strangers = ParentAndChild(2, 1, 2);
  strangers.rows[0].cell = 7;  // not of its chain
  EXPECT_EQ(RelationOf(strangers, kPhaseCore), PhaseRelation::kNone);
}

TEST(Step, KnowsWhenRowsOfOneChainAreAtTheSameDepth) {
  EXPECT_EQ(RelationOf(ParentAndChild(1, 1, 1), kPhaseCore), PhaseRelation::kSameDepth);
  EXPECT_EQ(RelationOf(ParentAndChild(1, 1, 2), kPhaseCore), PhaseRelation::kSameDepth);
  EXPECT_EQ(RelationOf(ParentAndChild(1, 1, 1), kPhasePrelude), PhaseRelation::kNone);
  EXPECT_EQ(RelationOf(ParentAndChild(0, 0, 1), kPhasePrelude), PhaseRelation::kSameDepth);
  EXPECT_EQ(RelationOf(ParentAndChild(1, 0, 1), kPhasePrelude), PhaseRelation::kNone);
  // P has two rows even where B has many.
  StepPlan many = ParentAndChild(0, 0, 1);
  for (int i = 0; i < 20; ++i) {
    RowPlan other{};
    other.cell = 10 + i;
    other.depth = 1;
    many.rows.push_back(other);
  }
  EXPECT_EQ(RelationOf(many, kPhasePrelude), PhaseRelation::kSameDepth);
  EXPECT_EQ(RelationOf(many, kPhaseCore), PhaseRelation::kNone);  // barriers everywhere
  // C: both are read out at the same depth, or at different ones.
  StepPlan readouts = ParentAndChild(1, 1, 1);
  readouts.readouts.resize(2);
  readouts.readouts[0].row = 0;
  readouts.readouts[1].row = 1;
  EXPECT_EQ(RelationOf(readouts, kPhaseCoda), PhaseRelation::kSameDepth);
  readouts.readouts[0].readout = 1;
  EXPECT_EQ(RelationOf(readouts, kPhaseCoda), PhaseRelation::kNone);
  // Rows of different sequences are strangers, whatever their cells.
  StepPlan sequences = ParentAndChild(1, 1, 1);
  sequences.rows[0].sequence = 1;
  EXPECT_EQ(RelationOf(sequences, kPhaseCore), PhaseRelation::kNone);
}

// On 132 multiprocessors. Ouro-1.4B has 16 KV heads and two splits a page, Raven-Llama 8 and one.
TEST(Step, AttendsToLongContextsInRuns) {
  constexpr int kGridWarps = 132 * kWarps;
  const auto ouro = [](const std::vector<Sharers>& sharers, int rows) {
    return ChooseSpanSplits(sharers, rows, 16, kGridWarps, 2);
  };
  EXPECT_EQ(ouro({{0, 1, 0, 1}}, 1), 1);
  EXPECT_EQ(ouro({{0, 1, 32, 1}}, 1), 1);   // 1,024 positions: not even a split for each warp
  EXPECT_EQ(ouro({{0, 1, 256, 1}}, 1), 1);  // 8,192: four splits for each
  EXPECT_EQ(ouro({{0, 1, 511, 1}}, 1), 8);
  EXPECT_EQ(ouro(std::vector<Sharers>(4, {0, 1, 128, 1}), 4), 4);  // 4,096 at four depths
  EXPECT_EQ(ouro({{0, 1, 512, 8}}, 1), 1);                         // its partials are spans already
  EXPECT_EQ(ChooseSpanSplits(std::vector<Sharers>(16, {0, 1, 125, 1}), 16, 8, kGridWarps, 1), 4);
  EXPECT_EQ(ouro({{0, 1, 32, 1}}, 400), 1);  // many tails make no spans
  // More rounds of shorter spans where longer ones would leave half of the warps idle.
  EXPECT_LT(SpansTime(2 * kGridWarps, 2, 0, kGridWarps),
            SpansTime(kGridWarps + 1, 4, 0, kGridWarps));
  // Tails cost nothing while warps are free.
  EXPECT_EQ(SpansTime(1000, 8, 56, kGridWarps), SpansTime(1000, 8, 0, kGridWarps));
  EXPECT_LT(SpansTime(1000, 8, 56, kGridWarps), SpansTime(1000, 8, 57, kGridWarps));
}

// Where that leaves a thousand pieces to a single row.
TEST(Step, MergesSplitsOfLongContexts) {
  EXPECT_EQ(PartialSplits(16383, 32, 16, 8), 1);
  EXPECT_EQ(PartialSplits(16384, 32, 16, 8), 8);
  EXPECT_EQ(PartialSplits(1 << 20, 32, 16, 8), 8);
  EXPECT_EQ(PartialSplits(32767, 64, 8, 4), 1);
  EXPECT_EQ(PartialSplits(32768, 64, 8, 4), 4);
}

// The barrier for rows of one chain comes after operations with this flag.
TEST(Program, MarksTheOperationsThatWriteKeys) {
  std::mt19937 random(10);
  for (int i = 0; i < 60; ++i) {
    const Program program = BuildProgram(ShapesOf(RandomSpec(random)), 132);
    for (size_t at = 0; at < program.ops.size(); ++at) {
      if (program.ops[at].type != OpType::kAttention) continue;
      // Keys come from the operation before: a matrix that is marked, or the norm of q and k, which
      // a barrier follows in any case.
      const Op& before = program.ops[at - 1];
      const bool marked = before.type == OpType::kMatrix && before.flags.Has(OpFlag::kWritesKeys);
      const bool norm = before.type == OpType::kFinishQk && !before.flags.Has(OpFlag::kSend) &&
                        !program.ops[at - 2].flags.Has(OpFlag::kSend);
      ASSERT_TRUE(marked || norm) << "model " << i << ", operation " << at;
    }
  }
}

}  // namespace
}  // namespace loopspec::cuda
