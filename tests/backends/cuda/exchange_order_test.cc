// No word of the low-latency exchange is overwritten before it is read, whatever the pace of the
// CTAs.
//
// A CTA that sends to a place must know, from what it has received itself, that every reader of the
// value that is there has read it. This test follows what every CTA can know (vector clocks: how
// many operations of each other CTA are certainly over) through the program of a step, for models
// of many shapes and numbers of CTAs and rows. What an operation receives and where it sends to is
// written down here a second time, after the kernel's sources named below.
//
// Keys and values are plain stores to cells. Other CTAs see them only after a barrier over the
// grid, and attention loads keys before it waits for anything. So where rows attend to each other
// within the step, a barrier must stand between the operation that writes a plane's keys and the
// one that reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "backends/cuda/program/plan.h"
#include "backends/cuda/program/program.h"
#include "backends/cuda/program/step_encoder.h"
#include "base/json.h"
#include "calibrate/synth_twin.h"
#include "program_shapes.h"

namespace loopspec::cuda {
namespace {

using Clock = std::vector<int>;  // [cta]: operations that are over

void Join(Clock& to, const Clock& from) {
  for (size_t b = 0; b < to.size(); ++b) to[b] = std::max(to[b], from[b]);
}

// A part of an operation that one CTA does on its own: it waits for its needs, then sends.
struct Piece {
  int cta = 0;
  std::vector<int> needs;  // pieces of the operation before, received from
};

// Where results go: buffers of the exchange, and queries in memory.
enum class Box { kNone, kHidden, kSums, kFeedForward, kAttention, kQkv, kPartials, kQueries };

struct Case {
  ModelSpec spec;
  int ctas = 0;
  int rows = 0;
  int splits = 0;           // of each row's attention; the last is its own
  bool same_plane = false;  // rows at one depth share the reading of committed splits
  int apart = -1;           // recurrences that rows of one chain are apart; -1: no such rows
  PhaseRelation relation = PhaseRelation::kNone;  // what the plan says about that
};

class Simulation {
 public:
  explicit Simulation(const Case& c) : case_(c), program_(BuildProgram(ShapesOf(c.spec), c.ctas)) {}

  bool low_latency() const { return program_.low_latency; }
  const std::string& fault() const { return fault_; }
  int64_t overwritten() const { return overwritten_; }
  int64_t keys_checked() const { return keys_checked_; }

