// An error as clients of the API see it: an HTTP status and OpenAI's error object.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace loopspec::serve {

struct ApiError {
  int status = 400;
  std::string message;                         // one sentence
  std::string type = "invalid_request_error";  // OpenAI's classes of errors
  std::string param;                           // the field at fault; empty: null
  std::string code;                            // for programs; empty: null
  int retry_after = 0;                         // seconds; 0: no such header
  // What the log says instead, where the message quotes more of a request than values in quotes.
  std::string log = {};
};

// The error without what it quotes of a request, which may be anybody's prompt.
std::string WithoutQuotes(const ApiError& error);

class ApiException : public std::runtime_error {
 public:
  explicit ApiException(ApiError error)
      : std::runtime_error(error.message), error_(std::move(error)) {
    Shorten(error_.message, 500);
    Shorten(error_.param, 100);
  }
  const ApiError& error() const { return error_; }

 private:
  // Errors quote what they were given, which may be megabytes.
  static void Shorten(std::string& text, size_t limit) {
    if (text.size() > limit) text = text.substr(0, limit) + "...";
  }

  ApiError error_;
};

// Throws a 400 that names `param`.
template <typename... Args>
[[noreturn]] void Refuse(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  ApiError error;
  error.message = fmt::format(format, std::forward<Args>(args)...);
  error.param = std::move(param);
  throw ApiException(std::move(error));
}

// Nothing is wrong with the request, there is only no room for it now.
inline ApiError Busy(std::string message) {
  return {.status = 429,
          .message = std::move(message),
          .type = "rate_limit_error",
          .param = "",
          .code = "queue_full",
          .retry_after = 1,
          .log = ""};
}

inline ApiError Unavailable(std::string message, std::string code) {
  return {.status = 503,
          .message = std::move(message),
          .type = "service_unavailable_error",
          .param = "",
          .code = std::move(code),
          .retry_after = 5,
          .log = ""};
}

inline ApiError Internal(std::string message) {
  return {.status = 500,
          .message = std::move(message),
          .type = "server_error",
          .param = "",
          .code = "internal_error",
          .retry_after = 0,
          .log = ""};
}

}  // namespace loopspec::serve
