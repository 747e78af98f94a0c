#include "fields/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/field_error.h"
#include "base/json.h"

namespace loopspec {
namespace {

using S = SamplingParams;

// In the order in which the help lists them.
constexpr SamplingField kSamplingFields[] = {
    {"temperature",
     SamplingPart::kTemperature,
     &S::temperature,
     {0, 1000},
     1,
     1,
     "0 is greedy: always the likeliest token; 1 draws as the model says, more is wilder"},
    {"top_k",
     SamplingPart::kFilter,
     &S::top_k,
     {-1, kMaxInt},
     0,
     50,
     "Keep the k likeliest tokens; 0 or -1 is off"},
    {"top_p",
     SamplingPart::kFilter,
     &S::top_p,
     {0, 1, true},
     1,
     1,
     "Keep the likeliest tokens that together reach this probability; 1 is off"},
    {"min_p",
     SamplingPart::kFilter,
     &S::min_p,
     {0, 1},
     0,
     0,
     "Drop tokens below this share of the likeliest one's probability; 0 is off"},
    {"top_n_sigma",
     SamplingPart::kFilter,
     &S::top_n_sigma,
     {-1, 1000},
     0,
     {},
     "Keep tokens whose logits are within this many standard deviations of the largest logit; 0 or "
     "less is off"},
    {"repetition_penalty",
     SamplingPart::kPenalty,
     &S::repetition_penalty,
     {0, 1000, true},
     1,
     1,
     "Make tokens that are already in the text less likely: divide their positive logits by this, "
     "multiply negative ones; 1 is off"},
    {"presence_penalty",
     SamplingPart::kPenalty,
     &S::presence_penalty,
     {-1000, 1000},
     0,
     {},
     "Subtract this from the logits of tokens already written"},
    {"frequency_penalty",
     SamplingPart::kPenalty,
     &S::frequency_penalty,
     {-1000, 1000},
     0,
     {},
     "Subtract this times how often a token has been written"},
};
static_assert(std::size(kSamplingFields) <= 64, "SaidSampling has a bit for each field");

uint64_t MarkOf(const SamplingField& field) {
  return uint64_t{1} << (&field - kSamplingFields);
}

// "top-k", "repetition penalty".
std::string Words(const SamplingField& field) {
  std::string words = field.name;
  std::replace(words.begin(), words.end(), '_', field.part == SamplingPart::kPenalty ? ' ' : '-');
  return words;
}

}  // namespace

std::string Expected(const Range& range) {
  if (range.high >= kMaxInt) return fmt::format("{} or more", range.low);
  return range.above ? fmt::format("above {}, at most {}", range.low, range.high)
                     : fmt::format("{} to {}", range.low, range.high);
}

double SamplingField::Get(const SamplingParams& params) const {
  return std::visit([&](auto at) { return static_cast<double>(params.*at); }, member);
}

void SamplingField::Set(SamplingParams& params, double value) const {
  std::visit(
      [&](auto at) {
        params.*at = static_cast<std::remove_reference_t<decltype(params.*at)>>(value);
      },
      member);
}

std::string SamplingField::Shown(const SamplingParams& params) const {
  return std::visit([&](auto at) { return fmt::format("{}", params.*at); }, member);
}

std::span<const SamplingField> SamplingFields() {
  return kSamplingFields;
}

void CheckSamplingParams(const SamplingParams& params, int vocab) {
  for (const SamplingField& field : kSamplingFields) {
    if (!field.range.Holds(field.Get(params)))
      throw FieldError(field.name, field.Shown(params), Expected(field.range));
  }
  for (const TokenBias& entry : params.bias) {
    if (entry.token < 0 || entry.token >= vocab) {
      throw FieldError("logit_bias", fmt::format("for token {}", entry.token),
                       fmt::format("a token below {}, the size of the vocabulary", vocab));
    }
    if (!(std::fabs(entry.bias) <= 1e6f)) {
      throw FieldError("logit_bias", fmt::format("{} for token {}", entry.bias, entry.token),
                       "-1e6 to 1e6");
    }
  }
}

std::string Described(const SamplingParams& params) {
  std::string text;
  for (const SamplingField& field : kSamplingFields) {
    const bool temperature = field.part == SamplingPart::kTemperature;
    if (temperature && params.greedy()) text = "greedy";
    // Greedy decoding takes the likeliest token, which no filter takes out.
    if (field.part != SamplingPart::kPenalty && params.greedy()) continue;
    const double value = field.Get(params);
    if (!temperature && (value == field.off || (field.part == SamplingPart::kFilter && value < 0)))
      continue;
    text += fmt::format("{}{} {:g}", text.empty() ? "" : ", ", Words(field), value);
  }
  return text;
}

OrderedJson ToJson(const SamplingParams& params,
                   const std::function<bool(const SamplingField&)>& wanted) {
  OrderedJson json = OrderedJson::object();
  for (const SamplingField& field : kSamplingFields) {
    if (!wanted(field)) continue;
    std::visit([&](auto at) { json[field.name] = params.*at; }, field.member);
  }
  return json;
}

void SaidSampling::Set(const SamplingField& field, double value) {
  field.Set(said_, value);
  marks_ |= MarkOf(field);
}

bool SaidSampling::Says(const SamplingField& field) const {
  return (marks_ & MarkOf(field)) != 0;
}

SamplingParams SaidSampling::Over(SamplingParams others) const {
  for (const SamplingField& field : kSamplingFields) {
    if (Says(field)) field.Set(others, field.Get(said_));
  }
  if (sampler_) others.sampler = *sampler_;
  if (later_) others.later = *later_;
  if (!said_.bias.empty()) others.bias = said_.bias;
  return others;
}

}  // namespace loopspec
