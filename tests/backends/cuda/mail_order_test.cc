// Mail is not overwritten before it is read, whatever the blocks' pace.
//
// A block that posts to a place where mail was before must know, from what it has received itself,
// that everyone who had to read that mail has done so. This follows what every block can know
// (vector clocks: how many operations of each other block are certainly over) through the program
// of a step, for models of many shapes and numbers of blocks and rows. What an operation reads and
// where it posts is written down here a second time, from the kernel's sources named below.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "backends/cuda/program/program.h"
#include "measure/synth_twin.h"
#include "program_shapes.h"

namespace loopspec::cuda {
namespace {

using Clock = std::vector<int>;  // [block]: operations that are over

void Join(Clock& to, const Clock& from) {
  for (size_t b = 0; b < to.size(); ++b) to[b] = std::max(to[b], from[b]);
}

// A part of an operation that one block does on its own: it waits for its needs, then posts.
struct Piece {
  int block = 0;
  std::vector<int> needs;  // pieces of the operation before, by mail
};

enum class Box { kNone, kHidden, kSums, kFeedForward, kAttention, kQkv, kPartials };

struct Case {
  ModelSpec spec;
  int blocks = 0;
  int rows = 0;
  int splits = 0;           // of each row's attention; the last is its own
  bool same_plane = false;  // rows at one depth share the reading of committed splits
};

class Simulation {
 public:
  explicit Simulation(const Case& c)
      : case_(c), program_(BuildProgram(ShapesOf(c.spec), c.blocks)) {}

  bool has_mail() const { return program_.mail; }
  const std::string& fault() const { return fault_; }
  int64_t overwritten() const { return overwritten_; }

