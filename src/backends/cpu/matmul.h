// Matrix products of the CPU backend: y = W x for many rows x at once.
//
// The weights are the long side and are read once, straight from the mapped checkpoint; a tile of
// them stays in registers while every row is multiplied with it. A kernel wants its rows packed in
// a layout of its own; packing is also where activations are rounded. Each (output, row) pair has
// one accumulator filled in one fixed order, so a row's result does not depend on how many rows
// come with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace loopspec::cpu {

struct QuantizedMatrix;  // matmul_quantized.h

struct MatMulCall {
  const std::byte* weights;  // row `begin` of W: `count` rows of `k` elements, back to back
  int64_t count;             // outputs
  int64_t k;                 // inputs
  const std::byte* packed;   // rows packed for this kernel
  int rows;
  float* out;  // out[row * out_stride + i] for i in [0, count)
  int64_t out_stride;
  // True for weights too many to stay in a cache from one use to the next: worth fetching from far
  // ahead, and on into `next`, those that the same thread will read afterwards, if known.
  bool from_memory = false;
  const std::byte* next = nullptr;
  // Weights of few bits instead of `weights`, from output `first` on: any, not only a multiple of
  // the grain.
  const QuantizedMatrix* quantized = nullptr;
  int64_t first = 0;
};

struct MatMulKernel {
  const char* name;   // what it runs on, for people
  int row_block;      // packed rows come in blocks of this many
  int k_block;        // and are padded to a multiple of this many inputs, with zeros
  int element_bytes;  // of a packed element
  int grain;          // outputs are shared out to threads in multiples of this

  // Packs inputs [k_begin, k_begin + count) of one row; pads with zeros after the last input.
  // k_begin is a multiple of k_block.
  void (*pack)(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
               int64_t count);
  void (*multiply)(const MatMulCall& call);

  // Where shuffling weights costs time, small matrices may be shuffled once at load; null
  // elsewhere. The same sums come out. Calls then start at a multiple of `grain` and pass the
  // packed address of that row.
  void (*pack_weights)(const std::byte* weights, int64_t rows, int64_t k,
                       std::byte* packed) = nullptr;
  size_t (*packed_weight_bytes)(int64_t rows, int64_t k) = nullptr;
  void (*multiply_packed)(const MatMulCall& call) = nullptr;

  // A kernel for weights of few bits rounds a row with one scale, so `pack` must be given the whole
  // row. Pieces are kept aside by `stage`, and `finish` packs them once all are there. Null
  // elsewhere.
  void (*stage)(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
                int64_t count) = nullptr;
  void (*finish)(std::byte* packed, int row, int64_t k) = nullptr;
  int64_t (*packed_row_bytes)(int64_t k) = nullptr;

  // A piece of a row, for either kind of kernel; the second kind needs `finish`.
  void PackPiece(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
                 int64_t count) const {
    (stage != nullptr ? stage : pack)(packed, row, k, k_begin, values, count);
  }
  size_t PackedBytes(int rows, int64_t k) const {
    const int64_t padded_rows = (rows + row_block - 1) / row_block * row_block;
    if (packed_row_bytes != nullptr) return static_cast<size_t>(padded_rows * packed_row_bytes(k));
    const int64_t padded_k = (k + k_block - 1) / k_block * k_block;
    return static_cast<size_t>(padded_rows * padded_k * element_bytes);
  }
};

// The best kernel of this machine for weights of `weights` and activations of `activations` (kF32
// or kBF16; bf16 activations go with bf16 weights).
const MatMulKernel& ChooseMatMul(DType weights, DType activations);

// Every kernel of the build that this machine can run for these types, the best first: for tests
// and benchmarks.
std::span<const MatMulKernel* const> AllMatMuls(DType weights, DType activations);

// True where bf16 products run on instructions made for them.
bool HasFastBF16();

// ---- One function per instruction set; null where the build or the machine has none ----
const MatMulKernel* BfmmlaKernel();                                   // Arm BFMMLA
const MatMulKernel* Avx512Bf16Kernel();                               // x86 VDPBF16PS
const MatMulKernel* AmxKernel();                                      // x86 TDPBF16PS
const MatMulKernel* HighwayKernel(DType weights, DType activations);  // everywhere

}  // namespace loopspec::cpu
