// A matrix stored in few bits, as files have it: codes in groups along the inputs, and for every
// output and group a scale and perhaps a bias:
//
//   w[o][i] = scale[o][g] * (code[o][i] - center) + bias[o][g],   g = i / group
//
// Every stored form is read through this one, a row at a time; nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace loopspec {

struct QuantizedTensor {
  // How the file has the codes.
  enum class Layout {
    kSigned8,  // int8, row-major: compressed-tensors
    kBytes,    // uint8, row-major: MLX 8 bit, compressed-tensors packed 8 bit
    kNibbles,  // two to a byte, the earlier one low, row-major: compressed-tensors, MLX 4 bit
    kQ8_0,     // blocks of llama.cpp, which hold their scales too
    kQ4_0,
    kQ4_K,
    kQ6_K,
  };
  // Numbers beside the codes, one for each group: [rows, groups].
  struct Table {
    const std::byte* data = nullptr;
    DType type = DType::kF32;

    float At(int64_t i) const { return LoadElement(data, type, i); }
  };

  Layout layout = Layout::kSigned8;
  int64_t rows = 0, columns = 0;
  int64_t group = 0;  // inputs of a group; divides columns
  const std::byte* codes = nullptr;
  Table scales, biases;  // not for llama.cpp's blocks; biases may be missing
  // Zero points instead of biases, w = scale * (code - center - zero): int8, or for kNibbles and
  // kBytes eight or four to an int32 along the outputs, plus center, as compressed-tensors has
  // them. May be missing.
  const std::byte* zeros = nullptr;
  // Rows of q and k that were interleaved for another rotary form, head by head: row j < d/2 of a
  // head lies at 2 j, row j + d/2 at 2 j + 1. 0: rows are where they belong.
  int64_t interleaved_heads = 0;
  size_t code_bytes = 0;    // of the codes, with llama.cpp's scales among them
  size_t stored_bytes = 0;  // and of all that lies beside them

  int64_t groups() const { return columns / group; }
  int bits() const { return layout == Layout::kNibbles || IsQ4() ? 4 : 8; }  // of a code
  int center() const;
  bool has_bias() const {
    return biases.data != nullptr || zeros != nullptr || layout == Layout::kQ4_K;
  }
  std::string_view name() const;  // for people: "int8", "int4", "Q4_K"
  // Forms that GPUs read as they are: int8 with a scale for each output; int4 in groups of 32, or
  // of multiples of 32, whose scale then stands beside each 32.
  static constexpr int kGpuInt4Group = 32;
  bool IsInt8OfOutputs() const {
    return (layout == Layout::kSigned8 || layout == Layout::kBytes) && groups() == 1 && !has_bias();
  }
  bool IsInt4OfGroups() const { return bits() == 4 && group % kGpuInt4Group == 0; }

  // Codes [columns] below 2^bits, scales and, if has_bias, biases [groups].
  void DecodeRow(int64_t row, uint8_t* codes_out, float* scales_out, float* biases_out) const;
  // The row's values, each rounded once: the reference. The second form allocates.
  struct Scratch {
    std::vector<uint8_t> codes;
    std::vector<float> scales, biases;
  };
  void DequantizeRow(int64_t row, float* out, Scratch& scratch) const;
  void DequantizeRow(int64_t row, float* out) const {
    Scratch scratch;
    DequantizeRow(row, out, scratch);
  }

 private:
  bool IsQ4() const { return layout == Layout::kQ4_0 || layout == Layout::kQ4_K; }
  int64_t StoredRow(int64_t row) const;
  int ZeroPoint(int64_t row, int64_t g) const;
};

// Bytes and elements of a block of llama.cpp's layouts; {0, 0} for the others.
struct BlockSize {
  int64_t bytes, elements;
};
BlockSize BlockOf(QuantizedTensor::Layout layout);

}  // namespace loopspec
