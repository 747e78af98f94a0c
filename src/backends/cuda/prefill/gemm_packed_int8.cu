// Products of prompts with weights in int8.
#include "backends/cuda/prefill/gemm_packed.cuh"

LOOPSPEC_PACKED_GEMM(WeightForm::kInt8)
