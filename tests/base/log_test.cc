// Warnings on stderr.
#include "base/log.h"

#include <gtest/gtest.h>

namespace loopspec {
namespace {

TEST(Log, AWarningIsOneLine) {
  testing::internal::CaptureStderr();
  LogWarning("{} of {}", 1, "a\n\033[2Jb");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "loopspec: warning: 1 of a\\x0a\\x1b[2Jb\n");
}

}  // namespace
}  // namespace loopspec
