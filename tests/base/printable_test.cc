// Text that a terminal can take.
#include "base/printable.h"

#include <gtest/gtest.h>

namespace loopspec {
namespace {

TEST(Printable, TextStaysAsItIs) {
  for (const char* text : {"", "plain", "caf\xc3\xa9", "\xe6\x97\xa5\xe6\x9c\xac",
                           "\xf0\x9f\x98\x80", "back\\slash"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, ControlsAndBrokenBytesAreShown) {
  EXPECT_EQ(Printable("\033[2Jgone"), "\\x1b[2Jgone");
  EXPECT_EQ(Printable("a\r\n\tb\x7f"), "a\\x0d\\x0a\\x09b\\x7f");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Printable("\xc3"), "\\xc3");                             // cut off
  EXPECT_EQ(Printable("\xc3("), "\\xc3(");                           // not continued
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond Unicode
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");  // a control of two bytes
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "txt"),
            "\\xe2\\x80\\xaetxt");  // writes from right to left
}

}  // namespace
}  // namespace loopspec
