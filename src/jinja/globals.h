// The names every template knows: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace loopspec::jinja {

class Interpreter;

// The one value that templates can change: {% set ns.name = value %}.
struct Namespace final : Object {
  Dict attributes;

  std::string_view TypeName() const override { return "Namespace"; }
  std::string Repr(Budget& budget) const override;
  std::optional<Value> Attribute(std::string_view name) override;
  void Clear() override { attributes = Dict(); }
};

std::vector<std::pair<std::string, Value>> Globals();

}  // namespace loopspec::jinja
