// Errors about one field of a request or one option of an engine. They carry the field's own name;
// the command line, the server and Python say the sentence with the names that their users know:
// --top-p, top_p.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace loopspec {

enum class ErrorKind {
  kValue,        // a value that the field does not take
  kMissing,      // the field names something that does not exist
  kUnavailable,  // a value that this build or this machine cannot serve
  kTooLong,      // prompt and answer together are longer than the context
};

class FieldError : public Error {
 public:
  // "FIELD is FOUND, expected EXPECTED".
  FieldError(ErrorKind kind, std::string field, std::string found, std::string expected)
      : Error(Sentence(field, found, expected)),
        kind_(kind),
        field_(std::move(field)),
        found_(std::move(found)),
        expected_(std::move(expected)) {}
  FieldError(std::string field, std::string found, std::string expected)
      : FieldError(ErrorKind::kValue, std::move(field), std::move(found), std::move(expected)) {}

  ErrorKind kind() const { return kind_; }
  const std::string& field() const { return field_; }
  const std::string& found() const { return found_; }
  const std::string& expected() const { return expected_; }

  // The sentence with the field called `name`.
  std::string Worded(std::string_view name) const { return Sentence(name, found_, expected_); }

 private:
  static std::string Sentence(std::string_view name, std::string_view found,
                              std::string_view expected) {
    return fmt::format("{} is {}, expected {}", name, found, expected);
  }

  ErrorKind kind_;
  std::string field_, found_, expected_;
};

}  // namespace loopspec
