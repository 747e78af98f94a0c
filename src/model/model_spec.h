// What a looped transformer is, reduced to the facts the engine needs: the same few fields describe
// every family.
//
//   H0 = P(token)          prelude: embedding, then `prelude_layers` blocks
//   H  = B(H), R times     recurrence: [adapter,] `core_layers` blocks[, loop norm]
//   logits = C(H)          readout: `coda_layers` blocks[, final norm], head
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace loopspec {

// Where a block normalises: before its sublayers (Raven llama), after them (Raven olmo), or both
// (Ouro).
//   kPre       x += f(n1(x))
//   kPost      x += n2(f(x))
//   kSandwich  x += n2(f(n1(x)))
enum class NormPlacement { kPre, kPost, kSandwich };

struct RopeSpec {
  double theta = 10000.0;
  // llama3 scaling; off when factor is 0.
  double factor = 0.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_positions = 8192.0;
};

struct ModelSpec {
  std::string family;     // "ouro" or "raven"
  int hidden = 0;         // h: width of the residual stream
  int heads = 0;          // query heads
  int kv_heads = 0;       // key/value heads; divides heads
  int head_dim = 0;       // even
  int ff = 0;             // width of the SwiGLU
  int vocab = 0;          // rows of embedding and head
  int max_positions = 0;  // longest context the model was made for

  int prelude_layers = 0;  // blocks of P
  int core_layers = 0;     // blocks of B
  int coda_layers = 0;     // blocks of C
  int recurrence = 0;      // R

  NormPlacement norms = NormPlacement::kPre;
  bool qk_norm = false;     // RMSNorm over the whole q and k vectors (Raven olmo)
  bool loop_norm = false;   // RMSNorm at the end of B (Ouro)
  bool final_norm = false;  // RMSNorm before the head (Raven)
  bool adapter = false;     // B starts with a linear map of [state, e] (Raven)
  bool adapter_bias = false;
  bool tied_head = false;  // the head is the embedding
  double norm_eps = 1e-6;
  double embed_scale = 1.0;  // multiplies the embedding and the initial state
  double state_std = 0.0;    // of the truncated normal initial state; 0: all zeros (Raven)
  RopeSpec rope;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  // Inverse frequencies of the rotary embedding, head_dim / 2 of them.
  std::vector<double> RopeFrequencies() const;
};

using ConfigOverrides =
    std::vector<std::pair<std::string, std::string>>;  // --set key=value, dots descend

// Reads config.json of `folder`. `recurrence` > 0 replaces R. Throws Error naming the key for
// anything that is missing, out of range or not supported.
ModelSpec ReadModelSpec(const std::filesystem::path& folder, const ConfigOverrides& overrides = {},
                        int recurrence = 0);
// The same from the text of a config.json; `what` names it in errors.
ModelSpec ParseModelSpec(const std::string& config, const std::string& what,
                         const ConfigOverrides& overrides = {}, int recurrence = 0);

// Splits "key=value"; throws Error when there is no '='.
std::pair<std::string, std::string> ParseOverride(const std::string& text);

}  // namespace loopspec
