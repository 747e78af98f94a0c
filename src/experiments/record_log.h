// Lines of JSON that a long measurement leaves behind as it goes, so that it can be taken up again
// after a break: the first line says what is measured, each further one is a finished piece.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace loopspec::experiments {

class RecordLog {
 public:
  // Reads `path` if it is there, else makes it. `settings` stands in the first line; a file of
  // other settings is refused, naming the first that differs. `free` names keys that may differ.
  // A last line that was cut off by a crash is dropped. Throws Error.
  RecordLog(const std::filesystem::path& path, const OrderedJson& settings,
            const std::vector<std::string>& free = {});
  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // What was there when it was opened.
  const std::vector<Json>& found() const { return found_; }
  // Writes a line; it is with the system when the call returns. Throws Error.
  void Append(const OrderedJson& record);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  std::vector<Json> found_;
};

// The settings and records of a finished or unfinished file. Throws Error.
struct RecordFile {
  Json settings;
  std::vector<Json> records;
};
RecordFile ReadRecords(const std::filesystem::path& path);

}  // namespace loopspec::experiments
