#include "model/config_reader.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace loopspec {

const Json* ConfigReader::Find(std::string_view key) const {
  Note(key);
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

int ConfigReader::Int(std::string_view key, int64_t low, int64_t high) const {
  Note(key);
  const auto value = FindInt(json_, key, what_, low, high);
  if (!value) Fail("{}: {} is missing", what_, key);
  return static_cast<int>(*value);
}

int ConfigReader::IntOr(std::string_view key, int64_t low, int64_t high, int fallback) const {
  Note(key);
  return static_cast<int>(FindInt(json_, key, what_, low, high).value_or(fallback));
}

double ConfigReader::Number(std::string_view key) const {
  Note(key);
  const auto value = FindNumber(json_, key, what_);
  if (!value) Fail("{}: {} is missing", what_, key);
  if (!std::isfinite(*value) || *value <= 0)
    Fail("{}: {} is {}, expected a positive number", what_, key, *value);
  return *value;
}

double ConfigReader::NumberOr(std::string_view key, double fallback) const {
  Note(key);
  const double value = FindNumber(json_, key, what_).value_or(fallback);
  if (!std::isfinite(value)) Fail("{}: {} is not finite", what_, key);
  return value;
}

int ConfigReader::HeadDim(int hidden, int heads) const {
  if (!Has("head_dim") && hidden % heads != 0) {
    Fail("{}: {} heads do not divide the width of {}, and head_dim is not given", what_, heads,
         hidden);
  }
  return IntOr("head_dim", 1, kMaxHeadDim, hidden / heads);
}

bool ConfigReader::BoolOr(std::string_view key, bool fallback) const {
  Note(key);
  return FindBool(json_, key, what_).value_or(fallback);
}

std::string ConfigReader::String(std::string_view key) const {
  Note(key);
  auto value = FindString(json_, key, what_);
  if (!value) Fail("{}: {} is missing", what_, key);
  return *std::move(value);
}

std::vector<std::string> ConfigReader::KeysStartingWith(std::string_view prefix) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) {
    if (key.starts_with(prefix)) keys.push_back(key);
  }
  return keys;
}

const Json* ConfigReader::RopeParameters() const {
  const bool newer = Has("rope_parameters");
  const std::string_view key = newer ? "rope_parameters" : "rope_scaling";
  const Json* parameters = Find(key);
  if (parameters != nullptr && !parameters->is_object()) Fail("{}: {} is no object", what_, key);
  // Files that know kinds of layers keep an object for each; all of ours are of one kind.
  if (newer && parameters->contains("full_attention")) {
    if (parameters->size() > 1)
      Fail("{}: rope_parameters has kinds of layers beside full_attention", what_);
    parameters = &(*parameters)["full_attention"];
  }
  if (parameters != nullptr && !parameters->is_object())
    Fail("{}: {}: full_attention is no object", what_, key);
  return parameters;
}

RopeSpec ConfigReader::Rope(std::string_view alternative) const {
  RopeSpec rope;
  const Json* parameters = RopeParameters();
  const bool newer = Has("rope_parameters");
  const ConfigReader inner(parameters == nullptr ? json_ : *parameters,
                           what_ + (newer ? ": rope_parameters" : ": rope_scaling"));
  const std::string_view key =
      Has("rope_theta") || alternative.empty() ? "rope_theta" : alternative;
  if (newer && inner.Has("rope_theta")) {
    rope.theta = inner.Number("rope_theta");
    if (Has(key) && Number(key) != rope.theta) {
      Fail("{}: {} is {}, but rope_parameters has a rope_theta of {}", what_, key, Number(key),
           rope.theta);
    }
  } else {
    rope.theta = Number(key);
  }
  if (parameters != nullptr) ReadScaling(inner, rope);
  for (const ConfigReader* reader : {this, &inner}) {
    if (reader->NumberOr("partial_rotary_factor", 1.0) != 1.0) {
      Fail("{}: partial_rotary_factor is {}, only 1 is supported", reader->what_,
           reader->Number("partial_rotary_factor"));
    }
  }
  return rope;
}

void ConfigReader::ReadScaling(const ConfigReader& from, RopeSpec& rope) const {
  const bool typed = from.Has("rope_type") || from.Has("type");
  if (!typed && Has("rope_parameters")) return;  // transformers takes it for "default"
  const std::string type = from.String(from.Has("rope_type") ? "rope_type" : "type");
  if (type == "default") return;
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
  } else {
    Fail("{} of type {:.60} is not supported (linear, llama3 and yarn are)", from.what_, type);
  }
  rope.factor = from.Number("factor");
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low_freq_factor = from.Number("low_freq_factor");
    rope.high_freq_factor = from.Number("high_freq_factor");
    rope.original_positions = from.Number("original_max_position_embeddings");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      Fail("{}: high_freq_factor {} is not above low_freq_factor {}", from.what_,
           rope.high_freq_factor, rope.low_freq_factor);
    }
  } else if (rope.scaling == RopeScaling::kYarn) {
    rope.original_positions = from.Has("original_max_position_embeddings")
                                  ? from.Number("original_max_position_embeddings")
                                  : Number("max_position_embeddings");
    if (from.Has("beta_fast")) rope.beta_fast = from.Number("beta_fast");
    if (from.Has("beta_slow")) rope.beta_slow = from.Number("beta_slow");
    if (rope.beta_fast < rope.beta_slow) {
      Fail("{}: beta_fast {} is below beta_slow {}", from.what_, rope.beta_fast, rope.beta_slow);
    }
    rope.truncate = from.BoolOr("truncate", true);
    const auto stretch = [&](double scale) {
      return rope.factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0;
    };
    const double mscale = from.NumberOr("mscale", 0.0), all = from.NumberOr("mscale_all_dim", 0.0);
    rope.attention_factor = from.Has("attention_factor")  ? from.Number("attention_factor")
                            : mscale != 0.0 && all != 0.0 ? stretch(mscale) / stretch(all)
                                                          : stretch(1.0);
  }
}

}  // namespace loopspec
