#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "backends/cuda/host/device_model.h"
#include "backends/cuda/host/transfers.h"
#include "base/philox.h"

namespace loopspec::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;

// Hands out parts of the two arenas in a fixed order; the first run only counts.
class Arena {
 public:
  Arena() = default;
  Arena(bf16* matrices, float* vectors) : matrices_(matrices), vectors_(vectors) {}

  DeviceMatrix Matrix(const TileLayout& layout, int cols) {
    const int rows = layout.rows();
    DeviceMatrix m{matrices_ == nullptr ? nullptr : matrices_ + matrix_elements, rows, cols,
                   PaddedK(cols)};
    matrix_elements += static_cast<size_t>(rows) * static_cast<size_t>(m.ld);
    return m;
  }
  const float* Vector(int size) {
    const float* v = vectors_ == nullptr ? nullptr : vectors_ + vector_elements;
    vector_elements += static_cast<size_t>((size + 3) / 4 * 4);
    return v;
  }

  size_t matrix_elements = 0, vector_elements = 0;

 private:
  bf16* matrices_ = nullptr;
  float* vectors_ = nullptr;
};

DeviceLayer LayOutLayer(const ModelSpec& spec, Arena& arena) {
  DeviceLayer layer;
  if (spec.norms != NormPlacement::kPost) {
    layer.attn_norm_in = arena.Vector(spec.hidden);
    layer.mlp_norm_in = arena.Vector(spec.hidden);
  }
  if (spec.norms != NormPlacement::kPre) {
    layer.attn_norm_out = arena.Vector(spec.hidden);
    layer.mlp_norm_out = arena.Vector(spec.hidden);
  }
  if (spec.qk_bias) layer.qk_bias = arena.Vector(spec.q_size() + spec.kv_size());
  if (spec.qk_norm) {
    layer.q_norm = arena.Vector(spec.q_size());
    layer.k_norm = arena.Vector(spec.kv_size());
  }
  layer.qkv = arena.Matrix(TileLayout::Qkv(spec), spec.hidden);
  layer.attn_out = arena.Matrix(TileLayout::Plain(spec.hidden), spec.q_size());
  layer.gate_up = arena.Matrix(TileLayout::GateUp(spec), spec.hidden);
  layer.down = arena.Matrix(TileLayout::Plain(spec.hidden), spec.ff);
  return layer;
}

void LayOut(const ModelSpec& spec, Arena& arena, DeviceModel& model) {
  const auto layers = [&](int count, std::vector<DeviceLayer>& stack) {
    const size_t before = arena.matrix_elements;
    stack.clear();
    for (int i = 0; i < count; ++i) stack.push_back(LayOutLayer(spec, arena));
    return (arena.matrix_elements - before) * sizeof(bf16);
  };
  model.spec = spec;
  model.embedding = arena.Matrix(TileLayout::Plain(spec.vocab), spec.hidden);
  model.prelude_bytes = layers(spec.prelude_layers, model.prelude);
  model.core_bytes = layers(spec.core_layers, model.core);
  model.coda_bytes = layers(spec.coda_layers, model.coda);
  if (spec.adapter()) {
    model.adapter = arena.Matrix(TileLayout::Plain(spec.hidden), 2 * spec.hidden);
    model.core_bytes +=
        static_cast<size_t>(spec.hidden) * static_cast<size_t>(model.adapter.ld) * sizeof(bf16);
    if (spec.adapter_bias) model.adapter_bias = arena.Vector(spec.hidden);
  }
  if (spec.injects_update()) {
    model.update = arena.Matrix(TileLayout::Plain(spec.hidden), spec.hidden);
    model.prelude_bytes +=
        static_cast<size_t>(spec.hidden) * static_cast<size_t>(model.update.ld) * sizeof(bf16);
    model.step = arena.Vector(spec.hidden);
    model.decay = arena.Vector(spec.hidden);
  }
  if (spec.prelude_norm) model.prelude_norm = arena.Vector(spec.hidden);
  if (spec.loop_norm) model.loop_norm = arena.Vector(spec.hidden);
  if (spec.final_norm) model.final_norm = arena.Vector(spec.hidden);
  model.head =
      spec.tied_head ? model.embedding : arena.Matrix(TileLayout::Plain(spec.vocab), spec.hidden);
  model.coda_bytes +=
      static_cast<size_t>(spec.vocab) * static_cast<size_t>(model.head.ld) * sizeof(bf16);
}

DeviceModel Allocate(const ModelSpec& spec) {
  DeviceModel model;
  Arena count;
  LayOut(spec, count, model);
  model.matrices = DeviceArray<bf16>(count.matrix_elements, "the model's weights", true);
  model.vectors = DeviceArray<float>(count.vector_elements, "the model's norms", true);
  Arena place(model.matrices.data(), model.vectors.data());
  LayOut(spec, place, model);
  return model;
}

