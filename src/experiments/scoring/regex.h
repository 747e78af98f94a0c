// Regular expressions with the meaning that Python's `re` gives them, over UTF-8 text.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace loopspec::measure {

// Group 0 is the whole match; a group that took no part is empty.
struct RegexMatch {
  size_t begin = 0, end = 0;  // bytes of the subject
  std::vector<std::string_view> groups;
};

class Regex {
 public:
  // `pattern` is written by us, so a bad one is a broken contract.
  explicit Regex(std::string_view pattern);

  std::optional<RegexMatch> Search(std::string_view text, size_t from = 0) const;
  // Matches from left to right that do not overlap, as re.finditer gives them.
  std::vector<RegexMatch> FindAll(std::string_view text) const;
  // Every match replaced by what `replacement` makes of it.
  std::string Replace(std::string_view text,
                      const std::function<std::string(const RegexMatch&)>& replacement) const;
  std::string Remove(std::string_view text) const;

 private:
  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace loopspec::measure
