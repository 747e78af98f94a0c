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

RopeSpec ConfigReader::Rope(std::string_view alternative) const {
  RopeSpec rope;
  rope.theta = Number(Has("rope_theta") || alternative.empty() ? "rope_theta" : alternative);
  const Json* scaling = Find("rope_scaling");
  if (scaling == nullptr) return rope;
  if (!scaling->is_object()) Fail("{}: rope_scaling is no object", what_);
  const ConfigReader inner(*scaling, what_ + ": rope_scaling");
  const std::string type = inner.String(inner.Has("rope_type") ? "rope_type" : "type");
  if (type == "default") return rope;
  if (type != "llama3")
    Fail("{}: rope_scaling of type {} is not supported (llama3 is)", what_, type);
  rope.factor = inner.Number("factor");
  rope.low_freq_factor = inner.Number("low_freq_factor");
  rope.high_freq_factor = inner.Number("high_freq_factor");
  rope.original_positions = inner.Number("original_max_position_embeddings");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    Fail("{}: rope_scaling: high_freq_factor {} is not above low_freq_factor {}", what_,
         rope.high_freq_factor, rope.low_freq_factor);
  }
  return rope;
}

}  // namespace loopspec
