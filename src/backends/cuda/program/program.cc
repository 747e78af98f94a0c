#include "backends/cuda/program/program.h"

#include <algorithm>

#include "backends/cuda/program/tile_scheduler.h"
#include "backends/cuda/program/wide_work.h"
#include "base/check.h"
#include "base/error.h"

namespace loopspec::cuda {
namespace {

int Ceil(int a, int b) {
  return (a + b - 1) / b;
}

class Builder {
 public:
  Builder(const DeviceModel& model, int ctas)
      : model_(model), spec_(model.spec), schedulers_{TileScheduler(ctas), TileScheduler(ctas)} {}

  Program Build() {
    const bool raven = spec_.adapter(), injects = spec_.injects_update();
    // P: embedding, layers; then the state gets its initial value.
    Begin(kPhasePrelude);
    Prelude();
    End(kPhasePrelude);

    // B: its first matrix takes its input from the last operation of the recurrence before; before
    // the first recurrence, an operation of its own makes it.
    Op core = Rows(RowSource::kState);
    core.flags = OpFlag::kRope;
    core.output = raven ? RowOutput::kAdapter : injects ? RowOutput::kNone : RowOutput::kNormed;
    core.pre_norm = raven || injects ? nullptr : model_.core[0].attn_norm_in;
    program_.core_start = static_cast<int>(program_.ops.size());
    program_.ops.push_back(core);
    Begin(kPhaseCore);  // without the operation before the first recurrence
    if (raven) {
      Op add = Rows(RowSource::kReplace);
      Partial(model_.adapter, Activation::kAdapter, add);
      add.flags = ReplicateFor(model_.core[0].qkv) | OpFlag::kSend;
      add.bias = model_.adapter_bias;
      add.output = RowOutput::kNormed;
      add.pre_norm = model_.core[0].attn_norm_in;
      program_.ops.push_back(add);
    }
    if (injects) {
      // An operation of its own, which changes the state in memory: C reads the state that the
      // recurrence before left.
      Op inject = Rows(RowSource::kInject);
      inject.bias = model_.decay;
      inject.output = RowOutput::kNormed;
      inject.pre_norm = model_.core[0].attn_norm_in;
      program_.ops.push_back(inject);
    }
    Op again = Rows(RowSource::kAdd);
    if (!raven && !injects) again.flags = ReplicateFor(model_.core[0].qkv) | OpFlag::kSend;
    again.loop_norm = model_.loop_norm;
    again.output = core.output;
    again.pre_norm = core.pre_norm;
    Layers(model_.core, again);
    End(kPhaseCore);

    // C: on a copy of the state.
    Begin(kPhaseCoda);
    Op copy = Rows(RowSource::kCopy);
    copy.flags = OpFlag::kRope;
    copy.output = RowOutput::kNormed;
    copy.loop_norm = spec_.coda_norm ? model_.final_norm : nullptr;
    copy.pre_norm = model_.coda.empty() ? model_.final_norm : model_.coda[0].attn_norm_in;
    program_.ops.push_back(copy);
    if (!model_.coda.empty()) {
      Op final = Rows(RowSource::kAdd);
      final.flags = ReplicateFor(model_.head) | OpFlag::kSend;
      final.output = RowOutput::kNormed;
      final.pre_norm = model_.final_norm;
      Layers(model_.coda, final);
    }
    Matrix(model_.head, MatrixKind::kHead, Activation::kHidden);
    End(kPhaseCoda);

    program_.matrices = static_cast<int>(program_.weights.size());
    if (program_.matrices > kMaxMatrices) {
      Fail("the model has {} weight matrices, the CUDA backend takes at most {}", program_.matrices,
           kMaxMatrices);
    }
    program_.low_latency = AllowsLowLatency();
    program_.producer = program_.low_latency || AllowsProducer();
    program_.wide_pieces = spec_.head_dim % 16 == 0 && spec_.ff % 8 == 0;
    if (!AllowsWide()) program_.wide.clear();
    for (const int small_batch : {0, 1}) {
      const auto& assigned = assigned_[small_batch];
      for (size_t cta = 0; cta < assigned[0].size(); ++cta) {
        for (const auto& matrix : assigned) program_.shares[small_batch].push_back(matrix[cta]);
      }
    }
    return std::move(program_);
  }

