#include "tests/backends/cuda/instruction_check.h"

#include <cstddef>

#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/host/transfers.h"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

constexpr int kK = 256, kOutputs = 64, kBoxK = 64;  // kBoxK: elements of a swizzled row

__device__ uint32_t Hash(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352D;
  x = (x ^ x >> 15) * 0x846CA68B;
  return x ^ x >> 16;
}

// The bits of a bf16.
__device__ uint16_t Element(uint32_t seed, Operands operands) {
  const uint32_t hash = Hash(seed), rest = hash >> 9;
  const uint32_t sign = hash & 1;
  uint32_t fraction = hash >> 1 & 127, exponent = 127;
  switch (operands) {
    case Operands::kNearOne:
      exponent = 127 - min(__clz(static_cast<int>(Hash(hash) | 1)), 17);
      break;
    case Operands::kFortyBinades:
      exponent = 107 + rest % 41;
      break;
    case Operands::kEightyBinades:
      exponent = 87 + rest % 81;
      break;
    case Operands::kTinyProducts:
      exponent = 64 + rest % 3;
      break;
    case Operands::kAllSmall:
      exponent = 1 + rest % 125;
      break;
    case Operands::kSmallIntegers:
      fraction &= 3;
      break;
    case Operands::kZeros:
      exponent = fraction = 0;
      break;
  }
  return static_cast<uint16_t>(sign << 15 | exponent << 7 | fraction);
}

// The operands of one CTA: kOutputs x kK weights, kRows x kK inputs.
template <int kRows>
class Problem {
 public:
  static constexpr int kWeightBytes = kOutputs * kK * 2, kInputBytes = kRows * kK * 2;
  static constexpr int kSharedBytes = kWeightBytes + kInputBytes + 1024;

  __device__ Problem(uint32_t seed, Operands operands) : seed_(seed), operands_(operands) {}
  __device__ uint16_t Weight(int output, int k) const {
    return Element(seed_ + static_cast<uint32_t>(output * kK + k), operands_);
  }
  __device__ uint16_t Input(int row, int k) const {
    return Element(seed_ + 0x10000000 + static_cast<uint32_t>(row * kK + k), operands_);
  }
  // Two neighbours of k, as mma.sync takes them.
  __device__ uint32_t Weights(int output, int k) const {
    return Weight(output, k) | static_cast<uint32_t>(Weight(output, k + 1)) << 16;
  }
  __device__ uint32_t Inputs(int row, int k) const {
    return Input(row, k) | static_cast<uint32_t>(Input(row, k + 1)) << 16;
  }
  // What sum i of this thread begins with.
  __device__ float Begin(int i) const {
    const uint32_t at = seed_ + static_cast<uint32_t>(i) * kWarpgroup + threadIdx.x;
    const uint32_t bits = static_cast<uint32_t>(Element(at + 0x20000000, operands_)) << 16;
    return (Hash(at) & 3) == 0 ? __uint_as_float(bits) * 1.37f : 0.0f;
  }
  // Writes both operands to shared memory as the copy engine would.
  __device__ void Fill(std::byte* to) const {
    const auto place = [&](int rows, int row, int k) {
      return k / kBoxK * rows * 128 + row * 128 + (k % kBoxK / 8 ^ row % 8) * 16 + k % 8 * 2;
    };
    for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kK; i += kWarpgroup) {
      *reinterpret_cast<uint16_t*>(to + place(kOutputs, i / kK, i % kK)) = Weight(i / kK, i % kK);
    }
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kK; i += kWarpgroup) {
      *reinterpret_cast<uint16_t*>(to + kWeightBytes + place(kRows, i / kK, i % kK)) =
          Input(i / kK, i % kK);
    }
  }

 private:
  uint32_t seed_;
  Operands operands_;
};

// `differing`: one count for all CTAs.
template <int kRows>
__global__ void __launch_bounds__(kWarpgroup)
    CheckKernel(uint32_t seed, Operands operands, bool begin, unsigned long long* differing) {
  extern __shared__ std::byte memory[];
  const uint32_t shared = (SharedAddress(memory) + 1023) & ~1023u;
  const Problem<kRows> problem(Hash(seed * 7919 + blockIdx.x), operands);
  problem.Fill(memory + (shared - SharedAddress(memory)));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();

  float sums[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[i] = begin ? problem.Begin(i) : 0.0f;
  PinSums(sums);
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    const uint32_t box = static_cast<uint32_t>(step * 16 / kBoxK);
    const uint64_t next = static_cast<uint64_t>(step * 16 % kBoxK / 16) * kNextK;
    MultiplyShared(sums, DescribeByRows(shared + box * (kOutputs * 128)) + next,
                   DescribeByRows(shared + problem.kWeightBytes + box * (kRows * 128)) + next,
                   begin || step > 0);
  }
  CommitProducts();
  WaitForProducts<0>();
  PinSums(sums);

  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4,
            output = static_cast<int>(threadIdx.x) / 32 * 16 + g;
  unsigned long long bad = 0;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    float c[4];
    for (int e = 0; e < 4; ++e) c[e] = begin ? problem.Begin(4 * j + e) : 0.0f;
#pragma unroll 1
    for (int k = 2 * t; k < kK; k += 16) {
      Mma(c, problem.Weights(output, k), problem.Weights(output + 8, k),
          problem.Weights(output, k + 8), problem.Weights(output + 8, k + 8),
          problem.Inputs(8 * j + g, k), problem.Inputs(8 * j + g, k + 8));
    }
    for (int e = 0; e < 4; ++e) bad += __float_as_uint(c[e]) != __float_as_uint(sums[4 * j + e]);
  }
  if (bad != 0) atomicAdd(differing, bad);
}

template <int kRows>
InstructionCheck Compare(Operands operands, bool begin, uint32_t seed) {
  constexpr int kCtas = 1024, kShared = Problem<kRows>::kSharedBytes;
  DeviceArray<unsigned long long> differing(1, "a test", true);
  Check(cudaFuncSetAttribute(CheckKernel<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kShared),
        "preparing the comparison");
  const Stream stream;
  CheckKernel<kRows>
      <<<kCtas, kWarpgroup, kShared, stream.get()>>>(seed, operands, begin, differing.data());
  Check(cudaGetLastError(), "launching the comparison");
  unsigned long long count = 0;
  stream.Synchronize();
  CopyToHostAndWait(&count, differing.data(), sizeof(count), "the comparison");
  return {uint64_t{kCtas} * kOutputs * kRows, count};
}

}  // namespace

InstructionCheck CompareInstructions(Operands operands, int rows, bool begin, uint32_t seed) {
  switch (rows) {
    case 32:
      return Compare<32>(operands, begin, seed);
    case 64:
      return Compare<64>(operands, begin, seed);
    case 88:
      return Compare<88>(operands, begin, seed);
    default:
      LOOPSPEC_CHECK(rows == 128);
      return Compare<128>(operands, begin, seed);
  }
}

}  // namespace loopspec::cuda
