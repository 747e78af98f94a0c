#include "base/json.h"

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"

namespace loopspec {
namespace {

constexpr int kMaxDepth =
    512;  // nlohmann destroys values recursively; this bounds the stack it needs

// Strings are skipped, so a bracket inside one does not count.
void CheckDepth(std::string_view text, std::string_view what) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) Fail("{}: JSON nested deeper than {} levels", what, kMaxDepth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

// "[json.exception.parse_error.101] parse error at line 1 ..." without the library's own number.
std::string_view WithoutTag(std::string_view message) {
  const size_t end = message.find("] ");
  return message.starts_with("[json.exception") && end != std::string_view::npos
             ? message.substr(end + 2)
             : message;
}

template <typename T>
T Parse(std::string_view text, std::string_view what) {
  CheckDepth(text, what);
  try {
    return T::parse(text);
  } catch (const typename T::exception& error) {
    Fail("{}: not valid JSON ({})", what, WithoutTag(error.what()));
  }
}

const Json* Find(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

Json ParseJson(std::string_view text, std::string_view what) {
  return Parse<Json>(text, what);
}
OrderedJson ParseOrderedJson(std::string_view text, std::string_view what) {
  return Parse<OrderedJson>(text, what);
}
Json ReadJsonFile(const std::filesystem::path& path) {
  return ParseJson(ReadFile(path), path.string());
}

std::optional<int64_t> FindInt(const Json& object, std::string_view key, std::string_view what,
                               int64_t low, int64_t high) {
  const Json* value = Find(object, key);
  if (value == nullptr) return std::nullopt;
  int64_t number = 0;
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX}) {
    number = INT64_MAX;
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float() &&
             value->get<double>() == static_cast<double>(static_cast<int64_t>(
                                         std::min(std::max(value->get<double>(), -9e15), 9e15)))) {
    number = static_cast<int64_t>(value->get<double>());  // 32.0 written for 32
  } else {
    Fail("{}: {} is {}, expected a whole number", what, key, Shown(*value));
  }
  if (number < low || number > high) {
    Fail("{}: {} is {}, expected {} to {}", what, key, Shown(*value), low, high);
  }
  return number;
}

std::optional<double> FindNumber(const Json& object, std::string_view key, std::string_view what) {
  const Json* value = Find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) Fail("{}: {} is {}, expected a number", what, key, Shown(*value));
  return value->get<double>();
}

std::optional<bool> FindBool(const Json& object, std::string_view key, std::string_view what) {
  const Json* value = Find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Fail("{}: {} is {}, expected true or false", what, key, Shown(*value));
  return value->get<bool>();
}

std::optional<std::string> FindString(const Json& object, std::string_view key,
                                      std::string_view what) {
  const Json* value = Find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail("{}: {} is {}, expected a string", what, key, Shown(*value));
  return value->get<std::string>();
}

}  // namespace loopspec
