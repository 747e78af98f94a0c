#include "model/model_spec.h"

#include <set>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

// --set a.b=value: the value is read as JSON, else taken as a string.
Json OverrideValue(const std::string& value) {
  try {
    return ParseJson(value, "--set");
  } catch (const Error&) {
    return value;
  }
}

void ApplyOverride(Json& config, const std::string& key, const std::string& value) {
  Json parsed = OverrideValue(value);
  Json* at = &config;
  size_t begin = 0;
  while (true) {
    const size_t dot = key.find('.', begin);
    const std::string part = key.substr(begin, dot == std::string::npos ? dot : dot - begin);
    if (part.empty()) Fail("--set {}={}: the key has an empty part", key, value);
    if (!at->is_object())
      Fail("--set {}={}: {} is no object", key, value, key.substr(0, begin - 1));
    at = &(*at)[part];
    if (dot == std::string::npos) break;
    if (at->is_null()) *at = Json::object();
    begin = dot + 1;
  }
  *at = std::move(parsed);
}

void CheckConsistent(const ModelSpec& spec, const std::string& what) {
  if (spec.recurrence > kMaxRecurrence) {
    Fail("{}: a recurrence of {} is asked for, expected 1 to {}", what, spec.recurrence,
         kMaxRecurrence);
  }
  // Without head_dim in the config it is hidden / heads, whatever that comes to.
  if (spec.head_dim < 2 || spec.head_dim > kMaxHeadDim) {
    Fail("{}: head_dim is {}, expected 2 to {}", what, spec.head_dim, kMaxHeadDim);
  }
  if (int64_t{spec.heads} * spec.head_dim > kMaxWidth) {
    Fail("{}: {} heads of {} are wider than {}", what, spec.heads, spec.head_dim, kMaxWidth);
  }
  if (spec.heads % spec.kv_heads != 0) {
    Fail("{}: {} query heads cannot share {} key/value heads evenly", what, spec.heads,
         spec.kv_heads);
  }
  if (spec.head_dim % 2 != 0) {
    Fail("{}: head_dim is {}, expected an even number for the rotary embedding", what,
         spec.head_dim);
  }
}

ModelSpec ReadSpec(const ConfigReader& config, const std::string& type) {
  if (type == "ouro") return ReadOuroSpec(config);
  if (type == "nanbeige") return ReadNanbeigeSpec(config);
  if (type == "huginn_raven")
    return IsHuginn(config) ? ReadHuginnSpec(config) : ReadRavenSpec(config);
  for (const char* later : {"iquestloopcoder", "loopcoder", "hrm_text", "parcae"}) {
    if (type == later)
      Fail("{}: model_type {} is a looped model that is not supported yet", config.what(), type);
  }
  Fail("{}: model_type is {:.60}, expected ouro, nanbeige or huginn_raven", config.what(), type);
}

}  // namespace

std::pair<std::string, std::string> ParseOverride(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    Fail("--set {}: expected key=value", text);
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

ModelSpec ParseModelSpec(const std::string& config, const std::string& what,
                         const ConfigOverrides& overrides, int recurrence) {
  Json json = ParseJson(config, what);
  if (!json.is_object()) Fail("{}: expected a JSON object", what);
  std::set<std::string> in_file;
  for (const auto& [key, value] : json.items()) in_file.insert(key);
  for (const auto& [key, value] : overrides) ApplyOverride(json, key, value);
  const ConfigReader reader(json, what);
  const std::string type = reader.String("model_type");
  ModelSpec spec = ReadSpec(reader, type);
  for (const auto& [key, value] : overrides) {
    const std::string top = key.substr(0, key.find('.'));
    // A key that nobody reads is a slip of the pen, unless the file has it. Ids of special tokens
    // are read elsewhere (text/special_tokens.h).
    if (!reader.WasRead(top) && !in_file.contains(top) && !top.ends_with("_token_id"))
      Fail("--set {}={}: {} has no effect on a model of type {}", key, value, top, type);
  }
  spec.trained_recurrence = spec.recurrence;
  if (recurrence > 0) spec.recurrence = recurrence;
  CheckConsistent(spec, what);
  return spec;
}

ModelSpec ReadModelSpec(const std::filesystem::path& folder, const ConfigOverrides& overrides,
                        int recurrence) {
  const auto path = folder / "config.json";
  if (!FileExists(path))
    throw FileMissing(fmt::format("{} has no config.json: not a model folder", folder.string()));
  return ParseModelSpec(ReadFile(path), path.string(), overrides, recurrence);
}

}  // namespace loopspec
