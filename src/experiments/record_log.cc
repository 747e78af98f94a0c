#include "experiments/record_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace loopspec::experiments {
namespace {

constexpr const char* kSettings = "loopspec_records";

struct Lines {
  std::vector<Json> all;
  size_t whole_bytes = 0;  // of the lines that are complete
};

Lines ReadLines(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail("{} cannot be read: {}", path.string(), std::strerror(errno));
  std::stringstream buffer;
  buffer << file.rdbuf();
  const std::string text = buffer.str();
  Lines lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // cut off while it was written
    const std::string what = fmt::format("{}, line {}", path.string(), lines.all.size() + 1);
    lines.all.push_back(ParseJson(text.substr(begin, end - begin), what));
    begin = end + 1;
    lines.whole_bytes = begin;
  }
  if (!lines.all.empty() && !(lines.all[0].is_object() && lines.all[0].contains(kSettings))) {
    Fail("{} holds no records of a measurement: its first line has no \"{}\"", path.string(),
         kSettings);
  }
  return lines;
}

void CheckSame(const Json& was, const Json& now, const std::vector<std::string>& free,
               const std::filesystem::path& path) {
  for (const auto& [key, value] : now.items()) {
    if (std::find(free.begin(), free.end(), key) != free.end()) continue;
    if (was.contains(key) && was[key] == value) continue;
    const auto shorten = [](std::string text) {
      return text.size() > 60 ? text.substr(0, 57) + "..." : text;
    };
    const std::string before = was.contains(key) ? was[key].dump() : "nothing";
    Fail(
        "{} holds records of another measurement: {} was {}, now {}; expected the same, or "
        "another file",
        path.string(), key, shorten(before), shorten(value.dump()));
  }
}

void WriteAll(int file, const std::string& text, const std::filesystem::path& path) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) Fail("cannot write {}: {}", path.string(), std::strerror(errno));
    done += static_cast<size_t>(written);
  }
}

}  // namespace

RecordLog::RecordLog(const std::filesystem::path& path, const OrderedJson& settings,
                     const std::vector<std::string>& free)
    : path_(path) {
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) Fail("cannot write {}: {}", path.string(), std::strerror(errno));
  if (flock(file_, LOCK_EX | LOCK_NB) != 0)
    Fail("{} is being written by another run, expected one at a time", path.string());
  const Lines lines = ReadLines(path);
  if (!lines.all.empty()) {
    CheckSame(lines.all[0][kSettings], Json::parse(settings.dump()), free, path);
    found_.assign(lines.all.begin() + 1, lines.all.end());
  }
  if (ftruncate(file_, static_cast<off_t>(lines.whole_bytes)) != 0)
    Fail("cannot write {}: {}", path.string(), std::strerror(errno));
  if (lines.all.empty()) Append({{kSettings, settings}});
}

RecordLog::~RecordLog() {
  if (file_ >= 0) close(file_);
}

void RecordLog::Append(const OrderedJson& record) {
  WriteAll(file_, record.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n", path_);
}

RecordFile ReadRecords(const std::filesystem::path& path) {
  Lines lines = ReadLines(path);
  if (lines.all.empty()) Fail("{} holds no records of a measurement: it is empty", path.string());
  RecordFile file;
  file.settings = lines.all[0][kSettings];
  file.records.assign(std::make_move_iterator(lines.all.begin() + 1),
                      std::make_move_iterator(lines.all.end()));
  return file;
}

}  // namespace loopspec::experiments
