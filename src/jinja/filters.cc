#include "jinja/filters.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace loopspec::jinja {
namespace {

constexpr std::string_view kLeftOutFilters[] = {
    "batch",     "center", "filesizeformat", "forceescape", "groupby",
    "pprint",    "random", "slice",          "striptags",   "truncate",
    "urlencode", "urlize", "wordcount",      "wordwrap",    "xmlattr"};

}  // namespace

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

bool IsLeftOutFilter(std::string_view name) {
  return std::find(std::begin(kLeftOutFilters), std::end(kLeftOutFilters), name) !=
         std::end(kLeftOutFilters);
}

}  // namespace loopspec::jinja