  // The operations of a phase in order, as op_queue.cuh has them; false at the first fault.
  bool Run(int phase, int times) {
    known_.assign(static_cast<size_t>(case_.ctas), Clock(static_cast<size_t>(case_.ctas), 0));
    last_.assign(8, {});
    keys_.assign(static_cast<size_t>(times), {});
    time_ = 0;
    visible_ = 0;
    done_ = 0;
    flags_ = 0;
    pieces_.clear();
    if (phase == kPhaseCore) Step(program_.ops[static_cast<size_t>(program_.core_start)], false);
    for (time_ = 0; time_ < times; ++time_) {
      for (int at = program_.ops_begin[phase]; at < program_.ops_end[phase]; ++at) {
        const bool ends =
            at + 1 == program_.ops_end[phase] &&
            (time_ + 1 == times || case_.relation == PhaseRelation::kEarlierRecurrence);
        if (!Step(program_.ops[static_cast<size_t>(at)], ends)) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kReceives = 1, kLocal = 2;
  struct Sent {
    std::vector<int> readers;  // ctas
    int over = 0;              // operations that are over when they have read it
  };

  // NextRun of op_queue.cuh, then the operation, then its barrier.
  bool Step(const Op& op, bool ends) {
    if (case_.relation == PhaseRelation::kSameDepth && op.flags.Has(OpFlag::kWritesKeys))
      ends = true;
    if (op.type == OpType::kAttention && !SeesKeys(op)) return false;
    const bool replicated = !ends && op.flags.Has(OpFlag::kReplicate) && case_.rows == 1 &&
                            case_.spec.hidden <= kLocalHidden;
    const bool sends = !ends && !replicated && op.flags.Has(OpFlag::kSend) && program_.low_latency;
    const std::vector<Piece> before = std::move(pieces_);
    pieces_ = PiecesOf(op, replicated, before);
    const bool queries_in_memory =
        !sends && (op.type == OpType::kFinishQk || op.flags.Has(OpFlag::kWritesKeys));
    const Box box = sends ? BoxOf(op) : queries_in_memory ? Box::kQueries : Box::kNone;
    if ((flags_ & kReceives) != 0 || sent_to_ == Box::kQueries) NoteReaders();
    std::vector<Clock> sent, after = known_;
    const std::vector<int>* needs = nullptr;  // those that `received` is of: most pieces have the
    Clock received;                           // same as the one before
    for (const Piece& piece : pieces_) {
      const auto cta = static_cast<size_t>(piece.cta);
      if (needs == nullptr || *needs != piece.needs) {
        needs = &piece.needs;
        received.assign(known_.size(), 0);
        for (const int need : piece.needs) Join(received, sent_[static_cast<size_t>(need)]);
      }
      Clock clock = known_[cta];
      Join(clock, received);
      if (box != Box::kNone && !MaySend(box, clock, op)) return false;
      // A CTA receives a whole row, or all inputs of a share's sums, before it sends the result's
      // last element. Other shares have one chunk of k, received before anything is sent. Of
      // attention and its combination a CTA may have other pieces that still wait.
      if (op.type == OpType::kMatrix || op.type == OpType::kRows) clock[cta] = done_ + 1;
      Join(after[cta], clock);
      sent.push_back(std::move(clock));
    }
    ++done_;
    for (size_t b = 0; b < after.size(); ++b) after[b][b] = done_;
    flags_ = replicated ? kLocal : sends ? kReceives : 0;
    if (flags_ == 0) {  // a barrier over the grid
      for (Clock& clock : after) std::fill(clock.begin(), clock.end(), done_);
      visible_ = done_;
    }
    if (op.type == OpType::kFinishQk || op.flags.Has(OpFlag::kWritesKeys)) NoteKeys(op);
    known_ = std::move(after);
    sent_ = std::move(sent);
    sent_to_ = box;
    return true;
  }

  // The operation that has just been done wrote the keys of a layer's plane.
  void NoteKeys(const Op& op) {
    std::vector<int>& layers = keys_[static_cast<size_t>(time_)];
    layers.resize(std::max(layers.size(), static_cast<size_t>(op.layer) + 1), 0);
    layers[static_cast<size_t>(op.layer)] = done_;
  }

  // Attention loads keys, those of rows of its chain in this step among them, before it waits.
  bool SeesKeys(const Op& op) {
    if (case_.apart < 0 || time_ < case_.apart) return true;
    const auto time = static_cast<size_t>(time_ - case_.apart);
    const int written = keys_[time].at(static_cast<size_t>(op.layer));
    ++keys_checked_;
    if (written <= visible_) return true;
    fault_ = "attention of layer " + std::to_string(op.layer) + " reads keys that operation " +
             std::to_string(written - 1) + " wrote, and no barrier makes them visible";
    return false;
  }

  // The readers of what the operation before has sent.
  void NoteReaders() {
    Sent& sent_before = last_[static_cast<size_t>(sent_to_)];
    sent_before = {};
    sent_before.over = done_ + 1;
    for (const Piece& piece : pieces_) {
      if (!piece.needs.empty() || sent_to_ == Box::kQueries)
        sent_before.readers.push_back(piece.cta);
    }
  }

  bool MaySend(Box box, const Clock& clock, const Op& op) {
    const Sent& sent_before = last_[static_cast<size_t>(box)];
    for (const int reader : sent_before.readers) {
      ++overwritten_;
      if (clock[static_cast<size_t>(reader)] >= sent_before.over) continue;
      fault_ = "operation " + std::to_string(done_) + " of layer " + std::to_string(op.layer) +
               " overwrites what CTA " + std::to_string(reader) + " may still be reading";
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
      case OpType::kCombine:
        return Box::kAttention;
      case OpType::kFinishQk:
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

  const MatrixShare& Share(int cta, int matrix) const {
    return program_.shares[1][static_cast<size_t>(cta * program_.matrices + matrix)];
  }

  std::vector<Piece> PiecesOf(const Op& op, bool replicated, const std::vector<Piece>& before) {
    switch (op.type) {
      case OpType::kRows:
        return RowPieces(replicated, before);
      case OpType::kMatrix:
        return MatrixPieces(op, before);
      case OpType::kAttention:
        return AttentionPieces();
      case OpType::kCombine:
        return CombinePieces();
      case OpType::kFinishQk:
        break;
    }
    return RowPieces(false, {});
  }

  // row_op.cuh: a CTA for each row, or all CTAs for the only one. Sums come from all pieces.
  std::vector<Piece> RowPieces(bool replicated, const std::vector<Piece>& before) const {
    std::vector<Piece> pieces;
    for (int cta = 0; cta < (replicated ? case_.ctas : case_.rows); ++cta) {
      Piece piece{cta, {}};
      if ((flags_ & kReceives) != 0) {
        piece.needs.resize(before.size());
        std::iota(piece.needs.begin(), piece.needs.end(), 0);
      }
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  // matrix_op.cuh: a CTA's share, which takes all rows of its chunks of k.
  std::vector<Piece> MatrixPieces(const Op& op, const std::vector<Piece>& before) {
    std::vector<Piece> pieces;
    matrix_pieces_.clear();
    for (int cta = 0; cta < case_.ctas; ++cta) {
      const MatrixShare& share = Share(cta, op.matrix);
      if (share.tile_begin == share.tile_end) continue;
      Piece piece{cta, {}};
      if ((flags_ & kReceives) != 0) {
        EXPECT_NE(op.input, Activation::kAdapter);
        const int begin = share.chunk_begin * kChunkK, end = share.chunk_end * kChunkK;
        for (size_t i = 0; i < before.size(); ++i) {
          // A row operation's whole row; an element range of the combination and of SwiGLU.
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
      int first, count;
      bool tail;
    };
    std::vector<Unit> units, own;
    for (int row = 0; row < case_.rows; ++row) own.push_back({row, 1, true});
    const int per_unit = case_.same_plane ? std::max(1, kUnitQueries / group) : 1;
    std::vector<Sharers> sharers;
    for (int first = 0; first < case_.rows; first += per_unit)
      sharers.push_back({first, std::min(per_unit, case_.rows - first), case_.splits - 1, 1});
    const int span = ChooseSpanSplits(sharers, case_.rows, spec.kv_heads, case_.ctas * kWarps,
                                      kPageSize / SplitPositions(spec.head_dim));
    for (const Sharers& rows : sharers) {
      for (int split = 0; split < rows.splits; split += span)
        units.push_back({rows.first, rows.count, false});
    }
    const size_t at =
        span > 1 ? units.size()
                 : TailUnitsIndex(units.size(), own.size(), spec.kv_heads, case_.ctas * kWarps);
    units.insert(units.begin() + static_cast<std::ptrdiff_t>(at), own.begin(), own.end());
    const int per_head = (spec.head_dim / 2 + 7) / 8, qk_heads = spec.heads + spec.kv_heads;
    attention_.assign(static_cast<size_t>(case_.rows * spec.kv_heads), {});
    std::vector<Piece> pieces;
    for (const Unit& unit : units) {
      for (int head = 0; head < spec.kv_heads; ++head) {
        const int index = static_cast<int>(pieces.size());
        Piece piece{index % case_.ctas, {}};
        for (int row = unit.first; row < unit.first + unit.count; ++row)
          attention_[static_cast<size_t>(row * spec.kv_heads + head)].push_back(index);
        if ((flags_ & kReceives) != 0) {
          NeedTiles(head * group * per_head, (head + 1) * group * per_head, piece);
          if (unit.tail) {
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

  // combine_op.cuh: a warp for 4 kLanes elements of one head of a row, over all its splits.
  std::vector<Piece> CombinePieces() {
    const ModelSpec& spec = case_.spec;
    const int lanes =
        CombineLanes(case_.rows * spec.q_size(), case_.ctas * kWarps, spec.head_dim, true);
    const int parts = (spec.head_dim + 4 * lanes - 1) / (4 * lanes);
    std::vector<Piece> pieces;
    ranges_.clear();
    for (int row = 0; row < case_.rows; ++row) {
      for (int head = 0; head < spec.heads; ++head) {
        for (int part = 0; part < parts; ++part) {
          Piece piece{static_cast<int>(pieces.size()) % case_.ctas, {}};
          const int kv_head = head / (spec.heads / spec.kv_heads);
          if ((flags_ & kReceives) != 0)
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
  int64_t overwritten_ = 0, keys_checked_ = 0;

  std::vector<Clock> known_;   // [cta]
  std::vector<Piece> pieces_;  // of the last operation,
  std::vector<Clock> sent_;    // what each of them knew when it sent,
  Box sent_to_ = Box::kNone;   // where,
  int flags_ = 0;              // and how the next one gets it
  int done_ = 0;
  int time_ = 0;                        // recurrence
  int visible_ = 0;                     // operations before the last barrier over the grid
  std::vector<std::vector<int>> keys_;  // [recurrence][layer]: done_ after its keys were written
  std::vector<Sent> last_;              // [box]
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

TEST(LowLatencyExchange, IsReadBeforeItIsOverwritten) {
  std::vector<ModelSpec> specs = ReleasedShapes();
  std::mt19937 random(9);
  for (int i = 0; i < 40; ++i) specs.push_back(RandomSpec(random));
  int64_t overwritten = 0;
  for (const int ctas : {16, 108, 132, 170}) {
    int low_latency = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!Simulation({specs[i], ctas, 1, 1, false}).low_latency()) continue;
      ++low_latency;
      for (const int rows : {1, 2, 5, 8}) {
        const Case c{specs[i], ctas, rows, 1 + static_cast<int>(random() % 20), rows % 2 == 0};
        Simulation simulation(c);
        for (const int phase : {kPhasePrelude, kPhaseCore, kPhaseCoda}) {
          ASSERT_TRUE(simulation.Run(phase, phase == kPhaseCore ? 3 : 1))
              << "model " << i << ", " << ctas << " ctas, " << rows << " rows, phase " << phase
              << ": " << simulation.fault();
        }
        overwritten += simulation.overwritten();
      }
    }
    EXPECT_GE(low_latency, 5) << ctas << " ctas";
  }
  EXPECT_GT(overwritten, 100000);
}

// Rows of one chain at the same depth, or as many recurrences apart as the step makes.
TEST(LowLatencyExchange, ShowsKeysOfTheStepToItsOtherRows) {
  std::vector<ModelSpec> specs = ReleasedShapes();
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) specs.push_back(RandomSpec(random));
  int64_t keys = 0, overwritten = 0;
  for (const int ctas : {16, 132, 148}) {
    for (size_t i = 0; i < specs.size(); ++i) {
      Case c{specs[i], ctas, 2 + static_cast<int>(random() % 7), 3, true};
      if (!Simulation(c).low_latency()) continue;
      for (const int apart : {0, 1}) {
        c.apart = apart;
        c.relation = apart == 0 ? PhaseRelation::kSameDepth : PhaseRelation::kEarlierRecurrence;
        Simulation simulation(c);
        for (const int phase : {kPhasePrelude, kPhaseCore, kPhaseCoda}) {
          ASSERT_TRUE(simulation.Run(phase, phase == kPhaseCore ? 3 : 1))
              << "model " << i << ", " << ctas << " CTAs, " << c.rows << " rows, phase " << phase
              << ", " << apart << " apart: " << simulation.fault();
        }
        keys += simulation.keys_checked();
        overwritten += simulation.overwritten();
        // If the plan did not say so, nothing would wait. Some models have barriers in the right
        // places anyway: after the norm of q and k, and before e is injected at each recurrence.
        c.relation = PhaseRelation::kNone;
        Simulation careless(c);
        const bool injects = specs[i].injection != Injection::kNone;
        const bool anyway = specs[i].qk_norm || specs[i].qk_bias || (apart == 1 && injects);
        EXPECT_EQ(careless.Run(kPhaseCore, 3), anyway) << "model " << i << ", " << apart;
      }
    }
  }
  EXPECT_GT(keys, 200);
  EXPECT_GT(overwritten, 10000);
}

}  // namespace
}  // namespace loopspec::cuda
