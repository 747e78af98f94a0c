#include "jinja/filters.h"

#include <unordered_map>

namespace loopspec::jinja {

FilterFunction FindFilter(std::string_view name) {
  static const auto* const kTable = [] {
    auto* table = new std::unordered_map<std::string_view, FilterFunction>;
    for (const Filter& filter : TextFilters()) table->emplace(filter.name, filter.function);
    for (const Filter& filter : SequenceFilters()) table->emplace(filter.name, filter.function);
    return table;
  }();
  const auto it = kTable->find(name);
  return it == kTable->end() ? nullptr : it->second;
}

bool IsKnownFilter(std::string_view name) {
  return FindFilter(name) != nullptr;
}

}  // namespace loopspec::jinja
