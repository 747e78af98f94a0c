// Models of many shapes for tests of the decode kernel's program, which need no GPU.
#pragma once

#include <initializer_list>
#include <random>

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

inline DeviceMatrix Matrix(int rows, int cols) {
  DeviceMatrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.ld = PaddedK(cols);
  return matrix;
}

// Shapes alone: a program never looks at the weights.
inline DeviceModel ShapesOf(const ModelSpec& spec) {
  DeviceModel model;
  model.spec = spec;
  DeviceLayer block;
  block.qkv = Matrix(TileLayout::Qkv(spec).rows(), spec.hidden);
  block.attn_out = Matrix(TileLayout::Plain(spec.hidden).rows(), spec.q_size());
  block.gate_up = Matrix(TileLayout::GateUp(spec).rows(), spec.hidden);
  block.down = Matrix(TileLayout::Plain(spec.hidden).rows(), spec.ff);
  model.prelude.assign(static_cast<size_t>(spec.prelude_layers), block);
  model.core.assign(static_cast<size_t>(spec.core_layers), block);
  model.coda.assign(static_cast<size_t>(spec.coda_layers), block);
  model.head = Matrix(TileLayout::Plain(spec.vocab).rows(), spec.hidden);
  if (spec.adapter())
    model.adapter = Matrix(TileLayout::Plain(spec.hidden).rows(), 2 * spec.hidden);
  if (spec.injects_update())
    model.update = Matrix(TileLayout::Plain(spec.hidden).rows(), spec.hidden);
  return model;
}

inline ModelSpec RandomSpec(std::mt19937& random) {
  const auto among = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  ModelSpec spec;
  spec.hidden = among({64, 256, 320, 384, 1024, 2048, 3072, 4096, 5280});
  spec.head_dim = among({32, 64, 80, 96, 128});
  spec.kv_heads = among({1, 2, 8, 16});
  spec.heads = spec.kv_heads * among({1, 2, 4, 6});
  spec.ff = among({96, 704, 1000, 5632, 8192, 11008});
  spec.vocab = among({3, 777, 8192, 49152});
  spec.core_layers = among({1, 2, 6});
  spec.recurrence = 4;
  spec.norms = NormPlacement::kSandwich;
  spec.family = "ouro";
  if (random() % 2 == 0) {
    spec.family = "raven";
    spec.injection = Injection::kLinear;
    spec.start = StateStart::kNormal;
    spec.prelude_layers = among({1, 2});
    spec.coda_layers = among({1, 2});
    constexpr NormPlacement kNorms[] = {NormPlacement::kPre, NormPlacement::kPost,
                                        NormPlacement::kAfterSum};
    spec.norms = kNorms[random() % 3];
    spec.qk_norm = spec.norms == NormPlacement::kPost;
    spec.qk_bias = spec.norms == NormPlacement::kAfterSum;
  }
  if (spec.family == "raven" && random() % 3 == 0) {
    spec.family = "ifm";
    spec.injection = random() % 2 == 0 ? Injection::kDiagonal : Injection::kOrthogonal;
    spec.start = StateStart::kHashed;
    spec.prelude_layers = among({0, 1, 2});
    spec.norms = NormPlacement::kPre;
    spec.qk_norm = spec.qk_bias = false;
  }
  return spec;
}

}  // namespace loopspec::cuda
