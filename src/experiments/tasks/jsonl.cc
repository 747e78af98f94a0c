#include "experiments/tasks/jsonl.h"

#include <zlib.h>

#include <memory>

#include "base/error.h"
#include "base/mapped_file.h"
#include "experiments/tasks/strings.h"

namespace loopspec::experiments {
namespace {

// Bounds what a small compressed file can make us hold.
constexpr size_t kMostBytes = size_t{1} << 30;

std::string ReadGzip(const std::filesystem::path& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) Fail("{}: cannot be opened", path.string());
  std::string text;
  std::string buffer(1 << 16, '\0');
  for (;;) {
    const int got = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    if (got < 0) Fail("{}: not a complete gzip file", path.string());
    if (got == 0) break;
    text.append(buffer, 0, static_cast<size_t>(got));
    if (text.size() > kMostBytes) Fail("{}: over {} bytes of text", path.string(), kMostBytes);
  }
  int error = Z_OK;
  gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) {
    Fail("{}: not a complete gzip file", path.string());
  }
  return text;
}

// Python writes NaN and Infinity, which JSON does not have: null instead. No task reads them.
std::string WithoutNonFinite(std::string_view line) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string && line[i] == '\\' && i + 1 < line.size()) {
      result += line[i++];
    } else if (line[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && (line[i] == 'N' || line[i] == 'I')) {
      const std::string_view word = line[i] == 'N' ? "NaN" : "Infinity";
      if (line.substr(i).starts_with(word)) {
        if (!result.empty() && result.back() == '-') result.pop_back();
        result += "null";
        i += word.size() - 1;
        continue;
      }
    }
    result += line[i];
  }
  return result;
}

}  // namespace

std::vector<Json> ReadJsonLines(const std::filesystem::path& path, std::optional<size_t> limit) {
  if (!std::filesystem::exists(path)) Fail("{}: no such benchmark file", path.string());
  const std::string text = path.extension() == ".gz" ? ReadGzip(path) : ReadFile(path);
  std::vector<Json> entries;
  size_t number = 0;
  for (const std::string_view line : Split(text, "\n")) {
    if (limit && entries.size() == *limit) break;
    ++number;
    if (Strip(line).empty()) continue;
    Json entry =
        ParseJson(WithoutNonFinite(line), fmt::format("line {} of {}", number, path.string()));
    if (!entry.is_object()) Fail("line {} of {}: expected an object", number, path.string());
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string NeedString(const Json& object, const std::string& key, const std::string& where) {
  auto value = FindString(object, key, where);
  if (!value) Fail("{}: no \"{}\"", where, key);
  return *std::move(value);
}

}  // namespace loopspec::experiments
