// Members of objects and elements of lists in a request body, with the names that they have in
// errors: "messages[3].content".
#pragma once

#include <string>

#include "base/json.h"
#include "serve/openai/error.h"
#include "serve/openai/fields.h"

namespace loopspec::serve {

std::string ElementOf(const std::string& path, size_t index);
// "messages[3].content[1]" as "messages[].content[]": one name for a field of all elements.
std::string WithoutIndices(const std::string& path);

// These throw an ApiException that names `path`. `Value`: Json or OrderedJson.
template <typename Value>
void CheckIsObject(const Value& value, const std::string& path) {
  if (!value.is_object()) Refuse(path, "{} is {}, expected an object.", path, Shown(value));
}
template <typename Value>
void CheckIsList(const Value& value, const std::string& path) {
  if (!value.is_array()) Refuse(path, "{} is {}, expected a list.", path, Shown(value));
}

// Null where the object has no such member.
const OrderedJson& Member(const OrderedJson& object, const char* name);
// A member as text; empty where it is absent or null. Throws an ApiException that names it.
std::string TextMember(const OrderedJson& object, const char* name, const std::string& path);

// Notes an element of a type that this server does not know, or refuses it where the server is
// strict. `type`: empty where the element has none.
void UnknownType(const std::string& path, const std::string& type, const WireLimits& limits,
                 IgnoredFields& ignored);

}  // namespace loopspec::serve
