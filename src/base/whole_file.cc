#include "base/whole_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace loopspec {

void WriteWholeFile(const std::filesystem::path& path,
                    const std::function<void(std::ostream& out)>& write,
                    const std::string& suffix) {
  const std::filesystem::path aside = path.string() + suffix;
  std::error_code ignored;
  try {
    errno = 0;
    std::ofstream out(aside, std::ios::binary | std::ios::trunc);
    write(out);
    out.close();
    if (!out) Fail("cannot write {}: {}", path.string(), std::strerror(errno));
    std::error_code error;
    std::filesystem::rename(aside, path, error);
    if (error) Fail("cannot write {}: {}", path.string(), error.message());
  } catch (...) {
    std::filesystem::remove(aside, ignored);
    throw;
  }
}

void WriteWholeFile(const std::filesystem::path& path, std::string_view text,
                    const std::string& suffix) {
  WriteWholeFile(
      path, [&](std::ostream& out) { out << text; }, suffix);
}

}  // namespace loopspec
