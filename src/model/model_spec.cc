#include "model/model_spec.h"

#include <set>
#include <string>

#include "base/field_error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

// An override a.b=value: the value is read as JSON, else taken as a string.
Json OverrideValue(const std::string& value) {
  try {
    return ParseJson(value, "the override");
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
    if (part.empty()) throw FieldError("config", key + "=" + value, "a key without empty parts");
    if (!at->is_object())
      throw FieldError("config", key + "=" + value, key.substr(0, begin - 1) + " to be an object");
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

// The facts of a config without a model_type that has them in an object of their own, as IFM's do;
// null: it has none.
const Json* InnerModel(const Json& config) {
  const auto inner = config.find("model");
  return inner != config.end() && inner->is_object() && !config.contains("model_type") ? &*inner
                                                                                       : nullptr;
}

// A key that nobody reads is a slip of the pen, unless the file has it. Ids of special tokens are
// read elsewhere (text/special_tokens.h).
void CheckOverrides(const ConfigOverrides& overrides, const std::string& prefix,
                    const std::set<std::string>& in_file, const ConfigReader& reader,
                    const std::string& type) {
  for (const auto& [key, value] : overrides) {
    const size_t begin = key.starts_with(prefix) ? prefix.size() : 0;
    const std::string top = key.substr(0, key.find('.', begin));
    const bool read = begin == prefix.size() && reader.WasRead(top.substr(begin));
    if (!read && !in_file.contains(top) && !top.ends_with("_token_id"))
      throw FieldError(
          "config", key + "=" + value,
          fmt::format("a key that a model of type {} has; {} has no effect", type, top));
  }
}

std::set<std::string> KeysOf(const Json& object, const std::string& prefix) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(prefix + key);
  return keys;
}

}  // namespace

std::pair<std::string, std::string> ParseOverride(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw FieldError("config", text, "key=value");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

ModelSpec ParseModelSpec(const std::string& config, const std::string& what,
                         const ConfigOverrides& overrides, int recurrence) {
  Json json = ParseJson(config, what);
  if (!json.is_object()) Fail("{}: expected a JSON object", what);
  const std::string prefix = InnerModel(json) == nullptr ? "" : "model.";
  std::set<std::string> in_file = KeysOf(json, "");
  if (const Json* inner = InnerModel(json)) in_file.merge(KeysOf(*inner, prefix));
  for (const auto& [key, value] : overrides) ApplyOverride(json, key, value);
  const Json* inner = InnerModel(json);
  if (inner != nullptr && json.contains("student"))
    Fail("{}: student is set: a model distilled for prompts alone, which is not supported", what);
  const ConfigReader reader(inner == nullptr ? json : *inner,
                            inner == nullptr ? what : what + ": model");
  const std::string type = reader.String(inner == nullptr ? "model_type" : "arch");
  ModelSpec spec = inner == nullptr ? ReadSpec(reader, type) : ReadIfmSpec(reader);
  CheckOverrides(overrides, prefix, in_file, reader, type);
  spec.trained_recurrence = spec.recurrence;
  if (recurrence > 0) spec.recurrence = recurrence;
  CheckConsistent(spec, what);
  return spec;
}

namespace {

// Of a folder that has GGUF files alone: ", but ouro.gguf in it may be one".
std::string GgufInside(const std::filesystem::path& folder) {
  std::string first;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf") && (first.empty() || name < first)) first = name;
  }
  return first.empty() ? "" : fmt::format(", but {} in it may be one", first);
}

}  // namespace

ModelSpec ReadModelSpec(const std::filesystem::path& folder, const ConfigOverrides& overrides,
                        int recurrence) {
  const auto path = folder / "config.json";
  if (!FileExists(path))
    throw FileMissing(fmt::format("{} has no config.json: not a model folder{}", folder.string(),
                                  GgufInside(folder)));
  return ParseModelSpec(ReadFile(path), path.string(), overrides, recurrence);
}

}  // namespace loopspec