 private:
  // Where B adds the same u in every recurrence, P ends with the product that u is made of.
  void Prelude() {
    const bool injects = spec_.injects_update();
    if (model_.prelude.empty() && !injects) return;
    Op start = Rows(RowSource::kEmbed);
    start.flags = OpFlag::kRope;
    start.output = RowOutput::kNormed;
    Op finish = Rows(RowSource::kAdd);
    finish.loop_norm = model_.prelude_norm;
    if (injects) {
      finish.output = RowOutput::kNormed;  // as it is
    } else {
      finish.flags = OpFlag::kFinishPrelude;
    }
    if (model_.prelude.empty()) {
      start.loop_norm = model_.prelude_norm;
      program_.ops.push_back(start);
    } else {
      start.pre_norm = model_.prelude[0].attn_norm_in;
      program_.ops.push_back(start);
      Layers(model_.prelude, finish);
    }
    if (!injects) return;
    Op update = Rows(RowSource::kUpdate);
    Partial(model_.update, Activation::kHidden, update);
    update.bias = model_.step;
    program_.ops.push_back(update);
  }

  void Begin(Phase phase) { program_.ops_begin[phase] = static_cast<int>(program_.ops.size()); }
  void End(Phase phase) {
    program_.ops_end[phase] = static_cast<int>(program_.ops.size());
    program_.matrices_end[phase] = static_cast<int>(program_.weights.size());
  }

  static Op Rows(RowSource source) {
    Op op{};
    op.type = OpType::kRows;
    op.source = source;
    return op;
  }

  void Matrix(const DeviceMatrix& matrix, MatrixKind kind, Activation input) {
    MatrixShare whole{};
    whole.k_blocks = static_cast<int16_t>(matrix.ld / kBlockK);
    whole.chunk_end = static_cast<int16_t>(Ceil(whole.k_blocks, kWarps));
    whole.kind = kind;
    whole.form = matrix.form;
    Op op{};
    op.type = OpType::kMatrix;
    op.matrix = static_cast<int32_t>(program_.weights.size());
    op.input = input;
    op.layer = layer_;
    op.scales = matrix.scales;
    if (kind != MatrixKind::kHead && kind != MatrixKind::kQkvRaw) op.flags |= OpFlag::kSend;
    if (kind == MatrixKind::kQkv) op.flags |= OpFlag::kWritesKeys;
    program_.ops.push_back(op);
    program_.weights.push_back(matrix);
    program_.kinds.push_back(kind);
    const int16_t partial_sums = kind == MatrixKind::kPartial ? whole.chunk_end : int16_t{1};
    program_.wide.push_back(
        {matrix.tiles(), whole.k_blocks, partial_sums, kind, input, matrix.form});
    program_.packed = program_.packed || matrix.packed();
    for (const int small_batch : {0, 1}) {
      TileScheduler& scheduler = schedulers_[small_batch];
      const int split_k = SplitK(matrix, kind, small_batch != 0);
      if (split_k == 1 && whole.chunk_end > 1)
        program_.ops.back().flags |= ChunksFlag(small_batch != 0);
      assigned_[small_batch].push_back(scheduler.Assign(whole, matrix.tiles(), split_k));
      program_.max_chunks = std::max(program_.max_chunks, split_k);
    }
  }

  // The low-latency exchange needs inputs without padding (nobody would send it), pairs of elements
  // that stay together, sums that are not split over k (SplitK), and every CTA at work on the
  // matrices that follow row operations: what a CTA sends there tells the others that it has read
  // what they are about to overwrite. The row operations of an injection send nothing: barriers
  // over the grid follow them.
  bool AllowsLowLatency() const {
    const int ctas = schedulers_[0].ctas();
    return spec_.hidden <= kChunkK && spec_.hidden % kBlockK == 0 &&
           spec_.q_size() % kBlockK == 0 && spec_.ff % kBlockK == 0 &&
           (spec_.head_dim == 32 || spec_.head_dim == 64 || spec_.head_dim == 128) &&
           model_.core[0].qkv.tiles() >= ctas && model_.core[0].gate_up.tiles() >= ctas;
  }

  // A producer warp needs heads for which there is code, and rows of the stream that fit into the
  // registers that it leaves to the others. It pays where every CTA has weights to stream: models
  // that are wider than the exchange takes, which then have a grid barrier after each operation.
  bool AllowsProducer() const {
    const int ctas = schedulers_[0].ctas();
    return spec_.hidden > kLocalHidden && spec_.hidden <= kProducerHidden &&
           spec_.head_dim <= 128 && model_.core[0].qkv.tiles() >= ctas &&
           model_.core[0].gate_up.tiles() >= ctas;
  }

  // A kernel for each operation needs matrices of at least a box of rows, and heads and rows of the
  // stream for which there is code. More chunks than CTAs are not split (SplitK), so that the row
  // operation would expect a single sum.
  bool AllowsWide() const {
    if (spec_.hidden > kProducerHidden || spec_.head_dim > 128) return false;
    return std::all_of(program_.wide.begin(), program_.wide.end(), [&](const WideMatrix& m) {
      return m.tiles * kTileRows >= kWideBoxes[kWideBoxSizes - 1] &&
             m.chunks <= schedulers_[0].ctas();
    });
  }