  // The operations of a set in order, as op_queue.cuh has them; false at the first fault.
  bool Run(int set, int times) {
    known_.assign(static_cast<size_t>(case_.blocks), Clock(static_cast<size_t>(case_.blocks), 0));
    last_.assign(7, {});
    done_ = 0;
    flags_ = 0;
    pieces_.clear();
    if (set == kSetCore) Step(program_.ops[static_cast<size_t>(program_.core_start)], false);
    for (int time = 0; time < times; ++time) {
      for (int at = program_.ops_begin[set]; at < program_.ops_end[set]; ++at) {
        const bool ends = time + 1 == times && at + 1 == program_.ops_end[set];
        if (!Step(program_.ops[static_cast<size_t>(at)], ends)) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kMailIn = 1, kOwn = 2;
  struct Mailed {
    std::vector<int> readers;  // blocks
    int over = 0;              // operations that are over when they have read it
  };

  // NextRun of op_queue.cuh, then the operation, then its barrier.
  bool Step(const Op& op, bool ends) {
    const int allowed = (program_.mail ? kOpMailOut : 0) |
                        (case_.rows == 1 && case_.spec.hidden <= kOwnHidden ? kOpFused : 0);
    const int how = ends ? 0 : op.flags & allowed;
    const bool fused = (how & kOpFused) != 0, mails = !fused && (how & kOpMailOut) != 0;
    const std::vector<Piece> before = std::move(pieces_);
    pieces_ = PiecesOf(op, fused, before);
    const Box box = mails ? BoxOf(op) : Box::kNone;
    if ((flags_ & kMailIn) != 0) NoteReaders();
    std::vector<Clock> sent, after = known_;
    for (const Piece& piece : pieces_) {
      const auto block = static_cast<size_t>(piece.block);
      Clock clock = known_[block];
      for (const int need : piece.needs) Join(clock, sent_[static_cast<size_t>(need)]);
      if (box != Box::kNone && !MayPost(box, clock, op)) return false;
      // A row is taken whole, and so is a share of sums: with its last element the block has read
      // all it needs for it. Other shares have one chunk of k, read before anything is posted. Of
      // attention and merges a block may have other pieces that still wait.
      if (op.type == OpType::kMatrix || op.type == OpType::kRows) clock[block] = done_ + 1;
      Join(after[block], clock);
      sent.push_back(std::move(clock));
    }
    ++done_;
    for (size_t b = 0; b < after.size(); ++b) after[b][b] = done_;
    flags_ = fused ? kOwn : mails ? kMailIn : 0;
    if (flags_ == 0) {  // a barrier over the grid
      for (Clock& clock : after) std::fill(clock.begin(), clock.end(), done_);
    }
    known_ = std::move(after);
    sent_ = std::move(sent);
    posted_ = box;
    return true;
  }

  // Those who read what the operation before has posted.
  void NoteReaders() {
    Mailed& mailed = last_[static_cast<size_t>(posted_)];
    mailed = {};
    mailed.over = done_ + 1;
    for (const Piece& piece : pieces_) {
      if (!piece.needs.empty()) mailed.readers.push_back(piece.block);
    }
  }

  bool MayPost(Box box, const Clock& clock, const Op& op) {
    const Mailed& mailed = last_[static_cast<size_t>(box)];
    for (const int reader : mailed.readers) {
      ++overwritten_;
      if (clock[static_cast<size_t>(reader)] >= mailed.over) continue;
      fault_ = "operation " + std::to_string(done_) + " of layer " + std::to_string(op.layer) +
               " overwrites mail that block " + std::to_string(reader) + " may still be reading";
      return false;
    }
    return true;
  }

  Box BoxOf(const Op& op) const {
    switch (op.type) {
      case OpType::kRows:
        return Box::kHidden;
      case OpType::kAttention:
        return Box::kPartials;
      case OpType::kMerge:
        return Box::kAttention;
      case OpType::kQkNorm:
        return Box::kNone;
      case OpType::kMatrix:
        break;
    }
    switch (program_.kinds[static_cast<size_t>(op.matrix)]) {
      case MatrixKind::kQkv:
        return Box::kQkv;
      case MatrixKind::kGateUp:
        return Box::kFeedForward;
      default:
        return Box::kSums;
    }
  }

  const MatrixShare& Share(int block, int matrix) const {
    return program_.shares[1][static_cast<size_t>(block * program_.matrices + matrix)];
  }

  std::vector<Piece> PiecesOf(const Op& op, bool fused, const std::vector<Piece>& before) {
    switch (op.type) {
      case OpType::kRows:
        return RowPieces(fused, before);
      case OpType::kMatrix:
        return MatrixPieces(op, before);
      case OpType::kAttention:
        return AttentionPieces();
      case OpType::kMerge:
        return MergePieces();
      case OpType::kQkNorm:
        break;
    }
    return RowPieces(false, {});
  }

  // row_op.cuh: a block for each row, or all blocks for the only one. Sums come from all pieces.
  std::vector<Piece> RowPieces(bool fused, const std::vector<Piece>& before) const {
    std::vector<Piece> pieces;
    for (int block = 0; block < (fused ? case_.blocks : case_.rows); ++block) {
      Piece piece{block, {}};
      if ((flags_ & kMailIn) != 0) {
        piece.needs.resize(before.size());
        std::iota(piece.needs.begin(), piece.needs.end(), 0);
      }
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  // matrix_op.cuh: a block's share, which takes all rows of its chunks of k.
  std::vector<Piece> MatrixPieces(const Op& op, const std::vector<Piece>& before) {
    std::vector<Piece> pieces;
    matrix_pieces_.clear();
    for (int block = 0; block < case_.blocks; ++block) {
      const MatrixShare& share = Share(block, op.matrix);
      if (share.tile_begin == share.tile_end) continue;
      Piece piece{block, {}};
      if ((flags_ & kMailIn) != 0) {
        EXPECT_NE(op.input, Activation::kAdapter);
        const int begin = share.chunk_begin * kChunkK, end = share.chunk_end * kChunkK;
        for (size_t i = 0; i < before.size(); ++i) {
          // A row operation's whole row; an element range of merges and of SwiGLU.
          const bool needed = op.input == Activation::kHidden ||
                              (ranges_[i].first < end && begin < ranges_[i].second);
          if (needed) piece.needs.push_back(static_cast<int>(i));
        }
      }
      pieces.push_back(std::move(piece));
      matrix_pieces_.push_back({share.tile_begin, share.tile_end});
    }
    ranges_.clear();
    for (const auto& [begin, end] : matrix_pieces_) ranges_.push_back({begin * 8, end * 8});
    return pieces;
  }

  // The pieces of qkv that have tiles [begin, end).
  void NeedTiles(int begin, int end, Piece& piece) const {
    for (size_t i = 0; i < matrix_pieces_.size(); ++i) {
      if (matrix_pieces_[i].first < end && begin < matrix_pieces_[i].second)
        piece.needs.push_back(static_cast<int>(i));
    }
  }

  // step_encoder.cc (Group), attention_op.cuh: a warp for a few rows, one KV head, one split.
  std::vector<Piece> AttentionPieces() {
    const ModelSpec& spec = case_.spec;
    const int group = spec.heads / spec.kv_heads;
    struct Unit {
      int first, count, split;
    };
    std::vector<Unit> units, own;
    for (int row = 0; row < case_.rows; ++row) own.push_back({row, 1, case_.splits - 1});
    const int per_unit = case_.same_plane ? std::max(1, kUnitQueries / group) : 1;
    for (int first = 0; first < case_.rows; first += per_unit) {
      for (int split = 0; split + 1 < case_.splits; ++split)
        units.push_back({first, std::min(per_unit, case_.rows - first), split});
    }
    const size_t at = OwnUnitsAt(units.size(), own.size(), spec.kv_heads, case_.blocks * kWarps);
    units.insert(units.begin() + static_cast<std::ptrdiff_t>(at), own.begin(), own.end());
    const int per_head = (spec.head_dim / 2 + 7) / 8, qk_heads = spec.heads + spec.kv_heads;
    attention_.assign(static_cast<size_t>(case_.rows * spec.kv_heads), {});
    std::vector<Piece> pieces;
    for (const Unit& unit : units) {
      for (int head = 0; head < spec.kv_heads; ++head) {
        const int index = static_cast<int>(pieces.size());
        Piece piece{index % case_.blocks, {}};
        for (int row = unit.first; row < unit.first + unit.count; ++row)
          attention_[static_cast<size_t>(row * spec.kv_heads + head)].push_back(index);
        if ((flags_ & kMailIn) != 0) {
          NeedTiles(head * group * per_head, (head + 1) * group * per_head, piece);
          if (unit.split + 1 == case_.splits) {
            NeedTiles((spec.heads + head) * per_head, (spec.heads + head + 1) * per_head, piece);
            const int values = qk_heads * per_head;
            NeedTiles(values + head * spec.head_dim / kTileRows,
                      values + ((head + 1) * spec.head_dim + kTileRows - 1) / kTileRows, piece);
          }
        }
        pieces.push_back(std::move(piece));
      }
    }
    return pieces;
  }

  // merge_op.cuh: a warp for 4 kLanes elements of one head of a row, over all its splits.
  std::vector<Piece> MergePieces() {
    const ModelSpec& spec = case_.spec;
    const int lanes =
        MergeLanes(case_.rows * spec.q_size(), case_.blocks * kWarps, spec.head_dim, true);
    const int parts = (spec.head_dim + 4 * lanes - 1) / (4 * lanes);
    std::vector<Piece> pieces;
    ranges_.clear();
    for (int row = 0; row < case_.rows; ++row) {
      for (int head = 0; head < spec.heads; ++head) {
        for (int part = 0; part < parts; ++part) {
          Piece piece{static_cast<int>(pieces.size()) % case_.blocks, {}};
          const int kv_head = head / (spec.heads / spec.kv_heads);
          if ((flags_ & kMailIn) != 0)
            piece.needs = attention_[static_cast<size_t>(row * spec.kv_heads + kv_head)];
          const int begin = head * spec.head_dim + part * 4 * lanes;
          ranges_.push_back({begin, std::min(begin + 4 * lanes, (head + 1) * spec.head_dim)});
          pieces.push_back(std::move(piece));
        }
      }
    }
    return pieces;
  }

  const Case case_;
  const Program program_;
  std::string fault_;
  int64_t overwritten_ = 0;

  std::vector<Clock> known_;   // [block]
  std::vector<Piece> pieces_;  // of the last operation,
  std::vector<Clock> sent_;    // what each of them knew when it posted,
  Box posted_ = Box::kNone;    // where,
  int flags_ = 0;              // and what it leaves the next one
  int done_ = 0;
  std::vector<Mailed> last_;                        // [box]
  std::vector<std::pair<int, int>> matrix_pieces_;  // tiles of the last matrix's pieces
  std::vector<std::pair<int, int>> ranges_;  // elements that the last operation's pieces make
  std::vector<std::vector<int>> attention_;  // [row][KV head]: pieces of attention
};

// The released models with few layers.
std::vector<ModelSpec> ReleasedShapes() {
  std::vector<ModelSpec> specs;
  for (TwinShape shape : TwinShapes()) {
    shape.prelude = std::min(shape.prelude, 2);
    shape.core = 3;
    shape.coda = std::min(shape.coda, 2);
    specs.push_back(ParseModelSpec(Twin(shape, 0.1).Config().dump(), shape.name));
  }
  return specs;
}

TEST(Mail, IsReadBeforeItIsOverwritten) {
  std::vector<ModelSpec> specs = ReleasedShapes();
  std::mt19937 random(9);
  for (int i = 0; i < 120; ++i) specs.push_back(RandomSpec(random));
  int64_t overwritten = 0;
  for (const int blocks : {16, 78, 108, 114, 132, 148, 170}) {
    int with_mail = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!Simulation({specs[i], blocks, 1, 1, false}).has_mail()) continue;
      ++with_mail;
      for (const int rows : {1, 2, 5, 8}) {
        const Case c{specs[i], blocks, rows, 1 + static_cast<int>(random() % 20), rows % 2 == 0};
        Simulation simulation(c);
        for (const int set : {kSetPrelude, kSetCore, kSetCoda}) {
          ASSERT_TRUE(simulation.Run(set, set == kSetCore ? 3 : 1))
              << "model " << i << ", " << blocks << " blocks, " << rows << " rows, set " << set
              << ": " << simulation.fault();
        }
        overwritten += simulation.overwritten();
      }
    }
    EXPECT_GE(with_mail, 5) << blocks << " blocks";
  }
  EXPECT_GT(overwritten, 100000);
}

}  // namespace
}  // namespace loopspec::cuda
