// A set of flags of one enumeration, so that bits of different enumerations cannot be mixed up.
#pragma once

#include <cstdint>

namespace loopspec::cuda {

// The enumerators of `Flag` are single bits. Zero-initialised with {}; trivial, because it lies in
// shared memory and in structures that are copied word by word.
template <typename Flag>
struct Flags {
  int32_t bits;

  constexpr Flags() = default;
  constexpr Flags(Flag flag) : bits(static_cast<int32_t>(flag)) {}  // NOLINT: one flag is a set
  static constexpr Flags FromBits(int32_t bits) {
    Flags flags{};
    flags.bits = bits;
    return flags;
  }

  constexpr bool Has(Flag flag) const { return (bits & static_cast<int32_t>(flag)) != 0; }
  constexpr bool HasAny(Flags flags) const { return (bits & flags.bits) != 0; }
  constexpr Flags& operator|=(Flags other) {
    bits |= other.bits;
    return *this;
  }
  friend constexpr Flags operator|(Flags a, Flags b) { return FromBits(a.bits | b.bits); }
  friend constexpr Flags operator&(Flags a, Flags b) { return FromBits(a.bits & b.bits); }
};

}  // namespace loopspec::cuda
