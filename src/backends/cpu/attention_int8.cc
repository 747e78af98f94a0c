#include "backends/cpu/attention_int8.h"

namespace loopspec::cpu {
namespace {

struct PlainOps {
  static void Unpack(const std::byte* packed, int bits, int64_t count, std::byte* out) {
    UnpackResiduals(packed, bits, count, out);
  }
  static void Keys(const std::byte* keys, const int8_t* hi, const int8_t* lo, int d, int blocks,
                   const std::byte*, int32_t* hi_sums, int32_t* lo_sums) {
    const auto* key = reinterpret_cast<const uint8_t*>(keys);
    for (int b = 0; b < blocks; ++b, key += kKeyBlock * d) {
      int32_t h[kKeyBlock] = {}, l[kKeyBlock] = {};
      const int stride = Int8PageHead::KeyBytes(d);
      for (int i = 0; i < d; ++i) {
        const uint8_t* at = key + Int8PageHead::KeyAt(0, i, d);
        for (int p = 0; p < kKeyBlock; ++p) {
          h[p] += at[stride * p] * hi[i];
          l[p] += at[stride * p] * lo[i];
        }
      }
      std::copy_n(h, kKeyBlock, hi_sums + b * kKeyBlock);
      std::copy_n(l, kKeyBlock, lo_sums + b * kKeyBlock);
    }
  }
  static void Values(const std::byte* values, const int8_t* hi, const int8_t* lo, int d, int blocks,
                     const std::byte*, int32_t* hi_sums, int32_t* lo_sums) {
    const auto* value = reinterpret_cast<const uint8_t*>(values);
    std::fill_n(hi_sums, d, 0);
    std::fill_n(lo_sums, d, 0);
    for (int b = 0; b < blocks; ++b, value += kValueBlock * d) {
      for (int i = 0; i < d; ++i) {
        for (int p = 0; p < kValueBlock; ++p) {
          hi_sums[i] += value[i * kValueBlock + p] * hi[b * kValueBlock + p];
          lo_sums[i] += value[i * kValueBlock + p] * lo[b * kValueBlock + p];
        }
      }
    }
  }
};

}  // namespace

AttentionFunction PortableInt8Attention() {
  return Int8AttentionKernel<PlainOps>::Attend;
}

AttentionFunction Int8Attention(int head_dim) {
  if (head_dim % 16 == 0 && head_dim <= 512) {
    for (const AttentionFunction attention :
         {VnniInt8Attention(), UsmmlaInt8Attention(), SdotInt8Attention()}) {
      if (attention != nullptr) return attention;
    }
  }
  return PortableInt8Attention();
}

}  // namespace loopspec::cpu
