// Oniguruma and PCRE2 read nearly the same expressions. This file knows the rest: what \s, \w, \d
// and \p{..} contain, that Ruby's (?m) is PCRE2's (?s), that {n,m}+ repeats there and is possessive
// here, and a few escapes.
#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr std::string_view kSpaceMembers =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kHexMembers = "0-9a-fA-F";

constexpr size_t kLongestResult = 1 << 20;

struct Range {
  char32_t first, last;
};
struct NewMembers {
  std::string_view category;
  std::string_view ranges;  // as they stand inside brackets
};

// Code points that have these general categories in Oniguruma's Unicode 16 and none in
// PCRE2 10.42's Unicode 14.
constexpr NewMembers kNewMembers[] = {
    {"Lu", R"(\x{1c89}\x{a7cb}-\x{a7cc}\x{a7da}\x{a7dc}\x{10d50}-\x{10d65})"},
    {"Ll", R"(\x{1c8a}\x{a7cd}\x{a7db}\x{10d70}-\x{10d85}\x{1df25}-\x{1df2a})"},
    {"Lm",
     R"(\x{10d4e}\x{10d6f}\x{16d40}-\x{16d42}\x{16d6b}-\x{16d6c}\x{1e030}-\x{1e06d}\x{1e4eb})"},
    {"Lo",
     R"(\x{105c0}-\x{105f3}\x{10d4a}-\x{10d4d}\x{10d4f}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240}\x{11380}-\x{11389})"
     R"(\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3}\x{11bc0}-\x{11be0}\x{11f02})"
     R"(\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d})"
     R"(\x{16d43}-\x{16d6a}\x{18cff}\x{1b132}\x{1b155}\x{1e4d0}-\x{1e4ea}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739})"
     R"(\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})"},
    {"Mn",
     R"(\x{897}\x{ece}\x{10d69}-\x{10d6d}\x{10efc}-\x{10eff}\x{11241}\x{113bb}-\x{113c0}\x{113ce}\x{113d0}\x{113d2})"
     R"(\x{113e1}-\x{113e2}\x{11f00}-\x{11f01}\x{11f36}-\x{11f3a}\x{11f40}\x{11f42}\x{11f5a}\x{13440})"
     R"(\x{13447}-\x{13455}\x{1611e}-\x{16129}\x{1612d}-\x{1612f}\x{1e08f}\x{1e4ec}-\x{1e4ef}\x{1e5ee}-\x{1e5ef})"},
    {"Mc",
     R"(\x{cf3}\x{113b8}-\x{113ba}\x{113c2}\x{113c5}\x{113c7}-\x{113ca}\x{113cc}-\x{113cd}\x{113cf}\x{11f03})"
     R"(\x{11f34}-\x{11f35}\x{11f3e}-\x{11f3f}\x{11f41}\x{1612a}-\x{1612c})"},
    {"Nd",
     R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-\x{16139})"
     R"(\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})"},
    {"No", R"(\x{1d2c0}-\x{1d2d3})"},
    {"Pd", R"(\x{10d6e})"},
    {"Po",
     R"(\x{1b4e}-\x{1b4f}\x{1b7f}\x{113d4}-\x{113d5}\x{113d7}-\x{113d8}\x{11b00}-\x{11b09}\x{11be1})"
     R"(\x{11f43}-\x{11f4f}\x{16d6d}-\x{16d6f}\x{1e5ff})"},
    {"Sm", R"(\x{10d8e}-\x{10d8f})"},
    {"So",
     R"(\x{2427}-\x{2429}\x{2ffc}-\x{2fff}\x{31e4}-\x{31e5}\x{31ef}\x{1cc00}-\x{1ccef}\x{1cd00}-\x{1ceb3}\x{1f6dc})"
     R"(\x{1f774}-\x{1f776}\x{1f77b}-\x{1f77f}\x{1f7d9}\x{1f8b2}-\x{1f8bb}\x{1f8c0}-\x{1f8c1}\x{1fa75}-\x{1fa77})"
     R"(\x{1fa87}-\x{1fa89}\x{1fa8f}\x{1faad}-\x{1faaf}\x{1fabb}-\x{1fabf}\x{1fac6}\x{1face}-\x{1facf})"
     R"(\x{1fada}-\x{1fadc}\x{1fadf}\x{1fae8}-\x{1fae9}\x{1faf7}-\x{1faf8}\x{1fbcb}-\x{1fbef})"},
    {"Cf", R"(\x{13439}-\x{1343f})"},
    {"Han", R"(\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})"},
    {"Hiragana", R"(\x{1b132})"},
    {"Katakana", R"(\x{1b155})"},
    {"Latin", R"(\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{1df25}-\x{1df2a})"},
    {"Cyrillic", R"(\x{1c89}-\x{1c8a}\x{1e030}-\x{1e06d}\x{1e08f})"},
    {"Arabic", R"(\x{897}\x{10ec2}-\x{10ec4}\x{10efc}-\x{10eff})"},
};

