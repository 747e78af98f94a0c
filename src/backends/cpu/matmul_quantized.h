// Matrix products with weights of 8 or 4 bits.
//
// A row is rounded to 16-bit integers with one scale, X[i] = 256 hi[i] + lo[i], both digits int8.
// For each output and group of inputs the kernels sum code * hi and code * lo in int32: exact in
// any order, on any instruction set, however many rows there are. What follows is the same few
// float operations everywhere, in the order of the groups:
//
//   T   = fma(256, float(sum hi), float(sum lo))     sums of (code - center) * digit
//   acc = fma(scale, T, acc);  acc = fma(bias, float(group's X), acc) where there are biases
//   y   = acc * scale of the row
//
// So all instruction sets with fused multiply-add give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/cpu/matmul.h"
#include "backends/cpu/memory.h"
#include "tensor/quantized.h"

namespace loopspec::cpu {

inline constexpr int kQuantOutputs = 16;           // interleaved in a kernel's memory
inline constexpr int64_t kQuantSumStep = 16;       // inputs; groups are multiples of it
inline constexpr int64_t kQuantMaxInputs = 65536;  // of a group: int32 sums cannot overflow

// How a kernel wants its codes: for every 16 outputs [padded / inner][16][inner].
struct CodeLayout {
  int inner;     // consecutive inputs of an output
  bool nibbles;  // 4-bit codes: of two consecutive blocks of 16 x inner codes the first in the low
                 // halves of bytes, the second in the high ones; else a byte each
  bool is_signed;  // 8-bit codes are stored less 128, 4-bit ones less 8
};

// A matrix in a kernel's own layout.
struct QuantizedMatrix {
  int64_t out = 0, in = 0;
  int64_t padded = 0;              // inputs, with zeros after the last
  int64_t group = 0;               // inputs of a group; padded where there is one scale per output
  int bits = 8;                    // of a stored code
  int shift = 0;                   // what a stored code stands for: code - shift
  DType scale_type = DType::kF32;  // or kBF16, where no bit is lost
  const std::byte* codes = nullptr;   // block of 16 outputs after block
  const std::byte* scales = nullptr;  // [out / 16][groups][16]
  const std::byte* biases = nullptr;  // the same; null: none

  int64_t groups() const { return padded / group; }
  int64_t blocks() const { return (out + kQuantOutputs - 1) / kQuantOutputs; }
  int64_t block_bytes() const { return padded * kQuantOutputs * bits / 8; }
  int64_t table_bytes() const {  // scales of 16 outputs
    return groups() * kQuantOutputs * static_cast<int64_t>(SizeOf(scale_type));
  }
};

struct QuantizedKernel {
  MatMulKernel kernel;
  CodeLayout layout;
};

// The inputs that a row of `in` takes in every kernel.
inline int64_t PaddedInputs(int64_t in) {
  return (in + 63) / 64 * 64;
}

// Lays `from` out for a kernel in memory of its own. Throws Error where groups are of a size that
// no kernel has.
struct PackedQuantized {
  QuantizedMatrix matrix;
  LazyBuffer memory;
};
PackedQuantized PackQuantized(const QuantizedTensor& from, const CodeLayout& layout);

// The best of this machine, and all that it can run, the best first.
const QuantizedKernel& ChooseQuantized();
std::span<const QuantizedKernel* const> AllQuantized();

// ---- One function per instruction set; null where the build or the machine has none ----
const QuantizedKernel* AmxInt8Kernel();            // x86 TDPBSUD for many rows, VPDPBUSD for few
const QuantizedKernel* VnniKernel();               // x86 VPDPBUSD
const QuantizedKernel* Avx2Int16Kernel();          // x86 VPMADDWD
const QuantizedKernel* SmmlaKernel();              // Arm SMMLA
const QuantizedKernel* SdotKernel();               // Arm SDOT
const QuantizedKernel* PortableQuantizedKernel();  // everywhere, through Highway

}  // namespace loopspec::cpu
