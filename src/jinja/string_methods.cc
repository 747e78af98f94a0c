// The methods of Python's str. Positions are code points; searching works on the UTF-8 bytes, which
// finds the same.
#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

// Methods of markup give markup.
Value Like(const Value& self, std::string text) {
  return Value::Of(std::move(text), self.string()->markup);
}

template <std::string (*kMap)(std::string_view)>
Value MapSelf(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("a string method", arguments, {});
  return Like(self, kMap(self.text()));
}

template <bool kLeft, bool kRight>
Value Strip(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("strip()", arguments, {"chars"});
  if (!bound.GivenNotNone(0))
    return Like(self, std::string(StripSpace(self.text(), kLeft, kRight)));
  return Like(
      self, std::string(StripChars(self.text(), RequireText(bound[0], "strip()"), kLeft, kRight)));
}

// A string, or any of a tuple of strings.
template <typename Predicate>
bool AnyAffix(const Value& affixes, const Predicate& matches) {
  RequireDefined(affixes);
  if (affixes.IsString()) return matches(affixes.text());
  const Sequence* tuple = affixes.sequence();
  if (tuple == nullptr || tuple->kind != SequenceKind::kTuple) {
    Fail("chat template: startswith and endswith expect a string or a tuple of strings, found '{}'",
         affixes.TypeName());
  }
  return std::any_of(tuple->items.begin(), tuple->items.end(), [&](const Value& affix) {
    return matches(RequireText(affix, "startswith or endswith"));
  });
}

// The bytes of text[start:stop], and where they begin, in code points; nothing when start lies past
// the end.
struct Window {
  std::string_view bytes;
  int64_t first;
};

std::optional<Window> WindowOf(const String& s, const Bound& bound) {
  const auto resolve = [&](size_t i, int64_t fallback) {
    int64_t at = bound.GivenNotNone(i) ? RequireInt(bound[i], "a string method") : fallback;
    if (at < 0) at = std::max<int64_t>(at + s.length, 0);
    return at;
  };
  const int64_t start = resolve(1, 0), stop = std::min(resolve(2, s.length), s.length);
  if (start > s.length || start > stop) return std::nullopt;
  size_t from = 0;
  for (int64_t i = 0; i < start; ++i) NextCodePoint(s.text, &from);
  size_t to = from;
  if (stop == s.length) {
    to = s.text.size();
  } else {
    for (int64_t i = start; i < stop; ++i) NextCodePoint(s.text, &to);
  }
  return Window{std::string_view(s.text).substr(from, to - from), start};
}

template <bool kStart>
Value HasAffix(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("startswith or endswith", arguments, {"affix", "start", "stop"}, 1);
  const std::optional<Window> window = WindowOf(*self.string(), bound);
  return Value::Of(AnyAffix(bound[0], [&](std::string_view affix) {
    return window && (kStart ? window->bytes.starts_with(affix) : window->bytes.ends_with(affix));
  }));
}

template <bool kFromRight, bool kMayFail>
Value FindText(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("find()", arguments, {"sub", "start", "stop"}, 1);
  const std::string& needle = RequireText(bound[0], "find()");
  interpreter.budget().ChargeText(self.text().size());
  if (const std::optional<Window> window = WindowOf(*self.string(), bound)) {
    const size_t at = kFromRight ? window->bytes.rfind(needle) : window->bytes.find(needle);
    if (at != window->bytes.npos) {
      return Value::Of(window->first + CountCodePoints(window->bytes.substr(0, at)));
    }
  }
  if (kMayFail) Fail("chat template: substring not found");
  return Value::Of(int64_t{-1});
}

Value CountText(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("count()", arguments, {"sub", "start", "stop"}, 1);
  const std::string& needle = RequireText(bound[0], "count()");
  interpreter.budget().ChargeText(self.text().size());
  const std::optional<Window> window = WindowOf(*self.string(), bound);
  if (!window) return Value::Of(int64_t{0});
  if (needle.empty()) return Value::Of(CountCodePoints(window->bytes) + 1);
  int64_t count = 0;
  for (size_t at = window->bytes.find(needle); at != window->bytes.npos;
       at = window->bytes.find(needle, at + needle.size())) {
    ++count;
  }
  return Value::Of(count);
}

std::vector<std::string> SplitSpace(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  text = StripSpace(text, true, false);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text);
      break;
    }
    size_t end = 0;
    for (size_t next = 0; next < text.size(); end = next) {
      if (IsSpace(NextCodePoint(text, &next))) break;
    }
    parts.emplace_back(text.substr(0, end));
    text = StripSpace(text.substr(end), true, false);
  }
  return parts;
}

