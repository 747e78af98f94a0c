#include "backends/cuda/program.h"

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

  // One entry per block.
  std::vector<MatrixShare> Deal(const MatrixShare& whole, int tiles, int chunks) {
    const int k_blocks = whole.block_end;
    std::vector<int> cuts(static_cast<size_t>(chunks) + 1);
    for (int c = 0; c <= chunks; ++c) cuts[c] = std::min(k_blocks, c * kChunkBlocks);
    if (chunks == 1) cuts[1] = k_blocks;

    std::vector<MatrixShare> pieces;
    const std::vector<int> teams = Teams(tiles, cuts);
    for (int c = 0; c < chunks; ++c) {
      for (int i = 0; i < teams[c]; ++i) {
        const int begin = static_cast<int>(int64_t{tiles} * i / teams[c]);
        const int end = static_cast<int>(int64_t{tiles} * (i + 1) / teams[c]);
        MatrixShare piece = whole;
        piece.tile_begin = begin;
        piece.tile_count = end - begin;
        piece.block_begin = static_cast<int16_t>(cuts[c]);
        piece.block_end = static_cast<int16_t>(cuts[c + 1]);
        piece.chunk = static_cast<int16_t>(c);
        pieces.push_back(piece);
      }
    }
    const auto weight = [](const MatrixShare& s) {
      return int64_t{s.tile_count} * (s.block_end - s.block_begin);
    };
    std::stable_sort(pieces.begin(), pieces.end(), [&](const MatrixShare& a, const MatrixShare& b) {
      return weight(a) > weight(b);
    });
    std::vector<int> order(static_cast<size_t>(blocks_));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load_[a] < load_[b]; });
    std::vector<MatrixShare> shares(static_cast<size_t>(blocks_), whole);
    for (MatrixShare& share : shares) share.tile_count = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      shares[order[i]] = pieces[i];
      load_[order[i]] += weight(pieces[i]);
    }
    return shares;
  }

 private:
  // How many blocks work on each chunk of k: always one more for the chunk whose blocks have most
  // to read.
  std::vector<int> Teams(int tiles, const std::vector<int>& cuts) const {
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
      : model_(model), spec_(model.spec), dealer_(blocks) {}

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
    Begin(kSetCore);
    if (raven) {
      Op add = Rows(RowSource::kReplace);
      add.chunks = Partial(model_.adapter, Activation::kAdapter);
      add.bias = model_.adapter_bias;
      add.output = RowOutput::kNormed;
      add.pre_norm = model_.core[0].attn_norm_in;
      program_.ops.push_back(add);
    }
    Op again = Rows(RowSource::kAdd);
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
      final.output = RowOutput::kNormed;
      final.pre_norm = model_.final_norm;
      Blocks(model_.coda, final);
    }
    Matrix(model_.head, MatrixKind::kHead, Activation::kHidden, spec_.vocab, 1);
    End(kSetCoda);

    program_.matrices = static_cast<int>(dealt_.size());
    if (program_.matrices > kMaxMatrices) {
      Fail("the model has {} weight matrices, the CUDA backend takes at most {}", program_.matrices,
           kMaxMatrices);
    }
    const size_t blocks = dealt_[0].size();
    for (size_t b = 0; b < blocks; ++b) {
      for (const auto& matrix : dealt_) program_.shares.push_back(matrix[b]);
    }
    return std::move(program_);
  }

 private:
  void Begin(RowSet set) { program_.ops_begin[set] = static_cast<int>(program_.ops.size()); }
  void End(RowSet set) {
    program_.ops_end[set] = static_cast<int>(program_.ops.size());
    program_.matrices_end[set] = static_cast<int>(dealt_.size());
  }

  static Op Rows(RowSource source) {
    Op op{};
    op.type = OpType::kRows;
    op.source = source;
    return op;
  }

  void Matrix(const DeviceMatrix& matrix, MatrixKind kind, Activation input, int outputs,
              int chunks) {
    MatrixShare whole{};
    whole.weights = matrix.data;
    whole.ld = matrix.ld;
    whole.outputs = outputs;
    whole.block_end = static_cast<int16_t>(matrix.ld / kBlockK);
    whole.kind = kind;
    Op op{};
    op.type = OpType::kMatrix;
    op.matrix = static_cast<int32_t>(dealt_.size());
    op.input = input;
    op.layer = layer_;
    program_.ops.push_back(op);
    dealt_.push_back(dealer_.Deal(whole, matrix.tiles(), chunks));
    program_.weights.push_back(matrix);
    program_.kinds.push_back(kind);
    program_.max_chunks = std::max(program_.max_chunks, chunks);
  }

  // A matrix whose sums go through the next row operation; returns the number of its chunks.
  int Partial(const DeviceMatrix& matrix, Activation input) {
    const int chunks = Ceil(matrix.ld / kBlockK, kChunkBlocks);
    Matrix(matrix, MatrixKind::kPartial, input, spec_.hidden, chunks);
    return chunks;
  }

  void Step(OpType type, const DeviceBlock& block) {
    Op op{};
    op.type = type;
    op.layer = layer_;
    op.q_norm = block.q_norm;
    op.k_norm = block.k_norm;
    program_.ops.push_back(op);
  }

  // `after` is the row operation that ends the stack.
  void Blocks(const std::vector<DeviceBlock>& blocks, const Op& after) {
    for (layer_ = 0; layer_ < static_cast<int>(blocks.size()); ++layer_) {
      const DeviceBlock& block = blocks[static_cast<size_t>(layer_)];
      const int qkv_size = spec_.q_size() + 2 * spec_.kv_size();
      Matrix(block.qkv, spec_.qk_norm ? MatrixKind::kQkvRaw : MatrixKind::kQkv, Activation::kHidden,
             qkv_size, 1);
      program_.ops.back().q_norm = block.q_norm;
      program_.ops.back().k_norm = block.k_norm;
      if (spec_.qk_norm) Step(OpType::kQkNorm, block);
      Step(OpType::kAttention, block);
      Step(OpType::kMerge, block);
      Op mid = Rows(RowSource::kAdd);
      mid.chunks = Partial(block.attn_out, Activation::kAttention);
      mid.post_norm = block.attn_norm_out;
      mid.output = RowOutput::kNormed;
      mid.pre_norm = block.mlp_norm_in;
      program_.ops.push_back(mid);
      Matrix(block.gate_up, MatrixKind::kGateUp, Activation::kHidden, 2 * spec_.ff, 1);
      Op end = after;
      const size_t next = static_cast<size_t>(layer_) + 1;
      if (next < blocks.size()) {
        end = Rows(RowSource::kAdd);
        end.output = RowOutput::kNormed;
        end.pre_norm = blocks[next].attn_norm_in;
      }
      end.chunks = Partial(block.down, Activation::kFeedForward);
      end.post_norm = block.mlp_norm_out;
      program_.ops.push_back(end);
    }
    layer_ = 0;
  }

  const DeviceModel& model_;
  const ModelSpec& spec_;
  Dealer dealer_;
  Program program_;
  std::vector<std::vector<MatrixShare>> dealt_;  // [matrix][block]
  int layer_ = 0;
};

}  // namespace

Program BuildProgram(const DeviceModel& model, int blocks) {
  return Builder(model, blocks).Build();
}

}  // namespace loopspec::cuda
