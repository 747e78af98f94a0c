#include "serve/server/api_keys.h"

#include <sstream>

#include "base/error.h"
#include "base/mapped_file.h"

namespace loopspec::serve {
namespace {

bool IsWhite(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsWhite(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsWhite(text.back())) text.remove_suffix(1);
  return text;
}

// Looks at every byte of `given` whatever `key` is. `volatile` keeps the compiler from leaving
// early.
bool SameKey(std::string_view key, std::string_view given) {
  volatile unsigned difference = key.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = key[i % key.size()];
    difference = difference | static_cast<unsigned char>(expected ^ given[i]);
  }
  return difference == 0;
}

}  // namespace

void ApiKeys::Add(std::string key, std::string_view where) {
  if (key.empty()) Fail("{}: an API key is empty", where);
  for (const char c : key) {
    if (c <= ' ' || c > '~') {
      Fail("{}: an API key has a character that is not printable ASCII", where);
    }
  }
  keys_.push_back(std::move(key));
}

void ApiKeys::AddFile(const std::filesystem::path& path) {
  std::istringstream lines{std::string(ReadFile(path))};
  size_t before = keys_.size();
  for (std::string line; std::getline(lines, line);) {
    const std::string_view key = Trimmed(line);
    if (!key.empty() && key.front() != '#') Add(std::string(key), path.string());
  }
  if (keys_.size() == before) Fail("{}: expected an API key on a line, found none", path.string());
}

bool ApiKeys::Has(std::string_view given) const {
  bool found = false;
  for (const std::string& key : keys_) found = SameKey(key, given) || found;
  return found;
}

bool ApiKeys::Allows(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((authorization[i] | 0x20) != (kScheme[i] | 0x20)) return false;
  }
  return Has(Trimmed(authorization.substr(kScheme.size())));
}

}  // namespace loopspec::serve
