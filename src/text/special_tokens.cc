#include "text/special_tokens.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace loopspec {
namespace {

Json ReadOptional(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Json::object();
  Json json = ReadJsonFile(path);
  if (!json.is_object()) Fail("{}: expected a JSON object", path.string());
  return json;
}

// The id of a token that a tokenizer file names: "..." or {"content": "..."}.
std::optional<int32_t> NamedToken(const Json& file, std::string_view key,
                                  const Tokenizer* tokenizer) {
  const auto found = file.find(key);
  if (tokenizer == nullptr || found == file.end()) return std::nullopt;
  const Json* content = &*found;
  if (content->is_object()) {
    const auto inner = content->find("content");
    if (inner == content->end()) return std::nullopt;
    content = &*inner;
  }
  if (!content->is_string()) return std::nullopt;
  return tokenizer->TokenToId(content->get_ref<const std::string&>());
}

// The ids that a config gives under `key`: a number or a list of them; negative ones mean none.
std::vector<int32_t> ConfigIds(const Json& file, std::string_view key, std::string_view what) {
  std::vector<int32_t> ids;
  const auto found = file.find(key);
  if (found == file.end() || found->is_null()) return ids;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer())
      Fail("{}: {} is {}, expected a token id or a list of them", what, key, found->dump());
    const auto value = id.get<int64_t>();
    if (value >= 0 && value <= INT32_MAX) ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

}  // namespace

SpecialTokens ReadSpecialTokens(const std::filesystem::path& dir, const Tokenizer* tokenizer) {
  const Json tokenizer_config = ReadOptional(dir / "tokenizer_config.json");
  const Json token_map = ReadOptional(dir / "special_tokens_map.json");
  const Json generation = ReadOptional(dir / "generation_config.json");
  Json config = ReadOptional(dir / "config.json");
  if (FindString(config, "model_type", "config.json") == "huginn_raven") config = Json::object();

  const auto from_configs = [&](const std::string& key) {
    std::vector<int32_t> ids = ConfigIds(generation, key + "_id", "generation_config.json");
    const std::vector<int32_t> more = ConfigIds(config, key + "_id", "config.json");
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  const auto named = [&](const std::string& key) {
    const auto id = NamedToken(tokenizer_config, key, tokenizer);
    return id ? id : NamedToken(token_map, key, tokenizer);
  };
  const auto first = [&](const std::string& key) -> std::optional<int32_t> {
    if (const auto id = named(key)) return id;
    const std::vector<int32_t> ids = from_configs(key);
    return ids.empty() ? std::nullopt : std::optional<int32_t>(ids.front());
  };

  SpecialTokens tokens;
  tokens.bos = first("bos_token");
  tokens.pad = first("pad_token");
  tokens.unk = first("unk_token");
  tokens.eos = from_configs("eos_token");
  if (const auto eos = named("eos_token")) tokens.eos.push_back(*eos);
  std::sort(tokens.eos.begin(), tokens.eos.end());
  tokens.eos.erase(std::unique(tokens.eos.begin(), tokens.eos.end()), tokens.eos.end());
  return tokens;
}

}  // namespace loopspec
