#include "tools/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

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

void WriteTo(const std::string& file, const std::string& text, const std::string& path) {
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) return;
  const std::string reason = std::strerror(errno);
  std::error_code ignored;
  if (file != path) fs::remove(file, ignored);
  Fail("cannot write {}: {}", path, reason);
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
  if (IsSpecial(path)) return WriteTo(path, text, path);
  const std::string temporary = path + ".partial";
  WriteTo(temporary, text, path);
  std::error_code error, ignored;
  fs::rename(temporary, path, error);
  if (!error) return;
  fs::remove(temporary, ignored);
  Fail("cannot write {}: {}", path, error.message());
}

}  // namespace loopspec::tools
