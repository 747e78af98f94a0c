#include "text/tool_format.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace loopspec {
namespace {

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// Keywords beside which a list of properties is all that there is to an object.
bool IsPlainObject(const OrderedJson& schema) {
  constexpr std::array kPlain = {"type",        "properties",  "required", "title",
                                 "description", "$schema",     "$id",      "$comment",
                                 "$defs",       "definitions", "default",  "examples"};
  return std::ranges::all_of(schema.items(), [&](const auto& entry) {
    return std::ranges::find(kPlain, entry.key()) != kPlain.end();
  });
}

bool NamesAllRequired(const OrderedJson& schema) {
  const auto required = schema.find("required");
  if (required == schema.end() || !required->is_array()) return true;
  const auto properties = schema.find("properties");
  return std::ranges::all_of(*required, [&](const OrderedJson& name) {
    return name.is_string() && properties != schema.end() &&
           properties->contains(name.get_ref<const std::string&>());
  });
}

}  // namespace

ToolFormat ToolFormatOf(std::string_view source, const OrderedJson& arguments) {
  if (!Has(source, "tools")) return ToolFormat::kGeneric;
  if (Has(source, kFunction)) {
    const bool json = Has(source, "tool_call_format") && arguments.is_object() &&
                      arguments.value("tool_call_format", OrderedJson()) == "json";
    return json ? ToolFormat::kHermes : ToolFormat::kXml;
  }
  if (Has(source, kToolCall)) return ToolFormat::kHermes;
  if (Has(source, "ipython") && Has(source, "\"parameters\": ")) return ToolFormat::kLlama3;
  return ToolFormat::kGeneric;
}

OrderedJson ArgumentsSchema(const Tool& tool) {
  OrderedJson schema = tool.parameters;
  if (schema.is_null()) schema = OrderedJson::object();
  if (!schema.is_object())
    Fail("the parameters of {} are {}, expected a JSON schema of an object", tool.name,
         schema.type_name());
  if (!schema.contains("type")) schema["type"] = "object";
  if (schema["type"] != "object")
    Fail("the parameters of {} have type {}, expected object", tool.name, schema["type"].dump());
  if (IsPlainObject(schema) && NamesAllRequired(schema)) schema["additionalProperties"] = false;
  return schema;
}

}  // namespace loopspec