// Copies tensors to the device, one staging buffer being filled while the other travels.
class Uploader {
 public:
  Uploader() {
    for (auto& buffer : staging_) buffer = PinnedArray<std::byte>(kStagingBytes);
  }

  void Matrix(const std::vector<TensorView>& parts, const TileLayout& layout,
              const DeviceMatrix& to) {
    const int64_t step =
        std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / sizeof(bf16)) / to.cols);
    for (int64_t r = 0; r < to.rows; r += step) {
      const int64_t count = std::min<int64_t>(step, to.rows - r);
      auto* out = reinterpret_cast<uint16_t*>(Next());
      for (int64_t i = 0; i < count; ++i) {
        ConvertRow(parts, layout.Source(static_cast<int>(r + i)), to.cols, out + i * to.cols);
      }
      const size_t row_bytes = static_cast<size_t>(to.cols) * sizeof(bf16);
      CopyRowsToDevice(const_cast<bf16*>(to.data) + r * to.ld,
                       static_cast<size_t>(to.ld) * sizeof(bf16), out, row_bytes,
                       static_cast<size_t>(count), stream_.get(), "the model's weights");
      Sent();
    }
  }
  void Vector(const TensorView& from, const float* to) {
    if (from.empty() || to == nullptr) return;
    auto* out = reinterpret_cast<float*>(Next());
    for (int64_t i = 0; i < from.elements(); ++i) out[i] = LoadElement(from.data, from.dtype, i);
    CopyToDevice(const_cast<float*>(to), out, static_cast<size_t>(from.elements()) * sizeof(float),
                 stream_.get(), "the model's norms");
    Sent();
  }
  // The biases of q and k, in the order in which the tiles have a head's elements.
  void QkBias(const TensorView& from, const ModelSpec& spec, const float* to) {
    if (from.empty() || to == nullptr) return;
    auto* out = reinterpret_cast<float*>(Next());
    const int dim = spec.head_dim, half = dim / 2;
    for (int64_t i = 0; i < from.elements(); ++i) {
      const int64_t head = i / dim, element = i % dim;
      const int64_t at = spec.rope.interleaved ? head * dim + element % 2 * half + element / 2 : i;
      out[at] = LoadElement(from.data, from.dtype, i);
    }
    CopyToDevice(const_cast<float*>(to), out, static_cast<size_t>(from.elements()) * sizeof(float),
                 stream_.get(), "the model's biases");
    Sent();
  }
  void Finish() { stream_.Synchronize(); }

 private:
  std::byte* Next() {
    current_ ^= 1;
    Check(cudaEventSynchronize(sent_[current_].get()), "copying weights to the GPU");
    return staging_[current_].data();
  }
  void Sent() {
    Check(cudaEventRecord(sent_[current_].get(), stream_.get()), "copying weights to the GPU");
  }

  // Row `row` of the parts stacked up; zeros for padding.
  static void ConvertRow(const std::vector<TensorView>& parts, int64_t row, int64_t cols,
                         uint16_t* out) {
    if (row < 0) {
      std::fill_n(out, cols, uint16_t{0});
      return;
    }
    size_t part = 0;
    while (row >= parts[part].shape[0]) row -= parts[part++].shape[0];
    const TensorView& from = parts[part];
    if (from.quantized != nullptr) {  // once, here: the kernels have bf16 weights
      std::vector<float> values(static_cast<size_t>(cols));
      from.quantized->DequantizeRow(row, values.data());
      for (int64_t i = 0; i < cols; ++i) out[i] = FloatToBF16(values[static_cast<size_t>(i)]);
      return;
    }
    if (from.dtype == DType::kBF16) {
      std::memcpy(out, from.data + row * cols * 2, static_cast<size_t>(cols) * 2);
      return;
    }
    for (int64_t i = 0; i < cols; ++i)
      out[i] = FloatToBF16(LoadElement(from.data, from.dtype, row * cols + i));
  }

  Stream stream_;
  PinnedArray<std::byte> staging_[2];
  Event sent_[2];
  int current_ = 0;
};

// Uniform in [-scale, scale]: the cost of a step does not depend on the values, but NaN or zeros
// would hide mistakes. `out` begins at element `first` of all weights, a multiple of four.
__global__ void FillRandom(bf16* out, size_t first, size_t count, uint64_t seed, float scale) {
  const size_t stride = size_t{gridDim.x} * blockDim.x * 4;
  for (size_t i = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4; i < count; i += stride) {
    const size_t at = first + i;
    const PhiloxBlock block =
        Philox4x32({{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0}}, seed);
    for (size_t j = 0; j < 4 && i + j < count; ++j) {
      out[i + j] = __float2bfloat16((static_cast<float>(block.v[j]) * 0x1.0p-31f - 1.0f) * scale);
    }
  }
}

