// The plain fields of a Request, described once: numbers and switches. Its sampling is in
// sampling_fields.h, its choices among names in choices.h; texts and lists (stop strings, depths)
// are read by each interface in its own form.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "fields/range.h"
#include "loopspec/request.h"

namespace loopspec {

struct RequestField {
  const char* name;  // max_tokens: in bodies and in Python; --max-tokens in commands
  std::variant<bool Request::*, int Request::*, std::optional<int> Request::*> member;
  Range range;       // of numbers
  const char* help;  // one sentence

  bool is_switch() const { return std::holds_alternative<bool Request::*>(member); }
  void Set(Request& request, int value) const;
};

std::span<const RequestField> RequestFields();
// The field of that name, which must be one.
const RequestField& RequestFieldNamed(std::string_view name);

// Throws FieldError for a number outside its range.
void CheckNumbers(const Request& request);

// The option of the command line that sets a field of a request or of EngineOptions: "--top-p" of
// "top_p", "--set" of "config".
std::string OptionOf(std::string_view field);

}  // namespace loopspec
