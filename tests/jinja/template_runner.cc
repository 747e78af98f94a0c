// Renders templates for compare_templates.py: one JSON case per line in, one JSON result per line
// out, either
// {"text": ...} or {"error": ...}.
#include <fmt/format.h>

#include <iostream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace {

loopspec::OrderedJson RunCase(const loopspec::OrderedJson& test) {
  loopspec::OrderedJson result;
  try {
    const auto chat_template = loopspec::ChatTemplate::FromSource(
        test.at("source").get<std::string>(),
        test.value("variables", loopspec::OrderedJson::object()));
    loopspec::ChatTemplate::Options options;
    options.add_generation_prompt = test.value("add_generation_prompt", false);
    options.arguments = test.value("arguments", loopspec::OrderedJson::object());
    options.now_unix = test.value("now", int64_t{0});
    result["text"] =
        chat_template.Render(test.value("messages", loopspec::OrderedJson::array()), options);
  } catch (const loopspec::Error& error) {
    result["error"] = error.what();
  }
  return result;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    const loopspec::OrderedJson test = loopspec::ParseOrderedJson(line, "case");
    std::cout << RunCase(test).dump(-1, ' ', true, loopspec::OrderedJson::error_handler_t::replace)
              << "\n";
  }
  return 0;
}
