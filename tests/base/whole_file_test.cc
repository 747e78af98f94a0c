// Files that appear when they are complete.
#include "base/whole_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <ostream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

size_t FilesIn(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(WholeFile, IsReplacedAtOnce) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "file";
  WriteWholeFile(file, "before");
  WriteWholeFile(file, [&](std::ostream& out) {
    out << "after";
    out.flush();
    EXPECT_EQ(ReadFile(file), "before") << "until all of it is written";
  });
  EXPECT_EQ(ReadFile(file), "after");
  EXPECT_EQ(FilesIn(folder.path()), 1u);
}

TEST(WholeFile, LeavesNothingWhenTheWritingFails) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "file";
  EXPECT_THROW(WriteWholeFile(file,
                              [](std::ostream& out) {
                                out << "half";
                                throw Error("no more");
                              }),
               Error);
  EXPECT_EQ(FilesIn(folder.path()), 0u);
  EXPECT_THROW(WriteWholeFile(folder.path() / "none" / "file", "text"), Error);
  fs::create_directory(file);  // cannot be replaced by a file
  EXPECT_THROW(WriteWholeFile(file, "text"), Error);
  EXPECT_EQ(FilesIn(folder.path()), 1u);
}

}  // namespace
}  // namespace loopspec