  // A sum over several chunks of k is computed by one CTA (split-K of 1), or every chunk is a
  // partial sum that the next row operation adds up. Split-K spreads the work better, and a CTA
  // needs the inputs of one chunk only. Small batches mostly do without it: the row operation,
  // which every CTA may do for itself, then has one sum to read, and the exchange can be used,
  // which is worth an uneven distribution.
  int SplitK(const DeviceMatrix& matrix, MatrixKind kind, bool small_batch) const {
    const int chunks = Ceil(matrix.ld / kBlockK, kWarps);
    if (kind != MatrixKind::kPartial || chunks == 1) return 1;
    const int ctas = schedulers_[0].ctas(), tiles = matrix.tiles();
    const bool even = 10 * tiles >= 9 * ctas * Ceil(tiles, ctas);
    return (small_batch && (even || AllowsLowLatency())) || chunks > ctas ? 1 : chunks;
  }

  // Whether every CTA may do a row operation for itself and keep the result as input of the matrix
  // that follows: the input must fit into the warps' registers at once. No barrier follows such an
  // operation, so that matrix must not write sums where other CTAs may still be reading theirs.
  static OpFlags ReplicateFor(const DeviceMatrix& matrix) {
    return matrix.ld <= kChunkK ? OpFlags(OpFlag::kReplicate) : OpFlags{};
  }

  // A matrix whose sums the row operation `next` adds up.
  void Partial(const DeviceMatrix& matrix, Activation input, Op& next) {
    Matrix(matrix, MatrixKind::kPartial, input);
    for (const int small_batch : {0, 1})
      next.chunks[small_batch] = SplitK(matrix, MatrixKind::kPartial, small_batch != 0);
  }

  void Attention(OpType type, const DeviceLayer& layer, OpFlags flags) {
    Op op{};
    op.type = type;
    op.flags = flags;
    op.layer = layer_;
    op.q_norm = layer.q_norm;
    op.k_norm = layer.k_norm;
    op.qk_bias = layer.qk_bias;
    program_.ops.push_back(op);
  }

  // The norm that ends a sublayer: of its output, or of the stream once that is added.
  void EndSublayer(const float* norm_out, Op& rows) const {
    if (spec_.norms == NormPlacement::kAfterSum) {
      LOOPSPEC_CHECK(rows.loop_norm == nullptr);
      rows.loop_norm = norm_out;
    } else {
      rows.post_norm = norm_out;
    }
  }

  // `after` is the row operation that ends the stack.
  void Layers(const std::vector<DeviceLayer>& layers, const Op& after) {
    for (layer_ = 0; layer_ < static_cast<int>(layers.size()); ++layer_) {
      const DeviceLayer& layer = layers[static_cast<size_t>(layer_)];
      const bool apart = spec_.qk_norm || spec_.qk_bias;  // rotated by an operation of their own
      Matrix(layer.qkv, apart ? MatrixKind::kQkvRaw : MatrixKind::kQkv, Activation::kHidden);
      program_.ops.back().q_norm = layer.q_norm;
      program_.ops.back().k_norm = layer.k_norm;
      if (apart) Attention(OpType::kFinishQk, layer, {});
      Attention(OpType::kAttention, layer, OpFlag::kSend);
      Attention(OpType::kCombine, layer, OpFlag::kSend);
      Op mid = Rows(RowSource::kAdd);
      Partial(layer.attn_out, Activation::kAttention, mid);
      mid.flags = ReplicateFor(layer.gate_up) | OpFlag::kSend;
      EndSublayer(layer.attn_norm_out, mid);
      mid.output = RowOutput::kNormed;
      mid.pre_norm = layer.mlp_norm_in;
      program_.ops.push_back(mid);
      Matrix(layer.gate_up, MatrixKind::kGateUp, Activation::kHidden);
      Op end = after;
      const size_t next = static_cast<size_t>(layer_) + 1;
      if (next < layers.size()) {
        end = Rows(RowSource::kAdd);
        end.flags = ReplicateFor(layers[next].qkv);
        end.output = RowOutput::kNormed;
        end.pre_norm = layers[next].attn_norm_in;
      }
      Partial(layer.down, Activation::kFeedForward, end);
      if (next < layers.size()) end.flags |= OpFlag::kSend;
      EndSublayer(layer.mlp_norm_out, end);
      program_.ops.push_back(end);
    }
    layer_ = 0;
  }

  const DeviceModel& model_;
  const ModelSpec& spec_;
  TileScheduler schedulers_[2];  // [small_batch]
  Program program_;
  std::vector<std::vector<MatrixShare>> assigned_[2];  // [small_batch]: [matrix][cta]
  int layer_ = 0;
};

}  // namespace

Program BuildProgram(const DeviceModel& model, int ctas) {
  return Builder(model, ctas).Build();
}

}  // namespace loopspec::cuda