// Names that Oniguruma knows and PCRE2 10.42 does not, in lower case without separators.
constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"digit", "Nd"},
    {"cntrl", "Cc"},
    {"alpha", "Alphabetic"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
};

std::string Members(const std::vector<Range>& ranges) {
  std::string out;
  for (const Range& r : ranges) {
    out += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(r.first));
    if (r.last != r.first) out += fmt::format("-\\x{{{:x}}}", static_cast<uint32_t>(r.last));
  }
  return out;
}

// All but Oniguruma's \w, which is the library's Rust \w without the joiners and with Latin-1's
// raised digits.
std::string ListNonWordMembers() {
  std::vector<Range> ranges;
  for (char32_t c = 0; c < 0x110000; ++c) {
    bool word = HasClass(c, kWord) && c != 0x200C && c != 0x200D;
    word = word || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
    if (word || (c >= 0xD800 && c < 0xE000)) continue;
    if (!ranges.empty() && ranges.back().last + 1 == c) {
      ranges.back().last = c;
    } else {
      ranges.push_back({c, c});
    }
  }
  return Members(ranges);
}

const std::string& NonWordMembers() {
  static const std::string members = ListNonWordMembers();
  return members;
}

std::string PropertyMembers(std::string_view name);

// Oniguruma's \w.
const std::string& WordMembers() {
  static const std::string members = PropertyMembers("Alphabetic") + PropertyMembers("M") +
                                     PropertyMembers("Nd") + PropertyMembers("Pc") +
                                     R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
  return members;
}

std::string PlainName(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      plain.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  return plain;
}

// What \p{name} contains, as it stands inside brackets.
std::string PropertyMembers(std::string_view name) {
  const std::string plain = PlainName(name);
  if (plain == "space" || plain == "whitespace") return std::string(kSpaceMembers);
  if (plain == "word") return WordMembers();
  if (plain == "xdigit") return std::string(kHexMembers);
  if (plain == "alnum") return PropertyMembers("Alphabetic") + PropertyMembers("Nd");
  if (plain == "punct") return PropertyMembers("P") + "$+<=>^`|~";
  std::string property(name);
  for (const auto& [known, pcre] : kLongNames) {
    if (known == plain) property = pcre;
  }
  if (property.size() <= 2 && !property.empty()) {  // a general category, in either case
    property[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(property[0])));
    if (property.size() == 2) {
      property[1] = static_cast<char>(std::tolower(static_cast<unsigned char>(property[1])));
    }
  }
  std::string out = fmt::format("\\p{{{}}}", property);
  for (const NewMembers& added : kNewMembers) {
    const bool alphabetic =
        property == "Alphabetic" && added.category[0] == 'L' && added.category.size() == 2;
    const bool category =
        property.size() <= 2 && added.category.size() == 2 && added.category.starts_with(property);
    if (alphabetic || category || added.category == property) out += added.ranges;
  }
  return out;
}

class Translator {
 public:
  explicit Translator(std::string_view expression) : in_(expression) {}

  std::string Run() {
    while (at_ < in_.size()) {
      Step();
      if (out_.size() > kLongestResult)
        Fail("the regular expression {} is too long", in_.substr(0, 60));
    }
    return std::move(out_);
  }

 private:
  char Peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void Step() {
    const char c = Peek();
    if (c == '*' || c == '+' || c == '?') {
      out_.push_back(c);
      ++at_;
      if (Peek() == '+' || Peek() == '?') out_.push_back(in_[at_++]);
      return;
    }
    if (c == '{') return Interval();
    if (c == ')') {
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
      out_.push_back(c);
      ++at_;
      return;
    }
    atom_ = out_.size();
    if (c == '\\') {
      Escape();
    } else if (c == '[') {
      out_ += Brackets(0);
    } else if (c == '(') {
      groups_.push_back(atom_);
      Group();
    } else {
      const auto length = static_cast<size_t>(DecodeUtf8(in_, at_).length);
      out_.append(in_.substr(at_, length));
      at_ += length;
    }
  }

