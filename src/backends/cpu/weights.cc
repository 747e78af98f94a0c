#include "backends/cpu/weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace loopspec::cpu {
namespace {

std::vector<float> Widen(const TensorView& view) {
  std::vector<float> values(view.empty() ? 0 : static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = LoadElement(view.data, view.dtype, static_cast<int64_t>(i));
  return values;
}

// Models up to this size get their matrices packed: a copy that memory hardly notices. Larger ones
// are read in place.
constexpr size_t kPackLimit = size_t{96} << 20;

class Preparer {
 public:
  Preparer(const Model& model, Weights& weights, const InputObserver& observer)
      : model_(model),
        weights_(weights),
        observer_(observer),
        small_(model.checkpoint.mapped_bytes() <= kPackLimit) {}

  Linear Prepare(const LinearWeights& from) {
    Linear linear;
    if (from.parts.empty()) return linear;
    linear.in = from.in();
    linear.out = from.out();
    linear.bias = Widen(from.bias);
    if (from.parts[0].quantized != nullptr) {
      PrepareQuantized(from, linear);
      Note(linear.kernel);
      weights_.matrix_bytes += linear.out * linear.row_bytes;
      return linear;
    }
    const DType dtype = weights_.bf16 ? DType::kBF16 : from.parts[0].dtype;
    linear.row_bytes = linear.in * static_cast<int64_t>(SizeOf(dtype));
    linear.kernel = &ChooseMatMul(dtype, weights_.bf16 ? DType::kBF16 : DType::kF32);
    Note(linear.kernel);
    for (const TensorView& part : from.parts) {
      if (part.quantized != nullptr || (part.dtype != dtype && !weights_.bf16)) FailMixed(from);
      linear.parts.push_back({part.dtype == dtype ? Aligned(part) : Round(part), part.shape[0]});
    }
    if (small_ && linear.kernel->pack_weights != nullptr) Pack(linear);
    weights_.matrix_bytes += linear.out * linear.row_bytes;
    if (observer_) Observe(from.parts[0].data, linear);
    return linear;
  }

  std::vector<Block> Prepare(const std::vector<BlockWeights>& stack) {
    std::vector<Block> blocks;
    for (const BlockWeights& from : stack) {
      blocks.push_back({Widen(from.attn_norm_in),
                        Widen(from.attn_norm_out),
                        Widen(from.mlp_norm_in),
                        Widen(from.mlp_norm_out),
                        Widen(from.q_norm),
                        Widen(from.k_norm),
                        Widen(from.qk_bias),
                        Prepare(from.qkv),
                        Prepare(from.attn_out),
                        Prepare(from.gate_up),
                        Prepare(from.down),
                        Prepare(from.router),
                        {}});
      for (const ExpertWeights& expert : from.experts)
        blocks.back().experts.push_back({Prepare(expert.gate_up), Prepare(expert.down)});
    }
    return blocks;
  }

 private:
  void Note(const MatMulKernel* kernel) {
    if (std::find(weights_.kernels.begin(), weights_.kernels.end(), kernel) ==
        weights_.kernels.end())
      weights_.kernels.push_back(kernel);
  }

  [[noreturn]] void FailMixed(const LinearWeights& from) const {
    std::string types;
    for (const TensorView& part : from.parts)
      types += fmt::format("{}{}", types.empty() ? "" : ", ", part.type_name());
    Fail("{}: the parts of a matrix that is applied as a whole are stored as {}, expected one type",
         model_.checkpoint.path().string(), types);
  }

  // Rows packed as float32 are read back: where each input lies shows when their indices are
  // packed.
  void Observe(const std::byte* key, Linear& linear) const {
    const MatMulKernel& kernel = *linear.kernel;
    LOOPSPEC_CHECK(kernel.row_block == 1 && kernel.element_bytes == 4 && !weights_.bf16);
    const auto k = static_cast<size_t>(linear.in);
    std::vector<float> index(k), packed(kernel.PackedBytes(1, linear.in) / sizeof(float));
    for (size_t i = 0; i < k; ++i) index[i] = static_cast<float>(i + 1);
    kernel.pack(reinterpret_cast<std::byte*>(packed.data()), 0, linear.in, 0, index.data(),
                linear.in);
    std::vector<size_t> place(k);
    for (size_t i = 0; i < packed.size(); ++i) {
      if (packed[i] > 0) place[static_cast<size_t>(packed[i]) - 1] = i;
    }
    linear.observe = [this_observer = observer_, key, place = std::move(place),
                      stride = packed.size()](const std::byte* rows_packed, int rows) {
      std::vector<float> row(place.size());
      const auto* from = reinterpret_cast<const float*>(rows_packed);
      for (int r = 0; r < rows; ++r, from += stride) {
        for (size_t i = 0; i < row.size(); ++i) row[i] = from[place[i]];
        this_observer(key, row);
      }
    };
  }

  void PrepareQuantized(const LinearWeights& from, Linear& linear) {
    const QuantizedKernel& kernel = ChooseQuantized();
    linear.kernel = &kernel.kernel;
    int64_t bytes = 0;
    for (const TensorView& part : from.parts) {
      if (part.quantized == nullptr) FailMixed(from);
      weights_.quantized.push_back(PackQuantized(*part.quantized, kernel.layout));
      const QuantizedMatrix& matrix = weights_.quantized.back().matrix;
      linear.parts.push_back({matrix.codes, matrix.out, &matrix});
      bytes += static_cast<int64_t>(weights_.quantized.back().memory.size());
      model_.checkpoint.Forget(
          {part.data, DType::kU8, {static_cast<int64_t>(part.quantized->code_bytes)}});
    }
    linear.row_bytes = bytes / linear.out;
  }

  // Parts must begin where a block of packed rows begins.
  void Pack(Linear& linear) {
    const MatMulKernel& kernel = *linear.kernel;
    for (const Linear::Part& part : linear.parts) {
      if (part.rows % kernel.grain != 0 || linear.in % kernel.k_block != 0) return;
    }
    for (Linear::Part& part : linear.parts) {
      std::byte* to = PackedRoom(kernel.packed_weight_bytes(part.rows, linear.in));
      kernel.pack_weights(part.data, part.rows, linear.in, to);
      part.data = to;
    }
    linear.shuffled = true;
  }

  // Matrices one after another in blocks large enough for large pages.
  std::byte* PackedRoom(size_t bytes) {
    constexpr size_t kBlock = size_t{32} << 20;
    if (weights_.packed.empty() || packed_used_ + bytes > weights_.packed.back().size()) {
      weights_.packed.emplace_back(std::max(bytes, kBlock));
      packed_used_ = 0;
    }
    std::byte* room = weights_.packed.back().data() + packed_used_;
    packed_used_ += (bytes + 63) / 64 * 64;
    return room;
  }

  // Where the file has it, unless the file packs it so tightly that elements lie across their own
  // alignment.
  const std::byte* Aligned(const TensorView& from) {
    if (reinterpret_cast<uintptr_t>(from.data) % SizeOf(from.dtype) == 0) return from.data;
    auto copy = std::make_unique<uint16_t[]>(from.bytes() / sizeof(uint16_t));
    std::memcpy(copy.get(), from.data, from.bytes());
    model_.checkpoint.Forget(from);
    weights_.converted.push_back(std::move(copy));
    return reinterpret_cast<const std::byte*>(weights_.converted.back().get());
  }

  // Piece by piece, so that no more of the file is in memory than one piece.
  const std::byte* Round(const TensorView& from) {
    constexpr int64_t kPiece = int64_t{1} << 22;
    auto copy = std::make_unique_for_overwrite<uint16_t[]>(static_cast<size_t>(from.elements()));
    for (int64_t at = 0; at < from.elements(); at += kPiece) {
      const int64_t end = std::min(at + kPiece, from.elements());
      if (from.dtype == DType::kF32) {
        for (int64_t i = at; i < end; ++i) {
          float value;
          std::memcpy(&value, from.data + i * 4, 4);
          copy[i] = FloatToBF16(value);
        }
      } else {
        for (int64_t i = at; i < end; ++i)
          copy[i] = FloatToBF16(LoadElement(from.data, from.dtype, i));
      }
      TensorView done = from;
      done.data = from.data + at * static_cast<int64_t>(SizeOf(from.dtype));
      done.shape = {end - at};
      model_.checkpoint.Forget(done);
    }
    weights_.converted.push_back(std::move(copy));
    return reinterpret_cast<const std::byte*>(weights_.converted.back().get());
  }

  const Model& model_;
  Weights& weights_;
  const InputObserver& observer_;
  const bool small_;
  size_t packed_used_ = 0;  // of the last block
};

// A small recurrence stays in the last-level cache from one round to the next.
void MarkCached(std::vector<Block>& core, Linear& adapter) {
  constexpr int64_t kCached = int64_t{8} << 20;
  std::vector<Linear*> matrices = {&adapter};
  for (Block& block : core) {
    for (Linear* matrix : {&block.qkv, &block.attn_out, &block.gate_up, &block.down})
      matrices.push_back(matrix);
    matrices.push_back(&block.router);
    for (Expert& expert : block.experts) {
      matrices.push_back(&expert.gate_up);
      matrices.push_back(&expert.down);
    }
  }
  int64_t bytes = 0;
  for (const Linear* matrix : matrices) bytes += matrix->out * matrix->row_bytes;
  for (Linear* matrix : matrices) matrix->from_memory = bytes > kCached;
}

}  // namespace

void Linear::Multiply(int64_t begin, int64_t end, const std::byte* packed, int rows, float* to,
                      int64_t stride, const std::byte* next) const {
  if (observe && begin == 0) observe(packed, rows);
  int64_t first = 0;  // output index of the part's first row
  for (const Part& part : parts) {
    const int64_t from = std::max(begin, first), until = std::min(end, first + part.rows);
    if (from < until && part.quantized != nullptr) {
      MatMulCall call{nullptr, until - from, in, packed, rows, to + (from - begin), stride};
      call.quantized = part.quantized;
      call.first = from - first;
      kernel->multiply(call);
    } else if (from < until) {
      (shuffled ? kernel->multiply_packed : kernel->multiply)(
          {part.data + (from - first) * row_bytes, until - from, in, packed, rows,
           to + (from - begin), stride, from_memory, until < end ? At(until) : next});
    }
    first += part.rows;
  }
}

const std::byte* Linear::At(int64_t begin) const {
  for (const Part& part : parts) {
    if (part.quantized != nullptr) return nullptr;  // its kernels fetch for themselves
    if (begin < part.rows) return part.data + begin * row_bytes;
    begin -= part.rows;
  }
  return nullptr;
}

ComputeMode ResolveCompute(const Model& model, ComputeMode wanted) {
  if (wanted != ComputeMode::kAuto) return wanted;
  const TensorView& head = model.weights.head.parts[0];
  const bool bf16 =
      head.quantized != nullptr || head.dtype == DType::kBF16 || model.spec.rounds_to_bf16;
  return bf16 && HasFastBF16() ? ComputeMode::kBF16 : ComputeMode::kF32;
}

size_t Weights::PackedBytes(int rows, int64_t k) const {
  size_t bytes = 0;
  for (const MatMulKernel* kernel : kernels) bytes = std::max(bytes, kernel->PackedBytes(rows, k));
  return bytes;
}

Weights::Weights(const Model& model, ComputeMode compute, const InputObserver& observer)
    : bf16(compute == ComputeMode::kBF16) {
  Preparer preparer(model, *this, observer);
  embedding = model.weights.embedding;
  if (!model.spec.tied_head) matrix_bytes = static_cast<int64_t>(embedding.bytes());
  prelude = preparer.Prepare(model.weights.prelude);
  core = preparer.Prepare(model.weights.core);
  coda = preparer.Prepare(model.weights.coda);
  adapter = preparer.Prepare(model.weights.adapter);
  update = preparer.Prepare(model.weights.update);
  MarkCached(core, adapter);
  head = preparer.Prepare(model.weights.head);
  step = Widen(model.weights.step);
  decay = Widen(model.weights.decay);
  prelude_norm = Widen(model.weights.prelude_norm);
  loop_norm = Widen(model.weights.loop_norm);
  final_norm = Widen(model.weights.final_norm);
}

}  // namespace loopspec::cpu
