#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "text/unicode.h"

namespace loopspec {

// For std::unique_ptr. Not in the anonymous namespace: a class that pattern.h declares has one.
template <auto Free>
struct PcreFreer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

namespace {

// Bounds on what one search may cost, so that a hostile expression ends in an error.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kDepthLimit = 20'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr size_t kLongestReplaced = size_t{1} << 30;
constexpr size_t kJitStackMax = 8 << 20;

using Code = std::unique_ptr<pcre2_code, PcreFreer<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, PcreFreer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, PcreFreer<pcre2_match_context_free>>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, PcreFreer<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, PcreFreer<pcre2_jit_stack_free>>;

// PCRE2's working memory for one thread; a compiled expression itself is shared by all.
struct Matcher {
  Matcher()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kJitStackMax, nullptr)) {
    LOOPSPEC_CHECK(data && context && stack);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_depth_limit(context.get(), kDepthLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
  MatchData data;
  MatchContext context;
  JitStack stack;
};

Matcher& ThreadMatcher() {
  thread_local Matcher matcher;
  return matcher;
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

class Pattern::CompiledRegex {
 public:
  CompiledRegex(std::string_view expression, std::string_view what) : what_(what) {
    const std::string translated = TranslateRegex(expression);
    const CompileContext context(pcre2_compile_context_create(nullptr));
    LOOPSPEC_CHECK(context != nullptr);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context.get(), 200);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, context.get()));
    if (code_ == nullptr) {
      Fail("{}: the regular expression {} does not compile: {}", what, expression,
           PcreMessage(error));
    }
    jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  bool Search(std::string_view text, size_t from, size_t* begin, size_t* end) const {
    Matcher& matcher = ThreadMatcher();
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // The text is known to be valid UTF-8, so neither way checks it again.
    int result = PCRE2_ERROR_JIT_STACKLIMIT;
    if (jit_) {
      result = pcre2_jit_match(code_.get(), subject, text.size(), from, 0, matcher.data.get(),
                               matcher.context.get());
    }
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // the slow way needs no stack
      result =
          pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                      matcher.data.get(), matcher.context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      Fail("{}: the regular expression gave up on a text of {} bytes: {}", what_, text.size(),
           PcreMessage(result));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(matcher.data.get());
    *begin = offsets[0];
    *end = offsets[1];
    return *begin <= *end;  // \K inside a lookahead can turn them round
  }

 private:
  std::string what_;
  Code code_;
  bool jit_ = false;
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::String(std::string text) {
  Pattern pattern;
  pattern.string_ = std::move(text);
  return pattern;
}

Pattern Pattern::Regex(std::string_view expression, std::string_view what) {
  Pattern pattern;
  pattern.regex_ = std::make_unique<CompiledRegex>(expression, what);
  return pattern;
}

Pattern Pattern::FromJson(const Json& json, std::string_view what) {
  if (json.is_object()) {
    if (auto text = FindString(json, "String", what)) return String(std::move(*text));
    if (const auto expression = FindString(json, "Regex", what)) return Regex(*expression, what);
  }
  Fail("{}: the pattern is neither {{\"String\": ...}} nor {{\"Regex\": ...}}", what);
}

bool Pattern::Search(std::string_view text, size_t from, size_t* begin, size_t* end) const {
  if (regex_ != nullptr) return regex_->Search(text, from, begin, end);
  const size_t found = text.find(string_, from);
  if (found == std::string_view::npos) return false;
  *begin = found;
  *end = found + string_.size();
  return true;
}

void Pattern::Find(std::string_view text, std::vector<Span>& spans) const {
  spans.clear();
  ForEach(text, [&](const Span& span) { spans.push_back(span); });
}

void Pattern::ForEach(std::string_view text, const std::function<void(const Span&)>& sink) const {
  const auto add = [&](size_t begin, size_t end, bool match) {
    sink({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), match});
  };
  size_t from = 0, done = 0;  // where the next search starts; what the spans cover
  bool matched = false;
  size_t begin = 0, end = 0;
  while (from <= text.size() && Search(text, from, &begin, &end)) {
    if (begin == end && matched && end == done) {
      // An empty match right after a match does not count; look again one character on.
      if (from == text.size()) break;
      from += static_cast<size_t>(DecodeUtf8(text, from).length);
      continue;
    }
    if (begin < done) begin = done;
    if (done != begin) add(done, begin, false);
    add(begin, end, true);
    from = done = end;
    matched = true;
  }
  if (done != text.size()) add(done, text.size(), false);
}

std::string Pattern::Replace(std::string_view text, std::string_view content, size_t* zero) const {
  std::vector<Span> spans;
  Find(text, spans);
  std::string out;
  out.reserve(text.size());
  const size_t zero_in = zero != nullptr ? *zero : 0;
  size_t zero_out = 0;
  for (const Span& span : spans) {
    if (out.size() > kLongestReplaced)
      Fail("replacing makes the text longer than {} bytes", kLongestReplaced);
    out.append(span.match ? content : text.substr(span.begin, span.end - span.begin));
    if (span.end <= zero_in) {
      zero_out = out.size();
    } else if (span.begin < zero_in && !span.match) {
      zero_out = out.size() - (span.end - zero_in);
    }
  }
  if (zero != nullptr) *zero = zero_out;
  return out;
}

}  // namespace loopspec
