// Another program on the same GPU, for scripts/gpu-neighbours.py: it runs until it is killed.
//   gpu_neighbour busy     kernels that fill every multiprocessor, one after the other
//   gpu_neighbour memory   takes and frees memory, with a fill of each piece
#include <cstdio>
#include <cstring>
#include <random>

#include "backends/cuda/host/cuda_memory.h"

namespace loopspec::cuda {
namespace {

// A few milliseconds of multiply-adds.
__global__ void Multiply(float* out, int rounds) {
  float sum = static_cast<float>(threadIdx.x);
  for (int i = 0; i < rounds; ++i) sum = sum * 0.999f + 0.5f;
  out[size_t{blockIdx.x} * blockDim.x + threadIdx.x] = sum;
}

__global__ void Write(uint32_t* out, size_t count, uint32_t value) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    out[i] = value;
}

[[noreturn]] void Busy() {
  constexpr unsigned kBlocks = 4096, kThreads = 256;
  const Stream stream;
  const DeviceArray<float> out(size_t{kBlocks} * kThreads, "a neighbour");
  while (true) {
    for (int i = 0; i < 20; ++i)
      Multiply<<<kBlocks, kThreads, 0, stream.get()>>>(out.data(), 100'000);
    stream.Synchronize();
  }
}

[[noreturn]] void Memory() {
  const Stream stream;
  std::mt19937_64 random(1);
  while (true) {
    // Up to a sixteenth of what is free, so that others always find some.
    const size_t words = 1 + random() % (FreeMemory() / 64);
    const DeviceArray<uint32_t> piece(words, "a neighbour");
    Write<<<1024, 256, 0, stream.get()>>>(piece.data(), words, 0xFFFFFFFFu);
    stream.Synchronize();
  }
}

}  // namespace
}  // namespace loopspec::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "busy") == 0) loopspec::cuda::Busy();
  if (argc == 2 && std::strcmp(argv[1], "memory") == 0) loopspec::cuda::Memory();
  std::fputs("usage: gpu_neighbour busy|memory\n", stderr);
  return 2;
}