  // "(" and, where options follow, their letters: Ruby's m lets . match a newline, which PCRE2
  // calls s.
  void Group() {
    out_.push_back(in_[at_++]);
    if (Peek() != '?') return;
    size_t end = at_ + 1;
    while (end < in_.size() && std::string_view("imx-").find(in_[end]) != std::string_view::npos)
      ++end;
    if (end < in_.size() && end > at_ + 1 && (in_[end] == ':' || in_[end] == ')')) {
      for (; at_ < end; ++at_) out_.push_back(in_[at_] == 'm' ? 's' : in_[at_]);
      if (in_[end] == ')') groups_.pop_back(), out_.push_back(')'), ++at_;
    } else {
      // A look-around, a name or an atomic group: the same for both. Its "?" is no quantifier.
      out_.push_back(in_[at_++]);
      if (Peek() == '<' || Peek() == '\'') {
        while (at_ < in_.size() &&
               (std::isalnum(static_cast<unsigned char>(Peek(1))) || Peek(1) == '_')) {
          out_.push_back(in_[at_++]);
        }
      }
      if (at_ < in_.size()) out_.push_back(in_[at_++]);
    }
  }

  // {n}, {n,}, {,m}, {n,m} and what follows it; anything else is a plain brace.
  void Interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
      return in_.substr(begin, end - begin);
    };
    const std::string_view low = digits();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string_view high = comma ? digits() : std::string_view();
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    at_ = end + 1;
    const std::string interval =
        fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, comma ? "," : "", high);
    if (Peek() == '?' && comma) {
      out_ += interval + "?";
      ++at_;
    } else if (Peek() == '?' || Peek() == '+') {
      // Ruby repeats the repetition here: {n}? is (?:{n})? and {n,m}+ is (?:{n,m})+.
      out_.insert(atom_, "(?:");
      out_ += interval + ")";
      out_.push_back(in_[at_++]);
    } else {
      out_ += interval;
    }
  }

  // The members of the class that an escape names (\s \p{L} ...), or nothing when it names none;
  // moves past it.
  struct Class {
    std::string members;
    bool negated;
  };
  std::optional<Class> ClassEscape() {
    const char c = Peek(1);
    const bool negated = std::isupper(static_cast<unsigned char>(c)) != 0;
    std::string members;
    switch (c) {
      case 's':
      case 'S':
        members = kSpaceMembers;
        break;
      case 'd':
      case 'D':
        members = PropertyMembers("Nd");
        break;
      case 'h':
      case 'H':
        members = kHexMembers;
        break;
      case 'w':
      case 'W':
        members = WordMembers();
        break;
      case 'p':
      case 'P':
        return Property();
      default:
        return std::nullopt;
    }
    at_ += 2;
    return Class{std::move(members), negated};
  }

  std::optional<Class> Property() {
    bool negated = Peek(1) == 'P';
    const size_t close = in_.find('}', at_);
    if (Peek(2) != '{' || close == std::string_view::npos) return std::nullopt;
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    at_ = close + 1;
    return Class{PropertyMembers(name), negated};
  }

  // An escape that both read alike but for its spelling; empty when there is nothing to change.
  std::string CharacterEscape() {
    if (Peek(1) == 'v') {
      at_ += 2;
      return "\\x{b}";
    }
    if (Peek(1) == 'u' && at_ + 6 <= in_.size()) {
      const std::string_view hex = in_.substr(at_ + 2, 4);
      if (std::all_of(hex.begin(), hex.end(), [](unsigned char d) { return std::isxdigit(d); })) {
        at_ += 6;
        return fmt::format("\\x{{{}}}", hex);
      }
    }
    if (Peek(1) == 'x' && Peek(2) == '{') {
      const size_t close = in_.find('}', at_);
      if (close != std::string_view::npos) {
        std::string same(in_.substr(at_, close + 1 - at_));
        at_ = close + 1;
        return same;
      }
    }
    return {};
  }

  void Escape() {
    if (auto found = ClassEscape()) {
      out_ += fmt::format("[{}{}]", found->negated ? "^" : "", found->members);
      return;
    }
    if (Peek(1) == 'b' || Peek(1) == 'B') {
      const std::string w = fmt::format("[{}]", WordMembers());
      // Both lie between characters; \b where exactly one side is a word's.
      const char* here = Peek(1) == 'b' ? "!" : "=";
      const char* other = Peek(1) == 'b' ? "=" : "!";
      out_ += fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", w, here, other);
      at_ += 2;
      return;
    }
    const std::string same = CharacterEscape();
    if (!same.empty()) {
      out_ += same;
      return;
    }
    CopyEscape(out_);
  }

  void CopyEscape(std::string& out) {
    out.push_back(in_[at_++]);
    if (at_ < in_.size()) {
      const auto length = static_cast<size_t>(DecodeUtf8(in_, at_).length);
      out.append(in_.substr(at_, length));
      at_ += length;
    }
  }

  // A negated class among others in brackets has to be written out: all code points that it does
  // not hold.
  std::string NegatedMembers(const std::string& escape, const std::string& members) const {
    const char kind = escape[1];
    if (kind == 'S') return "\\S\\x{180e}";  // PCRE2's \s has U+180E on top
    if (kind == 'W') return NonWordMembers();
    if (kind == 'D') return "\\P{Nd}";
    if (kind == 'H') return R"(\x{0}-/:-@G-`g-\x{10ffff})";
    if (members.starts_with("\\p{"))
      return fmt::format("\\P{{{}", members.substr(3, members.find('}') - 2));
    Fail("the regular expression {} negates {} inside brackets, which is not supported", in_,
         escape);
  }

  std::string PosixMembers() {
    const size_t close = in_.find(":]", at_);
    const std::string_view name = in_.substr(at_ + 2, close - at_ - 2);
    std::string out;
    if (name.starts_with('^') || name == "graph" || name == "print" || name == "blank" ||
        name == "ascii") {
      out = in_.substr(at_, close + 2 - at_);
    } else {
      out = PropertyMembers(name);
    }
    at_ = close + 2;
    return out;
  }

  bool AtPosixClass() const {
    if (Peek() != '[' || Peek(1) != ':') return false;
    size_t end = at_ + 2;
    while (end < in_.size() &&
           (std::isalpha(static_cast<unsigned char>(in_[end])) || in_[end] == '^'))
      ++end;
    return in_.substr(end).starts_with(":]");
  }

  // A bracket expression with its brackets; `depth` counts nesting, which Ruby reads as a union.
  std::string Brackets(int depth) {
    if (depth > 20) Fail("the regular expression {} nests brackets too deeply", in_);
    std::string out = "[";
    ++at_;
    if (Peek() == '^') out.push_back(in_[at_++]);
    bool first = true;
    while (at_ < in_.size() && (Peek() != ']' || first)) {
      first = false;
      if (in_.substr(at_).starts_with("&&")) {
        Fail("the regular expression {} intersects brackets with &&, which is not supported", in_);
      }
      if (AtPosixClass()) {
        out += PosixMembers();
      } else if (Peek() == '[') {
        const std::string inner = Brackets(depth + 1);
        if (inner.starts_with("[^")) {
          Fail(
              "the regular expression {} has a negated set inside brackets, which is not supported",
              in_);
        }
        out += inner.substr(1, inner.size() - 2);
      } else if (Peek() == '\\') {
        EscapeInBrackets(out);
      } else {
        const auto length = static_cast<size_t>(DecodeUtf8(in_, at_).length);
        out.append(in_.substr(at_, length));
        at_ += length;
      }
    }
    if (at_ == in_.size()) Fail("the regular expression {} lacks a closing bracket", in_);
    ++at_;
    return out + "]";
  }

  void EscapeInBrackets(std::string& out) {
    const size_t begin = at_;
    if (auto found = ClassEscape()) {
      const std::string escape(in_.substr(begin, at_ - begin));
      out += found->negated ? NegatedMembers(escape, found->members) : found->members;
      if (Peek() == '-' && Peek(1) != ']') out += "\\-", ++at_;  // the dash makes no range here
      return;
    }
    const std::string same = CharacterEscape();
    if (!same.empty()) {
      out += same;
    } else {
      CopyEscape(out);
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where in out_ the last thing that a quantifier can repeat begins
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string TranslateRegex(std::string_view expression) {
  if (expression.size() > 100'000) {
    Fail("a regular expression has {} bytes, expected at most 100000", expression.size());
  }
  return Translator(expression).Run();
}

}  // namespace loopspec
