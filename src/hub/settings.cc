#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "base/environment.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/trimmed.h"
#include "hub/cache.h"

namespace loopspec::hub {
namespace {

bool IsTrue(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string ReadToken() {
  std::string token, where;
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (!token.empty()) break;
    token = Trimmed(Environment(name));
    where = name;
  }
  if (token.empty() && !IsTrue(Environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    const std::string named = Environment("HF_TOKEN_PATH");
    const std::filesystem::path file =
        named.empty() ? HomeFolder() / "token" : std::filesystem::path(named);
    where = file.string();
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored)) token = Trimmed(ReadFile(file, 1 << 16));
  }
  // It becomes part of a header, so that a line break in it would begin another one.
  if (std::any_of(token.begin(), token.end(), [](char c) { return c <= ' ' || c == 127; }))
    Fail("{} has a blank or a control character inside, expected one token", where);
  return token;
}

}  // namespace

Settings ReadSettings() {
  Settings settings;
  settings.endpoint = Trimmed(Environment("HF_ENDPOINT"));
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://"))
    Fail("HF_ENDPOINT is {}, expected an address such as https://huggingface.co",
         settings.endpoint);
  settings.token = ReadToken();
  settings.offline =
      IsTrue(Environment("HF_HUB_OFFLINE")) || IsTrue(Environment("TRANSFORMERS_OFFLINE"));
  if (const std::string text = Environment("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), settings.timeout);
    if (error != std::errc() || end != text.data() + text.size() || settings.timeout < 1)
      Fail("HF_HUB_DOWNLOAD_TIMEOUT is {}, expected a whole number of seconds", text);
  }
  return settings;
}

}  // namespace loopspec::hub
