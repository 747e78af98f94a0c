// TDPBF16PS (x86 AMX): a 16x32 tile of weights by a 32x16 tile of rows into 16x16 float32 sums.
//
// The weights are the A operand, whose tile layout is plain row-major: loaded straight from the
// checkpoint. The rows are the B operand, packed as [k/2][16 rows][2]. Fewer than 16 rows are
// padded; columns do not mix.
#include "backends/cpu/matmul.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace loopspec::cpu {
namespace {

constexpr int kRowBlock = 16;
constexpr int kTile = 16;  // rows of W per tile; two tiles at a time
constexpr int kStep = 32;  // inputs per tile

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

void Pack(std::byte* packed, int row, int64_t k, int64_t k_begin, const float* values,
          int64_t count) {
  const int64_t padded = (k + kStep - 1) / kStep * kStep;
  uint16_t* block = reinterpret_cast<uint16_t*>(packed) + row / kRowBlock * padded * kRowBlock +
                    row % kRowBlock * 2;
  const auto at = [&](int64_t i) -> uint16_t& { return block[i / 2 * kRowBlock * 2 + i % 2]; };
  for (int64_t i = 0; i < count; ++i) at(k_begin + i) = FloatToBF16(values[i]);
  if (k_begin + count == k) {
    for (int64_t i = k; i < padded; ++i) at(i) = 0;
  }
}

// Tiles: 0, 1 sums; 2, 3 weights; 4 rows. All full size: configuring per call is cheap, per shape
// it is not.
void Configure() {
  TileConfig config;
  for (int t = 0; t < 5; ++t) {
    config.bytes_per_row[t] = 64;
    config.rows[t] = 16;
  }
  // GCC takes the instruction to read eight bytes; all must be written.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Sixteen weight rows, thirty-two inputs, copied with zeros where the matrix ends.
void LoadEdge(uint16_t (&edge)[kTile][kStep], const uint16_t* w, int64_t rows, int64_t k,
              int64_t inputs) {
  std::memset(edge, 0, sizeof(edge));
  for (int64_t r = 0; r < std::min<int64_t>(rows, kTile); ++r) {
    std::memcpy(edge[r], w + r * k, static_cast<size_t>(inputs) * 2);
  }
}

void Multiply(const MatMulCall& call) {
  Configure();
  const auto* weights = reinterpret_cast<const uint16_t*>(call.weights);
  const auto* packed = reinterpret_cast<const uint16_t*>(call.packed);
  const int64_t padded = (call.k + kStep - 1) / kStep * kStep;
  const int64_t whole = call.k / kStep * kStep;
  const auto stride = static_cast<size_t>(call.k) * 2;
  alignas(64) uint16_t edge[kTile][kStep];
  alignas(64) float sums[2][kTile][kRowBlock];
  for (int64_t n = 0; n < call.count; n += 2 * kTile) {
    const uint16_t* w0 = weights + n * call.k;
    const uint16_t* w1 = w0 + kTile * call.k;
    const int64_t left0 = std::min<int64_t>(kTile, call.count - n);
    const int64_t left1 = std::clamp<int64_t>(call.count - n - kTile, 0, kTile);
    for (int row = 0; row < call.rows; row += kRowBlock) {
      const uint16_t* x = packed + row / kRowBlock * padded * kRowBlock;
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t k = 0; k < padded; k += kStep) {
        const int64_t inputs = std::min<int64_t>(kStep, call.k - k);
        _tile_loadd(4, x + k * kRowBlock, kRowBlock * 4);
        if (left0 == kTile && k < whole) {
          _tile_loadd(2, w0 + k, stride);
        } else {
          LoadEdge(edge, w0 + k, left0, call.k, inputs);
          _tile_loadd(2, edge, kStep * 2);
        }
        _tile_dpbf16ps(0, 2, 4);
        if (left1 == 0) continue;
        if (left1 == kTile && k < whole) {
          _tile_loadd(3, w1 + k, stride);
        } else {
          LoadEdge(edge, w1 + k, left1, call.k, inputs);
          _tile_loadd(3, edge, kStep * 2);
        }
        _tile_dpbf16ps(1, 3, 4);
      }
      _tile_stored(0, sums[0], kRowBlock * 4);
      _tile_stored(1, sums[1], kRowBlock * 4);
      const int rows = std::min(kRowBlock, call.rows - row);
      for (int r = 0; r < rows; ++r) {
        float* out = call.out + (row + r) * call.out_stride + n;
        for (int64_t i = 0; i < left0; ++i) out[i] = sums[0][i][r];
        for (int64_t i = 0; i < left1; ++i) out[kTile + i] = sums[1][i][r];
      }
    }
  }
  _tile_release();
}

constexpr MatMulKernel kKernel = {"AMX", kRowBlock, kStep, 2, 2 * kTile, Pack, Multiply};

// The tile state is large, so Linux hands it out on request.
bool Usable() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTileBit = 1u << 24;
  if ((d & kBf16) == 0 || (d & kTileBit) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const MatMulKernel* AmxKernel() {
  static const bool usable = Usable();
  return usable ? &kKernel : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
const MatMulKernel* AmxKernel() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif
