// A plan of keys: in which form the keys and values of each loop of a token are kept, once the
// token has been through all loops.
//
// Deep loops hardly change their keys any more, so the last loop's can stand for theirs, or be most
// of them. The last loop itself is int8 always; so are the prelude's and coda's planes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"

namespace loopspec {

struct KeyForm {
  enum class Kind {
    kInt8,      // its own int8, with a scale for each head and position
    kResidual,  // int8 of the last loop plus a residual of `bits` bits, with a scale likewise
    kLast,      // nothing of its own: the last loop's
  };
  Kind kind = Kind::kInt8;
  int bits = 8;

  bool operator==(const KeyForm&) const = default;
};

inline constexpr int kFewestResidualBits = 2, kMostResidualBits = 8;
inline constexpr KeyForm kOwnKeys = {KeyForm::Kind::kInt8, 8};
inline constexpr KeyForm kLastKeys = {KeyForm::Kind::kLast, 0};
inline KeyForm ResidualKeys(int bits) {
  return {KeyForm::Kind::kResidual, bits};
}

class KeyPlan {
 public:
  // `forms`: of the depths 1 to R - 1.
  explicit KeyPlan(std::vector<KeyForm> forms);
  // "int8*8,r4*8,last": int8 for 8 depths, residuals of 4 bits for the next 8, and what stands last
  // for all that are left. Throws Error.
  static KeyPlan Parse(const std::string& text, int recurrence);

  int recurrence() const { return static_cast<int>(forms_.size()) + 1; }
  KeyForm At(int depth) const;  // depth counts from 1
  bool HasResiduals() const;
  // The one text that Parse reads this plan from and that names it.
  std::string text() const;
  // Bytes of a position beyond the window on all planes, scales included.
  int64_t BytesPerPosition(const ModelSpec& spec, int readouts) const;

  bool operator==(const KeyPlan&) const = default;

 private:
  std::vector<KeyForm> forms_;
};

// Bytes of the keys, or the values, of one head and position: the numbers and their scale.
int64_t KeyBytes(KeyForm form, int head_dim);
// Bytes of the residuals of one head's keys and values in a page.
int64_t ResidualPageBytes(int bits, int head_dim);

// ---- The forms themselves, as plain code: what a kernel must give ----

// The residual of `x` against `last`, [head_dim] each: x is about last + levels * scale. Levels lie
// alike on both sides of zero, up to 2^(bits - 1) - 1. Returns the scale, a bf16 number; NaN, with
// all levels 0, where a number is not finite.
float RoundResidual(int bits, const float* last, const float* x, int head_dim, int8_t* levels);

// What int8 keys hold of `x`, [head_dim]: the bits that a backend's int8 planes give.
void RoundToInt8(float* x, int head_dim);
// What a form holds of `x`, given what the last loop's int8 plane holds. `x` comes out of an int8
// plane itself, so that its own int8 changes nothing.
void RoundToForm(KeyForm form, const float* last, float* x, int head_dim);

}  // namespace loopspec
