// Text for a terminal, broken between words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace loopspec::tools {

// Takes a text in pieces of whole characters and gives it back with line breaks where a word would
// pass the terminal's edge. A word is held back until its end is known.
class WordWrap {
 public:
  // `columns` of the terminal; 0: the text comes back as it is.
  explicit WordWrap(size_t columns) : columns_(columns) {}

  // What can be written now.
  std::string Push(std::string_view text);
  // The word that was held back.
  std::string Finish();

 private:
  void Put(std::string& out);

  const size_t columns_;
  size_t column_ = 0;  // where the cursor is
  std::string word_;
  size_t width_ = 0;  // of the word
};

// Columns of the terminal that standard output is; 0 where it is no terminal.
size_t TerminalColumns();

// A whole text, broken for that terminal.
std::string Wrapped(std::string_view text);

}  // namespace loopspec::tools
