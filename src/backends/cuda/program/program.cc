#include "backends/cuda/program/program.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"

namespace loopspec::cuda {
namespace {

int Ceil(int a, int b) {
  return (a + b - 1) / b;
}

// Deals the tiles of each matrix to the blocks. A block that got less of one matrix gets more of
// the next: its ring runs ahead meanwhile, so what counts is that the sums over neighbouring
// matrices agree.
class Dealer {
 public:
  explicit Dealer(int blocks) : blocks_(blocks), load_(static_cast<size_t>(blocks), 0) {}

  int blocks() const { return blocks_; }

  // One entry per block. `teams`: how many groups of blocks the chunks of k are divided among, each
  // group going through all tiles; 1 or the number of chunks.
  std::vector<MatrixShare> Deal(const MatrixShare& whole, int tiles, int teams) {
    const int chunks = whole.chunk_end;
    std::vector<int> cuts;  // in blocks of k
    for (int team = 0; team <= teams; ++team)
      cuts.push_back(team == teams ? whole.blocks : team * kWarps);

    std::vector<MatrixShare> pieces;
    const std::vector<int> sizes = TeamSizes(tiles, cuts);
    for (int team = 0; team < teams; ++team) {
      for (int i = 0; i < sizes[static_cast<size_t>(team)]; ++i) {
        const int64_t size = sizes[static_cast<size_t>(team)];
        MatrixShare piece = whole;
        piece.tile_begin = static_cast<int32_t>(int64_t{tiles} * i / size);
        piece.tile_end = static_cast<int32_t>(int64_t{tiles} * (i + 1) / size);
        piece.chunk_begin = static_cast<int16_t>(team);
        piece.chunk_end = static_cast<int16_t>(teams == 1 ? chunks : team + 1);
        pieces.push_back(piece);
      }
    }
    const auto weight = [](const MatrixShare& s) {
      return int64_t{s.tile_end - s.tile_begin} *
             (std::min<int>(s.blocks, s.chunk_end * kWarps) - s.chunk_begin * kWarps);
    };
    std::stable_sort(pieces.begin(), pieces.end(), [&](const MatrixShare& a, const MatrixShare& b) {
      return weight(a) > weight(b);
    });
    std::vector<int> order(static_cast<size_t>(blocks_));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load_[a] < load_[b]; });
    std::vector<MatrixShare> shares(static_cast<size_t>(blocks_), whole);
    for (MatrixShare& share : shares) share.tile_end = share.tile_begin = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      shares[order[i]] = pieces[i];
      load_[order[i]] += weight(pieces[i]);
    }
    return shares;
  }

 private:
  // How many blocks work on each chunk of k: always one more for the chunk whose blocks have most
  // to read.
  std::vector<int> TeamSizes(int tiles, const std::vector<int>& cuts) const {
    const size_t chunks = cuts.size() - 1;
    std::vector<int> teams(chunks, 1);
    LOOPSPEC_CHECK(static_cast<int>(chunks) <= blocks_);
    for (int left = blocks_ - static_cast<int>(chunks); left > 0; --left) {
      size_t slowest = chunks;
      double most = 0;
      for (size_t c = 0; c < chunks; ++c) {
        const double each = static_cast<double>(tiles) / teams[c] * (cuts[c + 1] - cuts[c]);
        if (teams[c] < tiles && each > most) {
          most = each;
          slowest = c;
        }
      }
      if (slowest == chunks) break;
      ++teams[slowest];
    }
    return teams;
  }

  int blocks_;
  std::vector<int64_t> load_;  // blocks of k read so far
};

class Builder {
 public:
  Builder(const DeviceModel& model, int blocks)
      : model_(model), spec_(model.spec), dealers_{Dealer(blocks), Dealer(blocks)} {}

