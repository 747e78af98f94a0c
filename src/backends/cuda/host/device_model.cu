#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "backends/cuda/host/device_model.h"
#include "backends/cuda/host/transfers.h"
#include "backends/cuda/host/weight_packer.h"
#include "base/philox.h"

namespace loopspec::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;

// Hands out parts of the two arenas in a fixed order; the first run only counts.
class Arena {
 public:
  Arena() = default;
  Arena(std::byte* matrices, float* vectors) : matrices_(matrices), vectors_(vectors) {}

  DeviceMatrix Matrix(const TileLayout& layout, int cols, WeightForm form = WeightForm::kBF16) {
    DeviceMatrix m;
    m.rows = layout.rows();
    m.cols = cols;
    m.ld = PaddedK(cols);
    m.form = form;
    if (matrices_ != nullptr) {
      std::byte* at = matrices_ + matrix_bytes;
      if (m.packed()) {
        m.units = at;
      } else {
        m.data = reinterpret_cast<const bf16*>(at);
      }
    }
    matrix_bytes += m.bytes();  // a multiple of 256
    if (form == WeightForm::kInt8) m.scales = Vector(m.rows);
    return m;
  }
  const float* Vector(int size) {
    const float* v = vectors_ == nullptr ? nullptr : vectors_ + vector_elements;
    vector_elements += static_cast<size_t>((size + 3) / 4 * 4);
    return v;
  }

  size_t matrix_bytes = 0, vector_elements = 0;

 private:
  std::byte* matrices_ = nullptr;
  float* vectors_ = nullptr;
};

// In which form each matrix is kept: as its weights have it, or all alike where there are none.
class Forms {
 public:
  explicit Forms(WeightForm all) : all_(all) {}
  explicit Forms(const ModelWeights& weights) : weights_(&weights) {}

  WeightForm Of(const LinearWeights ModelWeights::*matrix) const {
    return weights_ == nullptr ? all_ : FormOf(weights_->*matrix);
  }
  WeightForm Of(const std::vector<BlockWeights> ModelWeights::*stack, size_t layer,
                const LinearWeights BlockWeights::*matrix) const {
    return weights_ == nullptr ? all_ : FormOf((weights_->*stack)[layer].*matrix);
  }

 private:
  WeightForm all_ = WeightForm::kBF16;
  const ModelWeights* weights_ = nullptr;
};

template <typename FormOfMatrix>
DeviceLayer LayOutLayer(const ModelSpec& spec, const FormOfMatrix& form, Arena& arena) {
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
  layer.qkv = arena.Matrix(TileLayout::Qkv(spec), spec.hidden, form(&BlockWeights::qkv));
  layer.attn_out =
      arena.Matrix(TileLayout::Plain(spec.hidden), spec.q_size(), form(&BlockWeights::attn_out));
  layer.gate_up = arena.Matrix(TileLayout::GateUp(spec), spec.hidden, form(&BlockWeights::gate_up));
  layer.down = arena.Matrix(TileLayout::Plain(spec.hidden), spec.ff, form(&BlockWeights::down));
  return layer;
}

void LayOut(const ModelSpec& spec, const Forms& forms, Arena& arena, DeviceModel& model) {
  const auto layers = [&](int count, const std::vector<BlockWeights> ModelWeights::*from,
                          std::vector<DeviceLayer>& stack) {
    const size_t before = arena.matrix_bytes;
    stack.clear();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const auto form = [&](const LinearWeights BlockWeights::*matrix) {
        return forms.Of(from, i, matrix);
      };
      stack.push_back(LayOutLayer(spec, form, arena));
    }
    return arena.matrix_bytes - before;
  };
  model.spec = spec;
  model.embedding = arena.Matrix(TileLayout::Plain(spec.vocab), spec.hidden);
  model.prelude_bytes = layers(spec.prelude_layers, &ModelWeights::prelude, model.prelude);
  model.core_bytes = layers(spec.core_layers, &ModelWeights::core, model.core);
  model.coda_bytes = layers(spec.coda_layers, &ModelWeights::coda, model.coda);
  if (spec.adapter()) {
    model.adapter = arena.Matrix(TileLayout::Plain(spec.hidden), 2 * spec.hidden,
                                 forms.Of(&ModelWeights::adapter));
    model.core_bytes += model.adapter.bytes();
    if (spec.adapter_bias) model.adapter_bias = arena.Vector(spec.hidden);
  }
  if (spec.injects_update()) {
    model.update =
        arena.Matrix(TileLayout::Plain(spec.hidden), spec.hidden, forms.Of(&ModelWeights::update));
    model.prelude_bytes += model.update.bytes();
    model.step = arena.Vector(spec.hidden);
    model.decay = arena.Vector(spec.hidden);
  }
  if (spec.prelude_norm) model.prelude_norm = arena.Vector(spec.hidden);
  if (spec.loop_norm) model.loop_norm = arena.Vector(spec.hidden);
  if (spec.final_norm) model.final_norm = arena.Vector(spec.hidden);
  model.head = spec.tied_head ? model.embedding
                              : arena.Matrix(TileLayout::Plain(spec.vocab), spec.hidden,
                                             forms.Of(&ModelWeights::head));
  model.coda_bytes += model.head.bytes();
}

