// config.json, key by key, with errors that name the key.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "model/model_spec.h"

namespace loopspec {

class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string what) : json_(json), what_(std::move(what)) {}

  int Int(std::string_view key, int64_t low, int64_t high) const;  // required
  int IntOr(std::string_view key, int64_t low, int64_t high, int fallback) const;
  double Number(std::string_view key) const;                     // required, finite and positive
  double NumberOr(std::string_view key, double fallback) const;  // finite
  // head_dim, or the even share of the width when it is not given.
  int HeadDim(int hidden, int heads) const;
  bool BoolOr(std::string_view key, bool fallback) const;
  std::string String(std::string_view key) const;  // required
  bool Has(std::string_view key) const;            // there and not null
  const Json* Find(std::string_view key) const;    // null when absent or null
  std::vector<std::string> KeysStartingWith(std::string_view prefix) const;
  const std::string& what() const { return what_; }
  // Whether the key was asked for: an override of a key that is never read is a mistake.
  bool WasRead(std::string_view key) const { return read_.find(key) != read_.end(); }

  // rope_theta (or `alternative`) and rope_scaling, or both in rope_parameters, as transformers 5
  // writes them. Scaling is none or of type default, linear, llama3 or yarn.
  RopeSpec Rope(std::string_view alternative = "") const;

 private:
  // The object of these names that holds type and factors of the scaling; null: none.
  const Json* RopeParameters() const;
  void ReadScaling(const ConfigReader& from, RopeSpec& rope) const;
  void Note(std::string_view key) const { read_.emplace(key); }

  const Json& json_;
  std::string what_;
  mutable std::set<std::string, std::less<>> read_;
};

// Bounds that no real model comes near; they keep every product of extents far from overflow.
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxHeadDim = 4096;
inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxRecurrence = 4096;
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;

}  // namespace loopspec
