#include "text/post_processor.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer_json.h"

namespace loopspec {
namespace {

constexpr size_t kMostTemplates = 16;
constexpr size_t kMostParts = 256;
constexpr size_t kMostTokens = size_t{1} << 28;  // a template may repeat its text

std::vector<int32_t> ReadIds(const Json& list, std::string_view what) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      Fail("{}: a special token has the id {}, expected a whole number", what, id.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

PostProcessor PostProcessor::FromJson(const Json& json, std::string_view what) {
  PostProcessor result;
  if (!json.is_null()) result.Add(json, what);
  return result;
}

void PostProcessor::Add(const Json& json, std::string_view what) {
  const std::string type = TypeOf(json, what, "post_processor");
  const std::string name = fmt::format("{}: post_processor {}", what, type);
  if (type == "Sequence") {
    for (const Json& part : RequireArray(json, "processors", name)) Add(part, what);
  } else if (type == "TemplateProcessing") {
    if (templates_.size() >= kMostTemplates)
      Fail("{}: has more than {} templates", what, kMostTemplates);
    templates_.push_back(ReadTemplate(json, name));
  } else if (type != "ByteLevel") {  // which only moves offsets, and there are none here
    Fail("{}: the post_processor has type {}, which is not supported", what, type);
  }
}

PostProcessor::Template PostProcessor::ReadTemplate(const Json& json, std::string_view what) {
  Template parts;
  const Json& single = RequireArray(json, "single", what);
  if (single.size() > kMostParts)
    Fail("{}: single has {} parts, expected at most {}", what, single.size(), kMostParts);
  for (const Json& piece : single) {
    if (piece.is_object() && piece.contains("Sequence")) {
      const std::string id = RequireString(piece["Sequence"], "id", what);
      if (id != "A") Fail("{}: single names the sequence {}, expected A", what, id);
      parts.push_back({true, {}});
    } else if (piece.is_object() && piece.contains("SpecialToken")) {
      const std::string id = RequireString(piece["SpecialToken"], "id", what);
      const Json& known = RequireMember(json, "special_tokens", what);
      const Json& token = RequireMember(known, id, fmt::format("{}: special_tokens", what));
      parts.push_back({false, ReadIds(RequireArray(token, "ids", what), what)});
    } else {
      Fail("{}: single holds {}, expected a Sequence or a SpecialToken", what,
           piece.dump().substr(0, 60));
    }
  }
  return parts;
}

PostProcessor PostProcessor::BeginWith(int32_t id) {
  PostProcessor result;
  result.templates_ = {{{false, {id}}, {true, {}}}};
  return result;
}

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids, bool add_special_tokens) const {
  for (const Template& parts : templates_) {
    std::vector<int32_t> result;
    for (const Part& part : parts) {
      const std::vector<int32_t>& source = part.text ? ids : part.special;
      if (result.size() + source.size() > kMostTokens)
        Fail("the template makes more than {} tokens", kMostTokens);
      if (part.text || add_special_tokens)
        result.insert(result.end(), source.begin(), source.end());
    }
    ids = std::move(result);
  }
  return ids;
}

}  // namespace loopspec
