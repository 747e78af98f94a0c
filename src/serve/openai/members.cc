#include "serve/openai/members.h"

#include <algorithm>
#include <cctype>

#include "serve/openai/values.h"

namespace loopspec::serve {

std::string ElementOf(const std::string& path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

std::string WithoutIndices(const std::string& path) {
  std::string out = path;
  std::erase_if(out, [](unsigned char c) { return std::isdigit(c) != 0; });
  return out;
}

const OrderedJson& Member(const OrderedJson& object, const char* name) {
  static const OrderedJson none;
  const auto it = object.find(name);
  return it == object.end() ? none : *it;
}

std::string TextMember(const OrderedJson& object, const char* name, const std::string& path) {
  const OrderedJson& value = Member(object, name);
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return ReadString(value, path + "." + name);
}

void UnknownType(const std::string& path, const std::string& type, const WireLimits& limits,
                 IgnoredFields& ignored) {
  Unknown(WithoutIndices(path) + "." + (type.empty() ? "type" : type), limits, ignored);
}

}  // namespace loopspec::serve