  Program Build() {
    const bool raven = spec_.adapter;
    // P: embedding, blocks; then the state starts.
    Begin(kSetPrelude);
    if (!model_.prelude.empty()) {
      Op start = Rows(RowSource::kEmbed);
      start.flags = kOpRope;
      start.output = RowOutput::kNormed;
      start.pre_norm = model_.prelude[0].attn_norm_in;
      program_.ops.push_back(start);
      Op finish = Rows(RowSource::kAdd);
      finish.flags = kOpFinishPrelude;
      Blocks(model_.prelude, finish);
    }
    End(kSetPrelude);

    // B: what its first matrix takes is left by the operation before it, the last one of the
    // recurrence before.
    Op core = Rows(RowSource::kState);
    core.flags = kOpRope;
    core.output = raven ? RowOutput::kAdapter : RowOutput::kNormed;
    core.pre_norm = raven ? nullptr : model_.core[0].attn_norm_in;
    program_.core_start = static_cast<int>(program_.ops.size());
    program_.ops.push_back(core);
    Begin(kSetCore);  // right after its start
    if (raven) {
      Op add = Rows(RowSource::kReplace);
      Partial(model_.adapter, Activation::kAdapter, add);
      add.flags = FusedInto(model_.core[0].qkv) | kOpMailOut;
      add.bias = model_.adapter_bias;
      add.output = RowOutput::kNormed;
      add.pre_norm = model_.core[0].attn_norm_in;
      program_.ops.push_back(add);
    }
    Op again = Rows(RowSource::kAdd);
    if (!raven) again.flags = FusedInto(model_.core[0].qkv) | kOpMailOut;
    again.loop_norm = model_.loop_norm;
    again.output = core.output;
    again.pre_norm = core.pre_norm;
    Blocks(model_.core, again);
    End(kSetCore);

    // C: on a copy of the state.
    Begin(kSetCoda);
    Op copy = Rows(RowSource::kCopy);
    copy.flags = kOpRope;
    copy.output = RowOutput::kNormed;
    copy.pre_norm = model_.coda.empty() ? model_.final_norm : model_.coda[0].attn_norm_in;
    program_.ops.push_back(copy);
    if (!model_.coda.empty()) {
      Op final = Rows(RowSource::kAdd);
      final.flags = FusedInto(model_.head) | kOpMailOut;
      final.output = RowOutput::kNormed;
      final.pre_norm = model_.final_norm;
      Blocks(model_.coda, final);
    }
    Matrix(model_.head, MatrixKind::kHead, Activation::kHidden);
    End(kSetCoda);

    program_.matrices = static_cast<int>(program_.weights.size());
    if (program_.matrices > kMaxMatrices) {
      Fail("the model has {} weight matrices, the CUDA backend takes at most {}", program_.matrices,
           kMaxMatrices);
    }
    program_.mail = MayMail();
    for (const int narrow : {0, 1}) {
      const auto& dealt = dealt_[narrow];
      for (size_t b = 0; b < dealt[0].size(); ++b) {
        for (const auto& matrix : dealt) program_.shares[narrow].push_back(matrix[b]);
      }
    }
    return std::move(program_);
  }

 private:
  void Begin(RowSet set) { program_.ops_begin[set] = static_cast<int>(program_.ops.size()); }
  void End(RowSet set) {
    program_.ops_end[set] = static_cast<int>(program_.ops.size());
    program_.matrices_end[set] = static_cast<int>(program_.weights.size());
  }

  static Op Rows(RowSource source) {
    Op op{};
    op.type = OpType::kRows;
    op.source = source;
    return op;
  }

  void Matrix(const DeviceMatrix& matrix, MatrixKind kind, Activation input) {
    MatrixShare whole{};
    whole.blocks = static_cast<int16_t>(matrix.ld / kBlockK);
    whole.chunk_end = static_cast<int16_t>(Ceil(whole.blocks, kWarps));
    whole.kind = kind;
    Op op{};
    op.type = OpType::kMatrix;
    op.matrix = static_cast<int32_t>(program_.weights.size());
    op.input = input;
    op.layer = layer_;
    if (kind != MatrixKind::kHead && kind != MatrixKind::kQkvRaw) op.flags |= kOpMailOut;
    program_.ops.push_back(op);
    program_.weights.push_back(matrix);
    program_.kinds.push_back(kind);
    for (const int narrow : {0, 1}) {
      Dealer& dealer = dealers_[narrow];
      const int teams = Teams(matrix, kind, narrow != 0);
      if (teams == 1 && whole.chunk_end > 1) program_.ops.back().flags |= kOpChunks << narrow;
      dealt_[narrow].push_back(dealer.Deal(whole, matrix.tiles(), teams));
      program_.max_chunks = std::max(program_.max_chunks, teams);
    }
  }

  // Mail needs whole inputs (no padding that nobody posts), pairs that stay together, sums in one
  // piece (Teams), and every block at work on the matrices that follow row operations: then what it
  // posts there tells the others that it has read what they are about to overwrite.
  bool MayMail() const {
    const int blocks = dealers_[0].blocks();
    return spec_.hidden <= kChunkK && spec_.hidden % kBlockK == 0 &&
           spec_.q_size() % kBlockK == 0 && spec_.ff % kBlockK == 0 &&
           (spec_.head_dim == 32 || spec_.head_dim == 64 || spec_.head_dim == 128) &&
           model_.core[0].qkv.tiles() >= blocks && model_.core[0].gate_up.tiles() >= blocks;
  }