__global__ void ClearPadding(DeviceMatrix m) {
  bf16* row = const_cast<bf16*>(m.data) + static_cast<size_t>(blockIdx.x) * m.ld;
  for (int i = m.cols + static_cast<int>(threadIdx.x); i < m.ld; i += blockDim.x)
    row[i] = __float2bfloat16(0.0f);
}

__global__ void FillOnes(float* out, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 1.0f;
}

}  // namespace

DeviceModel DeviceModel::Load(const Model& model) {
  DeviceModel device = Allocate(model.spec);
  Uploader up;
  const ModelWeights& weights = model.weights;
  const ModelSpec& spec = model.spec;
  const TileLayout plain = TileLayout::Plain(spec.hidden), words = TileLayout::Plain(spec.vocab);
  up.Matrix({weights.embedding}, words, device.embedding);
  const auto layers = [&](const std::vector<BlockWeights>& from,
                          const std::vector<DeviceLayer>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      up.Vector(from[i].attn_norm_in, to[i].attn_norm_in);
      up.Vector(from[i].attn_norm_out, to[i].attn_norm_out);
      up.Vector(from[i].mlp_norm_in, to[i].mlp_norm_in);
      up.Vector(from[i].mlp_norm_out, to[i].mlp_norm_out);
      up.Vector(from[i].q_norm, to[i].q_norm);
      up.Vector(from[i].k_norm, to[i].k_norm);
      up.QkBias(from[i].qk_bias, spec, to[i].qk_bias);
      up.Matrix(from[i].qkv.parts, TileLayout::Qkv(spec), to[i].qkv);
      up.Matrix(from[i].attn_out.parts, plain, to[i].attn_out);
      up.Matrix(from[i].gate_up.parts, TileLayout::GateUp(spec), to[i].gate_up);
      up.Matrix(from[i].down.parts, plain, to[i].down);
    }
  };
  layers(weights.prelude, device.prelude);
  layers(weights.core, device.core);
  layers(weights.coda, device.coda);
  if (spec.adapter()) up.Matrix(weights.adapter.parts, plain, device.adapter);
  up.Vector(weights.adapter.bias, device.adapter_bias);
  if (spec.injects_update()) up.Matrix(weights.update.parts, plain, device.update);
  up.Vector(weights.step, device.step);
  up.Vector(weights.decay, device.decay);
  up.Vector(weights.prelude_norm, device.prelude_norm);
  up.Vector(weights.loop_norm, device.loop_norm);
  up.Vector(weights.final_norm, device.final_norm);
  if (!spec.tied_head) up.Matrix(weights.head.parts, words, device.head);
  up.Finish();
  return device;
}

DeviceModel DeviceModel::Random(const ModelSpec& spec, uint64_t seed) {
  DeviceModel device = Allocate(spec);
  const Stream stream;
  // Sums of more terms get smaller ones, as trained models have it: with weights of one size a
  // model of Huginn's width multiplies every rounding at each layer
  // (docs/journal/cuda-decode-kernel.md says by how much), and two ways to compute the same row end
  // far apart.
  constexpr float kScale = 0.035f, kWidth = 2048.0f;
  const auto fill = [&](const DeviceMatrix& m) {
    if (m.data == nullptr) return;
    const auto width = static_cast<float>(m.cols);
    const float scale = width > kWidth ? kScale * std::sqrt(kWidth / width) : kScale;
    const auto first = static_cast<size_t>(m.data - device.matrices.data());
    FillRandom<<<1024, 256, 0, stream.get()>>>(
        const_cast<bf16*>(m.data), first, static_cast<size_t>(m.rows) * static_cast<size_t>(m.ld),
        seed, scale);
    if (m.cols < m.ld) ClearPadding<<<static_cast<unsigned>(m.rows), 64, 0, stream.get()>>>(m);
  };
  for (const DeviceMatrix& m : {device.embedding, device.head, device.adapter, device.update})
    fill(m);
  for (const auto* stack : {&device.prelude, &device.core, &device.coda}) {
    for (const DeviceLayer& layer : *stack) {
      for (const DeviceMatrix& m : {layer.qkv, layer.attn_out, layer.gate_up, layer.down}) fill(m);
    }
  }
  const size_t n = device.vectors.size();
  if (n > 0) {
    FillOnes<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream.get()>>>(
        device.vectors.data(), n);
  }
  Check(cudaGetLastError(), "filling random weights");
  stream.Synchronize();
  return device;
}

}  // namespace loopspec::cuda
