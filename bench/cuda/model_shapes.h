// Shapes of the released models, for timing without their weights.
#pragma once

#include "model/model_spec.h"

namespace loopspec {

inline ModelSpec Ouro14() {
  ModelSpec spec;
  spec.family = "ouro";
  spec.hidden = 2048;
  spec.heads = spec.kv_heads = 16;
  spec.head_dim = 128;
  spec.ff = 5632;
  spec.vocab = 49152;
  spec.max_positions = 65536;
  spec.core_layers = 24;
  spec.recurrence = 4;
  spec.norms = NormPlacement::kSandwich;
  spec.loop_norm = true;
  spec.rope.theta = 1e6;
  return spec;
}

inline ModelSpec RavenLlama() {
  ModelSpec spec;
  spec.family = "raven";
  spec.hidden = 2048;
  spec.heads = 32;
  spec.kv_heads = 8;
  spec.head_dim = 64;
  spec.ff = 8192;
  spec.vocab = 128256;
  spec.max_positions = 8192;
  spec.prelude_layers = 4;
  spec.core_layers = 6;
  spec.coda_layers = 4;
  spec.recurrence = 32;
  spec.final_norm = true;
  spec.injection = Injection::kLinear;
  spec.start = StateStart::kNormal;
  spec.state_std = 0.02;
  spec.rope.theta = 5e5;
  return spec;
}

inline ModelSpec Nanbeige42() {
  ModelSpec spec;
  spec.family = "nanbeige";
  spec.hidden = 3072;
  spec.heads = 48;
  spec.kv_heads = 8;
  spec.head_dim = 128;
  spec.ff = 10752;
  spec.vocab = 166144;
  spec.max_positions = 262144;
  spec.core_layers = 22;
  spec.recurrence = 2;
  spec.loop_norm = true;
  spec.rope.theta = 7e7;
  return spec;
}

inline ModelSpec Huginn0125() {
  ModelSpec spec;
  spec.family = "huginn";
  spec.hidden = 5280;
  spec.heads = spec.kv_heads = 55;
  spec.head_dim = 96;
  spec.ff = 17920;
  spec.vocab = 65536;
  spec.max_positions = 4096;
  spec.prelude_layers = 2;
  spec.core_layers = 4;
  spec.coda_layers = 2;
  spec.recurrence = 32;
  spec.norms = NormPlacement::kAfterSum;
  spec.qk_bias = spec.final_norm = spec.coda_norm = spec.tied_head = true;
  spec.injection = Injection::kLinear;
  spec.start = StateStart::kNormal;
  spec.rope.interleaved = true;
  spec.state_std = 0.02;
  spec.rope.theta = 5e4;
  return spec;
}

}  // namespace loopspec
