#include "jinja/template.h"

#include "base/json.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"

namespace loopspec::jinja {

struct ParsedTemplate {
  Body body;
};

Template::Template(std::string_view source)
    : parsed_(std::make_shared<const ParsedTemplate>(ParsedTemplate{Parse(source)})) {}

std::string Template::Render(const OrderedJson& variables, const Limits& limits,
                             int64_t now_unix) const {
  Dict names;
  for (const auto& [name, value] : variables.items()) names.Set(name, Value::FromJson(value));
  Interpreter interpreter(limits, now_unix);
  return interpreter.Render(parsed_->body, names);
}

}  // namespace loopspec::jinja