  // Sums over several chunks of k are a block's own affair, or a partial sum each that the next row
  // operation adds up. The latter spreads the work better, and a block needs the inputs of one
  // chunk alone; the former spares narrow sets, where every block does the row operations, the
  // reading of many partial sums, and lets them have mail, which is worth an uneven share.
  int Teams(const DeviceMatrix& matrix, MatrixKind kind, bool narrow) const {
    const int chunks = Ceil(matrix.ld / kBlockK, kWarps);
    if (kind != MatrixKind::kPartial || chunks == 1) return 1;
    const int blocks = dealers_[0].blocks(), tiles = matrix.tiles();
    const bool even = 10 * tiles >= 9 * blocks * Ceil(tiles, blocks);
    return (narrow && (even || MayMail())) || chunks > blocks ? 1 : chunks;
  }

  // Whether a row operation can leave its results in each block for the matrix that follows: all of
  // them must fit into the warps' registers at once. Nobody waits for such an operation, so the
  // matrix must not leave sums where other blocks may still be reading those that it takes.
  static int32_t FusedInto(const DeviceMatrix& matrix) {
    return matrix.ld <= kChunkK ? kOpFused : 0;
  }

  // A matrix whose sums go through the row operation `next`.
  void Partial(const DeviceMatrix& matrix, Activation input, Op& next) {
    Matrix(matrix, MatrixKind::kPartial, input);
    for (const int narrow : {0, 1})
      next.chunks[narrow] = Teams(matrix, MatrixKind::kPartial, narrow != 0);
  }

  void Step(OpType type, const DeviceBlock& block, int32_t flags) {
    Op op{};
    op.type = type;
    op.flags = flags;
    op.layer = layer_;
    op.q_norm = block.q_norm;
    op.k_norm = block.k_norm;
    program_.ops.push_back(op);
  }

  // `after` is the row operation that ends the stack.
  void Blocks(const std::vector<DeviceBlock>& blocks, const Op& after) {
    for (layer_ = 0; layer_ < static_cast<int>(blocks.size()); ++layer_) {
      const DeviceBlock& block = blocks[static_cast<size_t>(layer_)];
      Matrix(block.qkv, spec_.qk_norm ? MatrixKind::kQkvRaw : MatrixKind::kQkv,
             Activation::kHidden);
      program_.ops.back().q_norm = block.q_norm;
      program_.ops.back().k_norm = block.k_norm;
      if (spec_.qk_norm) Step(OpType::kQkNorm, block, 0);
      Step(OpType::kAttention, block, kOpMailOut);
      Step(OpType::kMerge, block, kOpMailOut);
      Op mid = Rows(RowSource::kAdd);
      Partial(block.attn_out, Activation::kAttention, mid);
      mid.flags = FusedInto(block.gate_up) | kOpMailOut;
      mid.post_norm = block.attn_norm_out;
      mid.output = RowOutput::kNormed;
      mid.pre_norm = block.mlp_norm_in;
      program_.ops.push_back(mid);
      Matrix(block.gate_up, MatrixKind::kGateUp, Activation::kHidden);
      Op end = after;
      const size_t next = static_cast<size_t>(layer_) + 1;
      if (next < blocks.size()) {
        end = Rows(RowSource::kAdd);
        end.flags = FusedInto(blocks[next].qkv);
        end.output = RowOutput::kNormed;
        end.pre_norm = blocks[next].attn_norm_in;
      }
      Partial(block.down, Activation::kFeedForward, end);
      if (next < blocks.size()) end.flags |= kOpMailOut;
      end.post_norm = block.mlp_norm_out;
      program_.ops.push_back(end);
    }
    layer_ = 0;
  }

  const DeviceModel& model_;
  const ModelSpec& spec_;
  Dealer dealers_[2];  // [narrow]
  Program program_;
  std::vector<std::vector<MatrixShare>> dealt_[2];  // [narrow]: [matrix][block]
  int layer_ = 0;
};

}  // namespace

Program BuildProgram(const DeviceModel& model, int blocks) {
  return Builder(model, blocks).Build();
}

}  // namespace loopspec::cuda
