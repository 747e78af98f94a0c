// Arguments of a call matched to the parameters of what is called, as Python does it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/repr.h"
#include "jinja/value.h"

namespace loopspec::jinja {

// Holds pointers into the arguments it was made from.
class Bound {
 public:
  // Fails on too many, unknown, repeated or missing arguments. The first `required` have to be
  // given.
  Bound(std::string_view callee, const Arguments& arguments,
        std::initializer_list<std::string_view> names, size_t required = 0);

  bool Given(size_t i) const { return values_[i] != nullptr; }
  bool GivenNotNone(size_t i) const { return Given(i) && !values_[i]->IsNone(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  // The value, or the default when it was not given.
  Value Or(size_t i, Value fallback) const { return Given(i) ? *values_[i] : fallback; }
  bool Truth(size_t i, bool fallback) const { return Given(i) ? values_[i]->Truthy() : fallback; }
  int64_t Int(size_t i, int64_t fallback) const;
  // Fails on anything but a string.
  std::string Text(size_t i, std::string_view fallback) const;

 private:
  std::string callee_;
  std::vector<const Value*> values_;
};

// An index or count: Python takes ints and bools, nothing else.
int64_t RequireInt(const Value& value, std::string_view callee);
const std::string& RequireText(const Value& value, std::string_view callee);

}  // namespace loopspec::jinja
