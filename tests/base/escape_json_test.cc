#include "base/escape_json.h"

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

namespace loopspec {
namespace {

TEST(EscapedJson, EscapesWhatNeedsIt) {
  EXPECT_EQ(EscapedJson("a/b \xC3\xBC"), "a/b \xC3\xBC");
  EXPECT_EQ(EscapedJson("\"\\\b\f\n\r\t"), R"(\"\\\b\f\n\r\t)");
  EXPECT_EQ(EscapedJson(std::string("\0\x1f\x7f", 3)), "\\u0000\\u001f\x7f");
  EXPECT_EQ(EscapedJson("\xC3"), "\xC3");  // half a character
}

// Every byte that may stand alone, as the library writes it.
TEST(EscapedJson, IsWhatTheLibraryWrites) {
  for (int byte = 0; byte < 0x80; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_EQ('"' + EscapedJson(text) + '"', Json(text).dump());
  }
}

}  // namespace
}  // namespace loopspec
