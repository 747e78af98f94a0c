// Large matrix products on Hopper: out[rows, N] = in[rows, K] W^T, bf16 in, float32 sums, with what
// is done to the sums (rotation and pages, SwiGLU) before they leave the registers.
//
// Every sum is one chain of matrix instructions over k in steps of 16, from the first to the last,
// whatever the tile that it is in and the number of rows: no split over k. So a row's bits depend
// on that row alone, and the width of a tile can be chosen for speed.
#pragma once

#include "backends/cuda/host/device_model.h"
#include "backends/cuda/host/tensor_maps.h"
#include "backends/cuda/prefill/prefill_plan.h"

namespace loopspec::cuda {

inline constexpr int kGemmRows = 128;  // of a tile
inline constexpr int kGemmK = 64;      // of a stage
// Widths of tiles: columns of the output. 160 is for plain sums alone, since other results are
// stored by 64 columns; Huginn's 5,280 outputs are 33 such tiles.
inline constexpr int kGemmWidths[] = {128, 160, 192, 256};
inline constexpr int kGemmWidthCount = static_cast<int>(sizeof(kGemmWidths) / sizeof(int));

// A matrix of weights as the copy engine sees it: boxes of half a tile's width, or, of few bits,
// units of a tile's outputs (the first map; gemm_packed.h).
struct GemmWeights {
  DeviceMatrix matrix;
  TensorMap maps[kGemmWidthCount];
};
// An input [rows, ld]: boxes of kGemmRows rows.
struct GemmInput {
  TensorMap map;
};
GemmWeights DescribeWeights(const DeviceMatrix& matrix);
GemmInput DescribeInput(const bf16* in, int rows, int ld);

// How a product is launched.
struct GemmLaunch {
  int multiprocessors = 0;
  int width = 0;    // of the tiles, where the product has it; 0: the one that is likely fastest
  int cluster = 1;  // CTAs that share their weights; 1 or 2
  cudaStream_t stream = nullptr;
};

// Rows [first_row, first_row + rows) of the input.
struct GemmRows {
  int first_row = 0;
  int rows = 0;
};

// out: float32 [rows, ld], the first `outputs` columns; ld is a multiple of 4.
void GemmSums(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
              const GemmRows& rows, float* out, int outputs, int ld);
// Gate and up in pairs of eight (TileLayout): out, bf16 [rows, ld], is their SwiGLU.
void GemmSwiGlu(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
                const GemmRows& rows, bf16* out, int ld);
// Rotates q and k; q to its buffer, k and v to the rows' pages. head_dim is 64 or 128.
void GemmQkv(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
             const GemmRows& rows, const PromptBuffers& buffers, const PromptMemory& memory,
             int plane);

// The width that is taken for a product of this shape, a multiple of `step`.
int GemmWidth(const GemmLaunch& launch, int rows, int outputs, int step);

// Raises the limits on shared memory of the kernels for weights of one form; once for each device.
void PrepareGemm(WeightForm form);

}  // namespace loopspec::cuda
