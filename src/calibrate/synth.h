// Synthetic twins of the released models: checkpoints of their size and format with seeded random
// weights, for speed work where the real weights cannot be had. They say nothing; README.md and
// config.json ("loopspec_synthetic": true) of the folder tell so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace loopspec {

struct SynthRequest {
  std::string like;        // one of SynthNames()
  double agreement = 0.9;  // how often the first drafts should agree with the last depth, about
  int layers = 0;          // blocks of B; 0: as many as the released model has
  int width =
      0;  // of the residual stream, heads and feed-forward in proportion; 0: the model's own
  int vocab = 0;  // tokens; 0: as many as the released model has
  uint64_t seed = 0;
  std::filesystem::path
      output;  // a folder; made where it is missing, refused where it holds a model
  // Called as weights are written, with bytes. What it throws ends the writing.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

struct SynthResult {
  int files = 0;
  int tensors = 0;
  uint64_t bytes = 0;
  // How far the states of the first drafts' depth lie from those of the last, relative to their
  // size: what the agreement follows from.
  double shift = 0;
};

// How often the choice at each proposal depth was that of the last depth, as measured.
struct SynthAgreement {
  std::vector<int> depths;
  std::vector<double> shares;
  int positions = 0;
};

std::vector<std::string> SynthNames();

// Writes config.json, README.md, a tokenizer of bytes and the weights, a piece at a time: memory
// does not grow with the model. The shift is guessed from the agreement. Throws Error; what was
// written is removed then.
SynthResult WriteSynthetic(const SynthRequest& request);

// Changes the few tensors of a written twin that the shift is in. The folder must not be loaded
// meanwhile. Throws Error.
void RescaleSynthetic(const SynthRequest& request, double shift);

// Notes in the twin's README.md and config.json what was measured.
void NoteAgreement(const SynthRequest& request, const SynthAgreement& measured);

}  // namespace loopspec
