#include "text/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace loopspec {
namespace {

std::string Lossy(std::string_view bytes) {
  std::string out;
  AppendLossyUtf8(bytes, out);
  return out;
}

std::string Lower(char32_t c) {
  std::string out;
  AppendLowercase(c, out);
  return out;
}

TEST(Unicode, ReplacesMaximalIllFormedParts) {
  EXPECT_EQ(Lossy("a\xC0\x80z"), "a\uFFFD\uFFFDz");
  EXPECT_EQ(Lossy("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(Lossy("\xE2\x82z"), "\uFFFDz");
  EXPECT_EQ(Lossy("\xF0\x80\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xF0\x9F\x98\x80"), "\U0001F600");
}

TEST(Unicode, HoldsBackAnUnfinishedCharacter) {
  std::string out;
  EXPECT_EQ(AppendLossyUtf8Prefix("ab\xF0\x9F", out), 2u);
  EXPECT_EQ(out, "ab");
  out.clear();
  EXPECT_EQ(AppendLossyUtf8Prefix("\xF0\x9F\x98\x80\xC3", out), 1u);
  EXPECT_EQ(out, "\U0001F600");
}

TEST(Unicode, KnowsValidFromInvalid) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("plain ascii text that is longer than a word"));
  EXPECT_TRUE(IsValidUtf8("caf\u00e9 \U0010FFFF"));
  EXPECT_FALSE(IsValidUtf8("plain ascii text and then \xFF"));
  EXPECT_FALSE(IsValidUtf8("\xC3"));
}

TEST(Unicode, EncodesWhatItDecodes) {
  for (char32_t c = 0; c < 0x110000; c += 7) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, text);
    ASSERT_TRUE(IsValidUtf8(text));
    ASSERT_EQ(DecodeUtf8(text, 0).value, c);
    ASSERT_EQ(static_cast<size_t>(DecodeUtf8(text, 0).length), text.size());
    ASSERT_EQ(PreviousCharacter("x" + text, 1 + text.size()), 1u);
  }
}

TEST(Unicode, ClassesOfSomeCharacters) {
  EXPECT_TRUE(HasClass(U'a', kLetter | kNumber));
  EXPECT_FALSE(HasClass(U'a', kNumber));
  EXPECT_TRUE(HasClass(U'\u00BD', kNumber));
  EXPECT_TRUE(HasClass(U'\u3000', kSpace));
  EXPECT_FALSE(HasClass(U'\u200B', kSpace));
  EXPECT_TRUE(HasClass(U'\u0301', kAccent));
  EXPECT_TRUE(HasClass(U'$', kPunctuation));
  EXPECT_TRUE(HasClass(U'\u200D', kWord));
  EXPECT_TRUE(HasClass(0x31350, kLetter));  // Unicode 15
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(Normalize("e\u0301", NormalForm::kNfc), "\u00e9");
  EXPECT_EQ(Normalize("\u00e9", NormalForm::kNfd), "e\u0301");
  EXPECT_EQ(Normalize("\ufb01\u00bd", NormalForm::kNfkc), "fi1\u20442");
  EXPECT_EQ(Normalize("\ufb01", NormalForm::kNfc), "\ufb01");
  EXPECT_EQ(Normalize("\uD55C", NormalForm::kNfkd), "\u1112\u1161\u11AB");
  EXPECT_EQ(Normalize("\u32FF", NormalForm::kNfkc), "\u32FF");  // too new for the library's tables
}

TEST(Unicode, Lowercase) {
  EXPECT_EQ(Lower(U'A'), "a");
  EXPECT_EQ(Lower(U'\u00C9'), "\u00e9");
  EXPECT_EQ(Lower(U'\u0130'), "i\u0307");
  EXPECT_EQ(Lower(0x10D50), "\U00010D70");
}

}  // namespace
}  // namespace loopspec
