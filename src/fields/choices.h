// The names that the values of a request's choices have in bodies, in commands and in Python.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "loopspec/request.h"

namespace loopspec {

template <typename Value>
struct NamedValue {
  const char* name;
  Value value;
};

// The first of each is the default.
inline constexpr NamedValue<Sampler> kSamplers[] = {{"cascade", Sampler::kCascade},
                                                    {"coupled", Sampler::kCoupled}};
inline constexpr NamedValue<LaterProposal> kLaterProposals[] = {
    {"gated", LaterProposal::kGatedResidual},
    {"residual", LaterProposal::kResidual},
    {"non-residual", LaterProposal::kNonResidual}};
inline constexpr NamedValue<Decoding> kDecodings[] = {{"loopspec", Decoding::kLoopSpec},
                                                      {"ar", Decoding::kAutoregressive},
                                                      {"lookup", Decoding::kLookup}};

inline constexpr const char* kSamplerHelp =
    "cascade: the paper's rejection sampling, whose text depends on the seed and on the depths; "
    "coupled: the text of a seed is the same at all depths and without drafts";
inline constexpr const char* kDecodingHelp =
    "loopspec; ar for plain autoregressive decoding: the same text, more slowly; lookup for n-gram "
    "speculation over it";

template <typename Value, size_t kCount>
std::vector<std::string> NamesOf(const NamedValue<Value> (&values)[kCount]) {
  std::vector<std::string> names;
  for (const NamedValue<Value>& value : values) names.emplace_back(value.name);
  return names;
}

// The value of that name; of a name that there is not, the default.
template <typename Value, size_t kCount>
Value ValueOf(const NamedValue<Value> (&values)[kCount], std::string_view name) {
  for (const NamedValue<Value>& value : values) {
    if (name == value.name) return value.value;
  }
  return values[0].value;
}

}  // namespace loopspec
