// One matrix in few bits: rounded to nearest, or by GPTQ (Frantar et al., 2023).
#pragma once

#include <cstdint>
#include <vector>

namespace loopspec {

class ThreadPool;

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
// moments `hessian` [columns, columns] (sums of x x^T). `damping` times the mean of its diagonal is
// added to the diagonal first: the more, the nearer to rounding. Deterministic, with `pool` too.
QuantizedCodes GptqMatrix(const std::vector<float>& values, int64_t rows, int64_t columns,
                          int64_t group, int bits, const std::vector<float>& hessian,
                          double damping, ThreadPool* pool = nullptr);

}  // namespace loopspec
