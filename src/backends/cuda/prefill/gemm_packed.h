// The large products of prompts with weights of few bits, for gemm_hopper.cu: the same sums, chain
// by chain, as of these weights in bf16.
#pragma once

#include "backends/cuda/prefill/gemm_hopper.h"

namespace loopspec::cuda {

inline constexpr int kPackedGemmOutputs = 128;  // of a tile
// Heights of tiles: rows of the input, 64 to an accumulator's part that is stored at once.
inline constexpr int kPackedGemmRows[] = {128, 256};

// `Epilogue`: one of gemm_epilogue.cuh's. Instances are in a file for each form; kInt4 is for
// kInt4Bias too.
template <WeightForm kForm, typename Epilogue>
void RunPackedGemm(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
                   const GemmRows& rows, int outputs, const Epilogue& epilogue);
template <WeightForm kForm>
void PreparePackedGemm();

}  // namespace loopspec::cuda