std::vector<std::string> SplitSpaceRight(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  text = StripSpace(text, false, true);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text);
      break;
    }
    size_t word = text.size();
    while (word > 0) {
      size_t before = word - 1;
      while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
      size_t next = before;
      if (IsSpace(NextCodePoint(text, &next))) break;
      word = before;
    }
    parts.emplace_back(text.substr(word));
    text = StripSpace(text.substr(0, word), false, true);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitText(std::string_view text, std::string_view separator,
                                   int64_t limit) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.find(separator);
    if (at == text.npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> SplitTextRight(std::string_view text, std::string_view separator,
                                        int64_t limit) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.rfind(separator);
    if (at == text.npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool kRight>
Value Split(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("split()", arguments, {"sep", "maxsplit"});
  const int64_t limit = bound.Int(1, -1);
  interpreter.budget().ChargeText(self.text().size());
  std::vector<std::string> parts;
  if (!bound.GivenNotNone(0)) {
    parts =
        kRight && limit >= 0 ? SplitSpaceRight(self.text(), limit) : SplitSpace(self.text(), limit);
  } else {
    const std::string& separator = RequireText(bound[0], "split()");
    if (separator.empty()) Fail("chat template: split(): empty separator");
    parts = kRight ? SplitTextRight(self.text(), separator, limit)
                   : SplitText(self.text(), separator, limit);
  }
  interpreter.budget().Charge(static_cast<int64_t>(parts.size()));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.push_back(Like(self, std::move(part)));
  return Value::List(std::move(items));
}

template <bool kRight>
Value Partition(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("partition()", arguments, {"sep"}, 1);
  const std::string& separator = RequireText(bound[0], "partition()");
  if (separator.empty()) Fail("chat template: partition(): empty separator");
  const std::string& text = self.text();
  const size_t at = kRight ? text.rfind(separator) : text.find(separator);
  if (at == text.npos) {
    const Value nothing = Like(self, "");
    return kRight ? Value::Tuple({nothing, nothing, self}) : Value::Tuple({self, nothing, nothing});
  }
  return Value::Tuple({Like(self, text.substr(0, at)), Like(self, separator),
                       Like(self, text.substr(at + separator.size()))});
}

Value SplitLinesMethod(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("splitlines()", arguments, {"keepends"});
  std::vector<Value> items;
  for (const std::string_view line : SplitLines(self.text(), bound.Truth(0, false))) {
    interpreter.budget().Charge(1);
    items.push_back(Like(self, std::string(line)));
  }
  return Value::List(std::move(items));
}

Value StringReplace(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("replace()", arguments, {"old", "new", "count"}, 2);
  if (!arguments.named.empty()) Fail("chat template: replace() takes no keyword arguments");
  return Like(self, ReplaceText(self.text(), RequireText(bound[0], "replace()"),
                                RequireText(bound[1], "replace()"), bound.Int(2, -1),
                                interpreter.budget()));
}

Value StringJoin(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound("join()", arguments, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : Collect(bound[0], interpreter.budget())) {
    if (!first) out += self.text();
    first = false;
    out += RequireText(item, "join()");
    interpreter.budget().CheckText(out.size());
    interpreter.budget().ChargeText(self.text().size());
  }
  return Like(self, std::move(out));
}

Value StringFormat(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return Like(self, FormatBraces(interpreter, self.text(), arguments));
}

template <bool kPrefix>
Value RemoveAffix(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("removeprefix or removesuffix", arguments, {"affix"}, 1);
  const std::string& affix = RequireText(bound[0], "removeprefix or removesuffix");
  const std::string& text = self.text();
  if (kPrefix && text.starts_with(affix)) return Like(self, text.substr(affix.size()));
  if (!kPrefix && !affix.empty() && text.ends_with(affix)) {
    return Like(self, text.substr(0, text.size() - affix.size()));
  }
  return self;
}

// Every character passes, and there is one.
template <bool (*kTest)(char32_t)>
Value All(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("a string method", arguments, {});
  const std::u32string points = Decode(self.text());
  return Value::Of(!points.empty() && std::all_of(points.begin(), points.end(), kTest));
}

Value IsAscii(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("isascii()", arguments, {});
  return Value::Of(self.string()->length == static_cast<int64_t>(self.text().size()));
}

template <bool kUpper>
Value HasCase(Interpreter&, const Value& self, const Arguments& arguments) {
  const Bound bound("a string method", arguments, {});
  return Value::Of(IsCasedText(self.text(), kUpper));
}

struct StringMethod {
  std::string_view name;
  MethodFunction function;
};

constexpr StringMethod kStringMethods[] = {
    {"capitalize", MapSelf<Capitalize>},
    {"count", CountText},
    {"endswith", HasAffix<false>},
    {"find", FindText<false, false>},
    {"format", StringFormat},
    {"index", FindText<false, true>},
    {"isalnum", All<IsAlnum>},
    {"isalpha", All<IsAlpha>},
    {"isascii", IsAscii},
    {"isdigit", All<IsDigit>},
    {"islower", HasCase<false>},
    {"isspace", All<IsSpace>},
    {"isupper", HasCase<true>},
    {"join", StringJoin},
    {"lower", MapSelf<ToLower>},
    {"lstrip", Strip<true, false>},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", StringReplace},
    {"rfind", FindText<true, false>},
    {"rindex", FindText<true, true>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<false, true>},
    {"split", Split<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", HasAffix<true>},
    {"strip", Strip<true, true>},
    {"title", MapSelf<ToTitle>},
    {"upper", MapSelf<ToUpper>},
};

}  // namespace

MethodFunction FindStringMethod(std::string_view name) {
  const StringMethod* it =
      std::lower_bound(std::begin(kStringMethods), std::end(kStringMethods), name,
                       [](const StringMethod& m, std::string_view n) { return m.name < n; });
  return it != std::end(kStringMethods) && it->name == name ? it->function : nullptr;
}

}  // namespace loopspec::jinja
