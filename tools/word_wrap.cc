#include "tools/word_wrap.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include <utility>

namespace loopspec::tools {

void WordWrap::Put(std::string& out) {
  if (column_ > 0 && column_ + width_ > columns_) {
    out += '\n';
    column_ = 0;
  }
  out += std::exchange(word_, "");
  column_ += std::exchange(width_, 0);
}

std::string WordWrap::Push(std::string_view text) {
  if (columns_ == 0) return std::string(text);
  std::string out;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t point = -1;
    const utf8proc_ssize_t read =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &point);
    const size_t length = read > 0 ? static_cast<size_t>(read) : 1;
    const std::string_view character = text.substr(at, length);
    at += length;
    if (point == '\n') {
      Put(out);
      out += '\n';
      column_ = 0;
    } else if (point == ' ' || point == '\t') {
      Put(out);
      if (column_ < columns_) {  // at the edge the line break stands for it
        out += character;
        ++column_;
      }
    } else {
      const auto wide = static_cast<size_t>(point >= 0 ? utf8proc_charwidth(point) : 1);
      if (wide > 1) Put(out);  // letters of such scripts are words of their own
      word_ += character;
      width_ += wide;
      if (wide > 1 || width_ >= columns_) Put(out);
    }
  }
  return out;
}

std::string WordWrap::Finish() {
  std::string out;
  Put(out);
  return out;
}

std::string Wrapped(std::string_view text) {
  WordWrap wrap(TerminalColumns());
  const std::string out = wrap.Push(text);
  return out + wrap.Finish();
}

size_t TerminalColumns() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace loopspec::tools
