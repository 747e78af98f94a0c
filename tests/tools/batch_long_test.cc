// loopspec batch killed again and again: for the long tests.
#include <gtest/gtest.h>

#include "tests/tools/batch_cases.h"

namespace loopspec::test {
namespace {

TEST(BatchLong, SurvivesAHundredKills) {
  KillAtRandomMoments(100, 20261117);
}

}  // namespace
}  // namespace loopspec::test
