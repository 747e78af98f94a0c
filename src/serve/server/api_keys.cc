#include "serve/server/api_keys.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/trimmed.h"

namespace loopspec::serve {
namespace {

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

// What stands after a key: nothing, or weight=NUMBER.
double ReadWeight(std::string_view text, std::string_view where) {
  constexpr std::string_view kName = "weight=";
  constexpr double kLeast = 0.001, kMost = 1000;
  if (text.empty()) return 1;
  double weight = 0;
  const std::string_view number = text.substr(std::min(kName.size(), text.size()));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
  if (!text.starts_with(kName) || error != std::errc() || end != number.data() + number.size() ||
      !(weight >= kLeast) || weight > kMost) {
    Fail(
        "{}: after an API key stands \"{}\", expected nothing or weight= and a number from {} to "
        "{}",
        where, text, kLeast, kMost);
  }
  return weight;
}

}  // namespace

void ApiKeys::Add(std::string key, std::string_view where, double weight) {
  if (key.empty()) Fail("{}: an API key is empty", where);
  for (const char c : key) {
    if (c <= ' ' || c > '~') {
      Fail("{}: an API key has a character that is not printable ASCII", where);
    }
  }
  const uint64_t share = std::hash<std::string>{}("key " + key);
  keys_.push_back({std::move(key), {share, weight}});
}

void ApiKeys::AddFile(const std::filesystem::path& path) {
  std::istringstream lines{std::string(ReadFile(path))};
  size_t before = keys_.size();
  for (std::string line; std::getline(lines, line);) {
    const std::string_view text = Trimmed(line);
    if (text.empty() || text.front() == '#') continue;
    const size_t end = std::min(text.find_first_of(" \t"), text.size());
    Add(std::string(text.substr(0, end)), path.string(),
        ReadWeight(Trimmed(text.substr(end)), path.string()));
  }
  if (keys_.size() == before) Fail("{}: expected an API key on a line, found none", path.string());
}

const ApiKeys::Entry* ApiKeys::Look(std::string_view given) const {
  const Entry* found = nullptr;
  for (const Entry& entry : keys_) {
    if (SameKey(entry.key, given)) found = &entry;
  }
  return found;
}

std::optional<ApiKeys::Holder> ApiKeys::Find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return std::nullopt;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((authorization[i] | 0x20) != (kScheme[i] | 0x20)) return std::nullopt;
  }
  return FindKey(authorization.substr(kScheme.size()));
}

std::optional<ApiKeys::Holder> ApiKeys::FindKey(std::string_view key) const {
  const Entry* entry = Look(Trimmed(key));
  return entry != nullptr ? std::optional(entry->holder) : std::nullopt;
}

}  // namespace loopspec::serve