DeviceModel Allocate(const ModelSpec& spec, const Forms& forms) {
  DeviceModel model;
  Arena count;
  LayOut(spec, forms, count, model);
  model.matrices = DeviceArray<std::byte>(count.matrix_bytes, "the model's weights", true);
  model.vectors = DeviceArray<float>(count.vector_elements, "the model's norms", true);
  Arena place(model.matrices.data(), model.vectors.data());
  LayOut(spec, forms, place, model);
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
    if (to.packed()) {
      Units(parts, layout, to);
      return;
    }
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
  // A matrix of few bits, some tiles at a time.
  void Units(const std::vector<TensorView>& parts, const TileLayout& layout,
             const DeviceMatrix& to) {
    WeightPacker packer(parts, layout, to);
    const size_t of_tile = to.bytes() / static_cast<size_t>(to.tiles());
    std::vector<float> scales(to.form == WeightForm::kInt8 ? static_cast<size_t>(to.rows) : 0);
    const int step = std::max(1, static_cast<int>(kStagingBytes / of_tile));
    for (int tile = 0; tile < to.tiles(); tile += step) {
      const int count = std::min(step, to.tiles() - tile);
      std::byte* out = Next();
      for (int i = 0; i < count; ++i) {
        const std::span<float> of =
            scales.empty()
                ? std::span<float>()
                : std::span(scales).subspan(static_cast<size_t>((tile + i) * kTileRows), kTileRows);
        packer.PackTile(tile + i, {out + static_cast<size_t>(i) * of_tile, of_tile}, of);
      }
      CopyToDevice(const_cast<std::byte*>(to.units) + static_cast<size_t>(tile) * of_tile, out,
                   static_cast<size_t>(count) * of_tile, stream_.get(), "the model's weights");
      Sent();
    }
    if (scales.empty()) return;
    auto* out = reinterpret_cast<float*>(Next());
    std::copy(scales.begin(), scales.end(), out);
    CopyToDevice(const_cast<float*>(to.scales), out, scales.size() * sizeof(float), stream_.get(),
                 "the model's weights");
    Sent();
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
    if (from.quantized != nullptr) {  // a form for which there are no kernels
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

// Random codes, and the scales of int4's groups. Elements that pad get codes too: their inputs are
// zero. `scale`: as it is stored.
__global__ void FillRandomUnits(DeviceMatrix m, size_t first, uint64_t seed, float scale) {
  const int unit_bytes = UnitBytes(m.form), code_bytes = UnitCodeBytes(m.form);
  const size_t begin = size_t{blockIdx.x} * static_cast<size_t>(unit_bytes);
  std::byte* unit = const_cast<std::byte*>(m.units) + begin;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < unit_bytes;
       i += static_cast<int>(blockDim.x) * 16) {
    // A bias is made of the same random number as its scale.
    const bool bias = i >= code_bytes + kUnitScaleBytes;
    const size_t place = first + begin + static_cast<size_t>(i - (bias ? kUnitScaleBytes : 0));
    const PhiloxBlock block = Philox4x32(
        {{static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), 0, 0}}, seed);
    for (int j = 0; j < 4; ++j) {
      const auto word = reinterpret_cast<uint32_t*>(unit + i) + j;
      if (i < code_bytes) {
        *word = block.v[j];
        continue;
      }
      // Half to one and a half times what is usual, around a code that is not quite the middle.
      const auto part = static_cast<float>(block.v[j] & 0xFFFF) * 0x1.0p-16f + 0.5f;
      const float times = bias ? -(kInt4Center - 0.75f) * kCodeStep : 1.0f;
      const __nv_bfloat162 two =
          __floats2bfloat162_rn(part * scale * times, (2.0f - part) * scale * times);
      *word = *reinterpret_cast<const uint32_t*>(&two);
    }
  }
}
__global__ void FillScales(float* scales, int count, float scale) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) scales[i] = scale * (1.0f + static_cast<float>(i % 7) * 0.05f);
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
  DeviceModel device = Allocate(model.spec, Forms(model.weights));
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

bool DeviceModel::packed() const {
  for (const auto* stack : {&prelude, &core, &coda}) {
    for (const DeviceLayer& layer : *stack) {
      if (layer.qkv.packed() || layer.attn_out.packed() || layer.gate_up.packed() ||
          layer.down.packed())
        return true;
    }
  }
  return head.packed() || adapter.packed() || update.packed();
}

DeviceModel DeviceModel::Random(const ModelSpec& spec, uint64_t seed, WeightForm form) {
  DeviceModel device = Allocate(spec, Forms(form));
  const Stream stream;
  // Sums of more terms get smaller ones, as trained models have it: with weights of one size a
  // model of Huginn's width multiplies every rounding at each layer
  // (docs/journal/cuda-decode-kernel.md says by how much), and two ways to compute the same row end
  // far apart.
  constexpr float kScale = 0.035f, kWidth = 2048.0f;
  struct Scaled {
    float* scales;
    int count;
    float step;
  };
  std::vector<Scaled> scaled;  // after the vectors are ones
  const auto fill = [&](const DeviceMatrix& m) {
    if (!m.there()) return;
    const auto width = static_cast<float>(m.cols);
    const float scale = width > kWidth ? kScale * std::sqrt(kWidth / width) : kScale;
    if (m.packed()) {
      const float step = scale / (m.form == WeightForm::kInt8 ? 128.0f : 8.0f) / kCodeStep;
      FillRandomUnits<<<static_cast<unsigned>(m.tiles() * (m.ld / kUnitK)), 64, 0, stream.get()>>>(
          m, static_cast<size_t>(m.units - device.matrices.data()), seed, step);
      if (m.scales != nullptr) {
        scaled.push_back({const_cast<float*>(m.scales), m.rows, step});
      }
      return;
    }
    const auto first =
        static_cast<size_t>(reinterpret_cast<const std::byte*>(m.data) - device.matrices.data()) /
        sizeof(bf16);
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
  for (const Scaled& s : scaled) {
    FillScales<<<static_cast<unsigned>((s.count + 255) / 256), 256, 0, stream.get()>>>(
        s.scales, s.count, s.step);
  }
  Check(cudaGetLastError(), "filling random weights");
  stream.Synchronize();
  return device;
}

}  // namespace loopspec::cuda
