// What a looped transformer is, reduced to the facts the engine needs: the same few fields describe
// every family.
//
//   e  = P(token)          prelude: embedding, then `prelude_layers` blocks[, prelude norm]
//   H  = B(H, e), R times  recurrence: [injection of e,] `core_layers` blocks[, loop norm]
//   logits = C(H)          readout: [norm,] `coda_layers` blocks[, final norm], head
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace loopspec {

// Where a block normalises: before its sublayers (Raven llama, Nanbeige), after them (Raven olmo),
// both (Ouro), or before them and once their output is added (Huginn).
//   kPre       x = x + f(n1(x))
//   kPost      x = x + n2(f(x))
//   kSandwich  x = x + n2(f(n1(x)))
//   kAfterSum  x = n2(x + f(n1(x)))
enum class NormPlacement { kPre, kPost, kSandwich, kAfterSum };

// How B mixes e, the output of P, into the state before its blocks.
//   kLinear      s = W [s, e] (+ bias)                        (Raven, Huginn, IFM)
//   kDiagonal    s = k + u with k = decay s, u = step (W e)   (IFM; decay and step per channel)
//   kOrthogonal  s = k - (k.u) / (u.u + eps) u + u            (IFM; k without its part along u)
// The last two need W once per token: u is the same in every recurrence.
enum class Injection { kNone, kLinear, kDiagonal, kOrthogonal };

// The state before the first recurrence.
//   kPrelude  e
//   kNormal   a truncated normal of deviation state_std, keyed by position; zeros where that is 0
//   kHashed   model/hashed_state.h
enum class StateStart { kPrelude, kNormal, kHashed };

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

// Rotary embedding: the base of its frequencies, and how they are stretched for contexts longer
// than the model was first trained on. Which fields count depends on the scaling.
struct RopeSpec {
  double theta = 10000.0;
  bool interleaved = false;  // pairs are (2i, 2i + 1) instead of (i, i + head_dim / 2)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                 // all of them
  double original_positions = 8192.0;  // llama3, yarn: the context before scaling
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // yarn: turns in the original context above which nothing changes, ...
  double beta_slow = 1.0;   // ... and below which a frequency is divided by the factor
  bool truncate = true;     // yarn: the bounds between them are whole dimensions
  double attention_factor = 1.0;  // yarn: multiplies cos and sin
};

struct ModelSpec {
  std::string family;     // "ouro", "nanbeige", "raven", "huginn" or "ifm"
  int hidden = 0;         // h: width of the residual stream
  int heads = 0;          // query heads
  int kv_heads = 0;       // key/value heads; divides heads
  int head_dim = 0;       // even
  int ff = 0;             // width of the SwiGLU, or of an expert's
  int vocab = 0;          // rows of embedding and head
  int max_positions = 0;  // longest context the model was made for

  int prelude_layers = 0;  // blocks of P
  int core_layers = 0;     // blocks of B
  int coda_layers = 0;     // blocks of C
  // A layer's feed-forward as a mixture (IFM): each row takes the `active_experts` that its router
  // scores highest. 0: a single one, without a router.
  int experts = 0, active_experts = 0;
  // Two states H and L (IFM): a recurrence is `low_cycles` times L = blocks(inject(L + H)), then
  // once H = blocks(inject(H + L)); C reads H. 0: one state.
  int low_cycles = 0;
  bool split_core = false;  // H has the first half of B's blocks, L the second; else both have all
  int core_repeats = 1;     // times that the blocks are gone through after one injection
  int recurrence = 0;       // R
  int trained_recurrence = 0;  // the config's own R, whatever runs here

  NormPlacement norms = NormPlacement::kPre;
  bool qk_norm = false;       // RMSNorm over the whole q and k vectors (Raven olmo)
  bool qk_bias = false;       // added to q and k before they are rotated (Huginn)
  bool prelude_norm = false;  // RMSNorm at the end of P (IFM)
  bool loop_norm = false;     // RMSNorm at the end of B (Ouro, Nanbeige, IFM)
  bool final_norm = false;    // RMSNorm before the head (Raven, Huginn, IFM)
  bool coda_norm = false;     // the same norm also before the blocks of C (Huginn)
  Injection injection = Injection::kNone;
  bool adapter_bias = false;    // kLinear
  double injection_eps = 1e-6;  // kOrthogonal
  StateStart start = StateStart::kPrelude;
  bool tied_head = false;  // the head is the embedding
  double norm_eps = 1e-6;
  double embed_scale = 1.0;  // multiplies the embedding and the initial state
  double state_std = 0.0;    // kNormal: of the initial state; 0: all zeros (Raven)
  RopeSpec rope;
  std::string weight_type;  // of the recurrence's matrices, for people and caches: "BF16", "int4"

  // Published in float32 and meant to run in bf16: matrices are rounded when they are loaded.
  bool rounds_to_bf16 = false;
  // Depths to draft at while no calibration says. Empty: none, since the model was not trained to
  // be read out before its last recurrence. Nothing: by a rule from R.
  std::optional<std::vector<int>> draft_depths;

  bool adapter() const { return injection == Injection::kLinear; }
  // Whether e, or what is made of it, is kept beside the state for the whole token.
  bool keeps_input() const { return injection != Injection::kNone || two_states(); }
  bool two_states() const { return low_cycles > 0; }
  // Calls of blocks in one recurrence, each of which has keys and values of its own.
  int core_calls() const {
    if (!two_states()) return core_layers;
    return (low_cycles + 1) * core_repeats * (split_core ? core_layers / 2 : core_layers);
  }
  // Whether u, the same in every recurrence, is made of e at the end of P.
  bool injects_update() const {
    return injection == Injection::kDiagonal || injection == Injection::kOrthogonal;
  }
  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  // Inverse frequencies of the rotary embedding, head_dim / 2 of them.
  std::vector<double> RopeFrequencies() const;
  // Of q k^T before the softmax: 1 / sqrt(head_dim), times the square of the rotary embedding's
  // attention factor, which would otherwise lengthen every query and key.
  double AttentionScale() const;
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
