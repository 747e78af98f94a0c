#include "tools/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/whole_file.h"

namespace loopspec::tools {
namespace {

namespace fs = std::filesystem;

// Something other than a file lies there: /dev/stdout, a named pipe. Renaming over it would replace
// it.
bool IsSpecial(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

void CheckOutputFile(const std::string& path, const char* option) {
  if (path == "-") return;
  if (path.empty()) Fail("{} is empty, expected the name of a file to write", option);
  std::error_code error;
  if (fs::is_directory(path, error))
    Fail("{} {} is a folder, expected the name of a file to write", option, path);
  if (IsSpecial(path)) return;
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!fs::is_directory(folder, error))
    Fail("{} {}: there is no folder {}", option, path, folder.string());
  if (access(folder.c_str(), W_OK) != 0)
    Fail("{} {}: cannot write to the folder {}: {}", option, path, folder.string(),
         std::strerror(errno));
}

void WriteTextFile(const std::string& path, const std::string& text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
      Fail("cannot write to standard output: {}", std::strerror(errno));
    return;
  }
  if (!IsSpecial(path)) return WriteWholeFile(path, text);
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) Fail("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace loopspec::tools
