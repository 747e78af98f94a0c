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
#include <string>
#include <vector>

#include "calibrate/agreement.h"
#include "model/model.h"

namespace loopspec {

class ThreadPool;

struct QuantizeRequest {
  std::filesystem::path source, output;     // folders
  int bits = 8;                             // or 4
  std::vector<std::vector<int32_t>> texts;  // for GPTQ
  BackendMaker make_backend;                // a CPU backend, for GPTQ
  int threads = 0;                          // of the arithmetic; 0 takes every usable core
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

// What quantization changed, over texts read at the readout depths of the backends.
struct QuantizeReport {
  int64_t positions = 0;
  double source_perplexity = 0, perplexity = 0;  // of the texts' own next tokens, at the last depth
  double distance = 0;      // mean total variation distance from the source, at the last depth
  double agreed = 0;        // share of positions with the source's likeliest token
  std::vector<int> depths;  // proposal depths
  std::vector<double> source_accepted, accepted;  // share whose likeliest token is the last depth's
  // R over the mean depth at which a token of greedy decoding is accepted: the first proposal depth
  // with the last depth's likeliest token, else R.
  double source_gamma = 0, gamma = 0;
};
QuantizeReport CompareModels(Backend& source, Backend& quantized,
                             const std::vector<std::vector<int32_t>>& texts,
                             const std::function<void(int64_t done, int64_t total)>& progress);

// One matrix [rows, columns] of values, quantized. Pure; for tests too.
struct QuantizedCodes {
  std::vector<int8_t> codes;     // [rows, columns]
  std::vector<uint16_t> scales;  // bf16, [rows, columns / group]
};
// Rounded to nearest, symmetric: 8 bits from -127 to 127, 4 bits from -8 to 7. 4-bit scales are
// those of the least squared error among a few.
QuantizedCodes RoundMatrix(const std::vector<float>& values, int64_t rows, int64_t columns,
                           int64_t group, int bits, ThreadPool* pool = nullptr);
// GPTQ: inputs in order, each one's error spread over those not yet rounded, by the inputs' second
// moments `hessian` [columns, columns] (sums of x x^T; damped here). Deterministic, with `pool`
// too.
QuantizedCodes GptqMatrix(const std::vector<float>& values, int64_t rows, int64_t columns,
                          int64_t group, int bits, const std::vector<float>& hessian,
                          ThreadPool* pool = nullptr);

}  // namespace loopspec
