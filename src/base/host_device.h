// Marks a function that the CPU and a CUDA kernel both run, so that tests on the CPU prove what the
// GPU executes.
#pragma once

#ifdef __CUDACC__
#define LOOPSPEC_HD __host__ __device__
#else
#define LOOPSPEC_HD
#endif
