#include "jinja/arguments.h"

#include <algorithm>

namespace loopspec::jinja {

Bound::Bound(std::string_view callee, const Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required)
    : callee_(callee), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size()) {
    Fail("chat template: {} takes at most {} arguments, {} were given", callee, names.size(),
         arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      Fail("chat template: {} got an unexpected keyword argument '{}'", callee, name);
    }
    const Value*& slot = values_[static_cast<size_t>(at - names.begin())];
    if (slot != nullptr) Fail("chat template: {} got '{}' more than once", callee, name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      Fail("chat template: {} is missing its argument '{}'", callee, names.begin()[i]);
    }
  }
}

int64_t Bound::Int(size_t i, int64_t fallback) const {
  return Given(i) ? RequireInt(*values_[i], callee_) : fallback;
}

std::string Bound::Text(size_t i, std::string_view fallback) const {
  return Given(i) ? RequireText(*values_[i], callee_) : std::string(fallback);
}

int64_t RequireInt(const Value& value, std::string_view callee) {
  RequireDefined(value);
  const std::optional<int64_t> number = value.integer();
  if (!number) Fail("chat template: {} expected an integer, found '{}'", callee, value.TypeName());
  return *number;
}

const std::string& RequireText(const Value& value, std::string_view callee) {
  RequireDefined(value);
  if (!value.IsString()) {
    Fail("chat template: {} expected a string, found '{}'", callee, value.TypeName());
  }
  return value.text();
}

}  // namespace loopspec::jinja
