#include "experiments/scoring/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"

namespace loopspec::measure {
namespace {

struct MatchData {
  explicit MatchData(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~MatchData() { pcre2_match_data_free(data); }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
  pcre2_match_data* data;
};

std::optional<RegexMatch> Match(const pcre2_code* code, std::string_view text, size_t from,
                                uint32_t options) {
  const MatchData match(code);
  const int count = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                options, match.data, nullptr);
  if (count <= 0) return std::nullopt;
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match.data);
  RegexMatch result{offsets[0], offsets[1], {}};
  for (uint32_t i = 0; i < pcre2_get_ovector_count(match.data); ++i) {
    const bool took_part = static_cast<int>(i) < count && offsets[2 * i] != PCRE2_UNSET;
    result.groups.push_back(took_part
                                ? text.substr(offsets[2 * i], offsets[2 * i + 1] - offsets[2 * i])
                                : std::string_view());
  }
  return result;
}

}  // namespace

Regex::Regex(std::string_view pattern) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE where = 0;
  code_ = std::shared_ptr<pcre2_code>(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &where, context),
      pcre2_code_free);
  pcre2_compile_context_free(context);
  LOOPSPEC_CHECK(code_ != nullptr);
}

std::optional<RegexMatch> Regex::Search(std::string_view text, size_t from) const {
  return Match(code_.get(), text, from, 0);
}

std::vector<RegexMatch> Regex::FindAll(std::string_view text) const {
  std::vector<RegexMatch> matches;
  size_t from = 0;
  bool last_was_empty = false;
  while (from <= text.size()) {
    // After an empty match the next one at the same place may not be empty too.
    const uint32_t options = last_was_empty ? PCRE2_NOTEMPTY_ATSTART : 0;
    auto match = Match(code_.get(), text, from, options);
    if (!match) break;
    from = match->end;
    last_was_empty = match->begin == match->end;
    matches.push_back(std::move(*match));
  }
  return matches;
}

std::string Regex::Replace(std::string_view text,
                           const std::function<std::string(const RegexMatch&)>& replacement) const {
  std::string result;
  size_t at = 0;
  for (const RegexMatch& match : FindAll(text)) {
    result.append(text.substr(at, match.begin - at));
    result.append(replacement(match));
    at = match.end;
  }
  result.append(text.substr(at));
  return result;
}

std::string Regex::Remove(std::string_view text) const {
  return Replace(text, [](const RegexMatch&) { return std::string(); });
}

}  // namespace loopspec::measure
