// The numbers among SamplingParams, described once. Request bodies and /openapi.json, options of
// the command line with their help, variables, settings files, the manual page, keyword arguments
// of Python, generation_config.json and every place that lists or checks the numbers walk this
// table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/json_fwd.h"
#include "fields/range.h"
#include "loopspec/sampling.h"

namespace loopspec {

enum class SamplingPart {
  kTemperature,
  kFilter,   // takes tokens out of the distribution
  kPenalty,  // changes logits by what stands in the text
};

struct SamplingField {
  const char* name;  // top_p: in bodies, in Python, in generation_config.json; --top-p in commands
  SamplingPart part;
  std::variant<float SamplingParams::*, int SamplingParams::*> member;
  Range range;
  double off;  // the value that changes nothing
  // What an absent value means where generation_config.json says to sample, as Hugging Face's
  // library reads it; none: the file has no such field.
  std::optional<double> generation_config;
  const char* help;  // one sentence

  bool whole() const { return std::holds_alternative<int SamplingParams::*>(member); }
  double Get(const SamplingParams& params) const;
  void Set(SamplingParams& params, double value) const;
  // A value as its own type writes it: 1.1 as a float is not 1.100000023841858.
  std::string Shown(const SamplingParams& params) const;
};

std::span<const SamplingField> SamplingFields();

// Throws FieldError for a number outside its range, or a biased token outside the vocabulary.
void CheckSamplingParams(const SamplingParams& params, int vocab);

// "greedy", or "temperature 0.8, top-p 0.9, repetition penalty 1.1": what is not off.
std::string Described(const SamplingParams& params);

// The fields that `wanted` picks, by name.
OrderedJson ToJson(const SamplingParams& params,
                   const std::function<bool(const SamplingField&)>& wanted);

// SamplingParams of which only a part was said, as a request body or an argument list has it.
class SaidSampling {
 public:
  void Set(const SamplingField& field, double value);
  void SetSampler(Sampler sampler) { sampler_ = sampler; }
  void SetLater(LaterProposal later) { later_ = later; }
  void SetBias(std::vector<TokenBias> bias) { said_.bias = std::move(bias); }

  // Whether the field was said.
  bool Says(const SamplingField& field) const;
  // What was said; what was not has its default.
  const SamplingParams& said() const { return said_; }
  // What was said, and for the rest `others`.
  SamplingParams Over(SamplingParams others) const;

 private:
  SamplingParams said_;
  std::optional<Sampler> sampler_;
  std::optional<LaterProposal> later_;
  uint64_t marks_ = 0;  // one bit for each of SamplingFields
};

}  // namespace loopspec
