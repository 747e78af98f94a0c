#include "text/special_tokens.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace loopspec {
namespace {

Json ReadOptional(const std::filesystem::path& path) {
  if (!FileExists(path)) return Json::object();
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
    if (!id.is_number_integer() || id.get<int64_t>() > INT32_MAX)
      Fail("{}: {} is {}, expected a token id or a list of them", what, key, found->dump());
    if (id.get<int64_t>() >= 0) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// A JSON source of ids, and how to call it in errors.
struct Source {
  Json json;
  std::string name;
};

// What overrides of the config say of the ids, as an object like config.json.
Json OverriddenIds(std::span<const std::pair<std::string, std::string>> overrides) {
  Json ids = Json::object();
  for (const auto& [key, value] : overrides) {
    if (key.ends_with("_token_id"))
      ids[key] = ParseJson(value, fmt::format("the override of {}", key));
  }
  return ids;
}

// What the files of a model say of its tokens.
struct Files {
  Source tokenizer_config, token_map, generation, config;
};

SpecialTokens Gather(const Files& files, const Tokenizer* tokenizer, int vocab,
                     std::span<const std::pair<std::string, std::string>> overrides) {
  const Source set = {OverriddenIds(overrides), "an override of the config"};
  const auto from_configs = [&](const std::string& key, int limit) {
    std::vector<int32_t> ids;
    const bool overridden = set.json.contains(key + "_id");
    for (const Source* source :
         std::initializer_list<const Source*>{&set, &files.generation, &files.config}) {
      if (overridden && source != &set) continue;
      for (const int32_t id : ConfigIds(source->json, key + "_id", source->name)) {
        if (id >= limit)
          Fail("{}: {}_id is {}, the vocabulary has {} tokens", source->name, key, id, limit);
        ids.push_back(id);
      }
    }
    return ids;
  };
  // Nothing where an override has the last word.
  const auto named = [&](const std::string& key, int limit) -> std::optional<int32_t> {
    if (set.json.contains(key + "_id")) return std::nullopt;
    for (const Source* source : {&files.tokenizer_config, &files.token_map}) {
      const auto id = NamedToken(source->json, key, tokenizer);
      if (id && *id >= limit)
        Fail("{}: {} has id {}, the vocabulary has {} tokens", source->name, key, *id, limit);
      if (id) return id;
    }
    return std::nullopt;
  };
  const auto first = [&](const std::string& key) -> std::optional<int32_t> {
    if (const auto id = named(key, INT32_MAX)) return id;
    const std::vector<int32_t> ids = from_configs(key, INT32_MAX);
    return ids.empty() ? std::nullopt : std::optional<int32_t>(ids.front());
  };

  SpecialTokens tokens;
  tokens.bos = first("bos_token");
  tokens.pad = first("pad_token");
  tokens.unk = first("unk_token");
  tokens.eos = from_configs("eos_token", vocab);
  if (const auto eos = named("eos_token", vocab)) tokens.eos.push_back(*eos);
  std::sort(tokens.eos.begin(), tokens.eos.end());
  tokens.eos.erase(std::unique(tokens.eos.begin(), tokens.eos.end()), tokens.eos.end());
  return tokens;
}

}  // namespace

SpecialTokens ReadSpecialTokens(const std::filesystem::path& dir, const Tokenizer* tokenizer,
                                int vocab,
                                std::span<const std::pair<std::string, std::string>> overrides) {
  const auto read = [&](const char* name) {
    return Source{ReadOptional(dir / name), (dir / name).string()};
  };
  Files files = {read("tokenizer_config.json"), read("special_tokens_map.json"),
                 read("generation_config.json"), read("config.json")};
  if (FindString(files.config.json, "model_type", files.config.name) == "huginn_raven")
    files.config.json = Json::object();
  return Gather(files, tokenizer, vocab, overrides);
}

SpecialTokens SpecialTokensOf(const Json& config, const std::string& name, int vocab,
                              std::span<const std::pair<std::string, std::string>> overrides) {
  const Source none = {Json::object(), name};
  return Gather({none, none, none, {config, name}}, nullptr, vocab, overrides);
}

}  // namespace loopspec
