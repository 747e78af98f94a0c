// jinja2's built-in filters that chat templates use, and the tojson of Hugging Face's templates.
#pragma once

#include <span>
#include <string_view>

#include "jinja/value.h"

namespace loopspec::jinja {

class Interpreter;

using FilterFunction = Value (*)(Interpreter&, const Value&, const Arguments&);

struct Filter {
  std::string_view name;
  FilterFunction function;
};

// Null when there is no such filter here.
FilterFunction FindFilter(std::string_view name);
// A filter of jinja2 that is left out, since no chat template uses it.
bool IsLeftOutFilter(std::string_view name);

// The parts of the table: filters of text and numbers, and filters of sequences.
std::span<const Filter> TextFilters();
std::span<const Filter> SequenceFilters();

}  // namespace loopspec::jinja
