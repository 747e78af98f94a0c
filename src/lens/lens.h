// A look inside: what every depth would have said at every position of a text, how sure it was, and
// how far its state was from where it ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/json_fwd.h"
#include "calibrate/exit_gate.h"

namespace loopspec {

// One position at one depth.
struct LensCell {
  std::vector<int32_t> tokens;       // the likeliest, in order
  std::vector<float> probabilities;  // theirs
  float entropy = 0;                 // of the next token, in bits
  float margin = 0;                  // between the two largest probabilities
  float divergence = 0;              // KL(last depth || this one), in bits
  float next = 0;                    // probability of the token that follows in the text
  float norm = 0;                    // of the state
  float cosine = 0;                  // between the state and the last depth's
  float exit = -1;                   // the exit gate's lambda, where the model has one
};

struct Lens {
  std::string kv_type;      // how keys and values were kept: "bf16", "int8"
  std::vector<int> depths;  // that were read out; R is the last
  std::vector<int32_t> tokens;
  int top = 0;                  // tokens of a cell
  std::vector<LensCell> cells;  // [position][depth]

  const LensCell& At(size_t position, size_t depth) const {
    return cells[position * depths.size() + depth];
  }
  // Index of the depth from which on the choice is that of the last depth.
  size_t Settled(size_t position) const;
};

// Reads `tokens` as one text at the backend's readout depths. `gate`: null, or the model's. Throws
// Error where the backend hands out no states, and where logits are no numbers. `before_part` is
// called every few positions; what it throws ends the reading.
Lens LookThrough(
    Backend& backend, std::span<const int32_t> tokens, int top, const ExitGate* gate,
    const std::function<void()>& before_part = [] {});

// `texts`: of the tokens, for people. `text_of`: of any token.
using TokenText = std::function<std::string(int32_t token)>;
OrderedJson LensJson(const Lens& lens, const TokenText& text_of);
// Arrays [positions, depths(, top)] for numpy.
void WriteLensNpz(const Lens& lens, const std::filesystem::path& path);
// Text on one axis, depth on the other.
std::string LensPage(const Lens& lens, const TokenText& text_of, const std::string& model);

}  // namespace loopspec
