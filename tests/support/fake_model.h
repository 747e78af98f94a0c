// A looped "model" of five tokens whose next-token distributions p_r(. | prefix) are arbitrary
// tables made from a seed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/philox.h"
#include "model/model_spec.h"

namespace loopspec {

inline constexpr int kFakeVocab = 5;
using FakeTable = std::array<double, kFakeVocab>;

// How the tables of different depths relate: the general case and the corners of the algorithm.
enum class FakeShape {
  kRandom,         // full support, nothing related
  kSparse,         // two tokens of support at early depths, three at R
  kEqual,          // all depths alike: every draft is accepted and no residual has mass
  kEqualDrafts,    // early depths alike, R different: the gate never opens
  kDisjoint,       // early depths alternate between disjoint supports: the gate always opens
  kOneTokenDraft,  // early depths are certain, R is not
  kOneToken,       // every depth is certain of a token of its own
  kNear,           // early depths are small disturbances of R, as in a trained model
};

class FakeModel {
 public:
  FakeModel(uint64_t seed, FakeShape shape, int recurrence) : seed_(seed), shape_(shape) {
    spec_.family = "fake";
    spec_.vocab = kFakeVocab;
    spec_.recurrence = recurrence;
    spec_.max_positions = 1 << 20;
  }

  const ModelSpec& spec() const { return spec_; }

  const FakeTable& At(int depth, std::span<const int32_t> prefix) {
    uint64_t key = Mix(0x9E3779B97F4A7C15u, static_cast<uint64_t>(depth));
    for (const int32_t token : prefix) key = Mix(key, static_cast<uint64_t>(token) + 1);
    const auto [it, fresh] = tables_.try_emplace(key);
    if (fresh) it->second = Make(depth, prefix);
    return it->second;
  }

  // The logits of a table, for code that starts from logits. Probability zero is a logit so low
  // that its weight is zero: infinite ones are refused.
  static std::array<float, kFakeVocab> Logits(const FakeTable& table) {
    std::array<float, kFakeVocab> logits;
    for (size_t v = 0; v < logits.size(); ++v) {
      logits[v] = table[v] > 0 ? static_cast<float>(std::log(table[v])) : -1e6f;
    }
    return logits;
  }

 private:
  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t z = a + 0x9E3779B97F4A7C15u * (b + 1);  // the finaliser of SplitMix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }

  // Uniform number i of a table.
  double Draw(int depth, std::span<const int32_t> prefix, uint32_t i) const {
    uint64_t key = Mix(seed_, static_cast<uint64_t>(depth));
    for (const int32_t token : prefix) key = Mix(key, static_cast<uint64_t>(token) + 1);
    return Uniform({key, 0, i}, 7);
  }

  FakeTable Random(int depth, std::span<const int32_t> prefix, int support) const {
    FakeTable table{};
    const int first = static_cast<int>(Draw(depth, prefix, 100) * kFakeVocab);
    double total = 0;
    for (int i = 0; i < support; ++i) {
      const double weight = -std::log(1.0 - Draw(depth, prefix, static_cast<uint32_t>(i))) + 1e-3;
      table[static_cast<size_t>((first + i) % kFakeVocab)] = weight;
      total += weight;
    }
    for (double& p : table) p /= total;
    return table;
  }

  FakeTable Make(int depth, std::span<const int32_t> prefix) const {
    const int r = spec_.recurrence;
    const bool early = depth < r;
    switch (shape_) {
      case FakeShape::kRandom:
        return Random(depth, prefix, kFakeVocab);
      case FakeShape::kSparse:
        return Random(depth, prefix, early ? 2 : 3);
      case FakeShape::kEqual:
        return Random(r, prefix, kFakeVocab);
      case FakeShape::kEqualDrafts:
        return Random(early ? 1 : r, prefix, kFakeVocab);
      case FakeShape::kOneTokenDraft:
        return Random(depth, prefix, early ? 1 : kFakeVocab);
      case FakeShape::kOneToken:
        return Random(depth, prefix, 1);
      case FakeShape::kDisjoint: {
        if (!early) return Random(depth, prefix, kFakeVocab);
        FakeTable table = Random(depth, prefix, kFakeVocab);
        double total = 0;
        for (int v = 0; v < kFakeVocab; ++v) {
          if (v % 2 != depth % 2) table[static_cast<size_t>(v)] = 0;
          total += table[static_cast<size_t>(v)];
        }
        for (double& p : table) p /= total;
        return table;
      }
      case FakeShape::kNear: {
        FakeTable table = Random(r, prefix, kFakeVocab);
        if (!early) return table;
        const FakeTable noise = Random(depth, prefix, kFakeVocab);
        const double share = 0.5 / depth;
        for (size_t v = 0; v < table.size(); ++v)
          table[v] = (1 - share) * table[v] + share * noise[v];
        return table;
      }
    }
    return {};
  }

  uint64_t seed_;
  FakeShape shape_;
  ModelSpec spec_;
  std::unordered_map<uint64_t, FakeTable> tables_;
};

}  // namespace loopspec
