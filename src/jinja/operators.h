// Python's operators on template values.
#pragma once

#include <string_view>

#include "jinja/value.h"

namespace loopspec::jinja {

// + - * / // % **
Value ApplyBinary(std::string_view op, const Value& left, const Value& right, Budget& budget);
Value Negate(const Value& value);
Value Positive(const Value& value);
bool Contains(const Value& container, const Value& item, Budget& budget);  // item in container
// == != < <= > >= in, not in
bool ApplyComparison(std::string_view op, const Value& left, const Value& right, Budget& budget);
// value[start:stop:step]; each part an integer, or none or undefined when left out.
Value Slice(const Value& value, const Value& start, const Value& stop, const Value& step,
            Budget& budget);
// value[index] of a string or sequence, counted from the end when negative; nothing when out of
// range.
std::optional<Value> Index(const Value& value, int64_t index, Budget& budget);
Value MakeRange(int64_t start, int64_t stop, int64_t step, Budget& budget);

// str.replace; a negative count replaces all.
std::string ReplaceText(std::string_view text, std::string_view old_text, std::string_view new_text,
                        int64_t count, Budget& budget);

}  // namespace loopspec::jinja
