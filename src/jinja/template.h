// The door to the template language: parse once, render as often as you like. Nothing else of this
// folder is for others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "jinja/budget.h"

namespace loopspec::jinja {

struct ParsedTemplate;

class Template {
 public:
  // Throws Error naming the line and what was expected.
  explicit Template(std::string_view source);

  // `variables`: an object, name to value. `now_unix`: what strftime_now() tells. Throws Error when
  // the template cannot be followed, refuses (raise_exception, whose words are in the error) or
  // goes over a limit. Any thread: rendering only reads.
  std::string Render(const OrderedJson& variables, const Limits& limits, int64_t now_unix) const;

 private:
  std::shared_ptr<const ParsedTemplate> parsed_;  // shared by copies
};

}  // namespace loopspec::jinja
