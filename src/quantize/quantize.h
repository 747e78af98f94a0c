// Makes a model's matrices int8 or int4 and writes them as compressed-tensors, which vLLM and we
// read.
//
//   int8  one scale per output. Raven's adapter stays as it is: it is nearly diagonal, and alone
//         would cause most of the error.
//   int4  groups of 32 inputs; with texts by GPTQ, else rounded.
//
// Embedding and norms stay as they are; a head that was tied to the embedding gets weights of its
// own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "model/model.h"

namespace loopspec {

struct QuantizeRequest {
  std::filesystem::path source, output;     // folders
  int bits = 8;                             // or 4
  std::vector<std::vector<int32_t>> texts;  // for GPTQ
  double damping = 0.1;                     // of GPTQ, see gptq.h
  // Makes a CPU backend, for GPTQ.
  std::function<std::unique_ptr<Backend>(const Model&, const BackendOptions&)> make_backend;
  int threads = 0;  // of the arithmetic; 0 takes every usable core
  // Called as work is done: what, how much, of how much.
  std::function<void(const std::string& what, int64_t done, int64_t total)> progress;
};

struct QuantizeResult {
  int64_t matrices = 0;
  int64_t resumed = 0;                 // of them, taken from a run that was broken off
  size_t bytes = 0, source_bytes = 0;  // of all tensors
};

// Writes the folder: weights and config.json last, so that what is not whole does not load. A run
// that was broken off goes on with the matrices that are missing, and gives the same bytes. Throws
// Error.
QuantizeResult QuantizeModel(const Model& model, const QuantizeRequest& request);

}  // namespace loopspec
