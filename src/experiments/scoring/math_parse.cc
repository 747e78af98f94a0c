// A recursive-descent reader of the LaTeX that final answers are written in.
//   list      relation (("," | ";") relation)*
//   relation  union (("=" | "<" | ...) union)*
//   union     sum ("\cup" sum)*
//   sum       ["-"] product (("+" | "-" | "\pm") product)*
//   product   factor (["*" | "/" ...] factor)*
//   factor    primary ("^" group | "_" group | "!" | "%")*
#include <array>
#include <cstdlib>
#include <utility>

#include "experiments/scoring/math_expression.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {
namespace {

using Kind = Expression::Kind;

// Thrown inside the parser only; ParseLatex catches it.
struct NotUnderstood {};

// Deep nesting comes from no honest answer and would exhaust the stack.
constexpr int kMostNesting = 100;

constexpr std::array<std::string_view, 13> kFunctions = {
    "sin",    "cos",    "tan",  "cot",  "sec",  "csc", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "exp"};

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

Expression Node(Kind kind, std::vector<Expression> arguments, std::string name = {}) {
  Expression node;
  node.kind = kind;
  node.name = std::move(name);
  node.arguments = std::move(arguments);
  return node;
}

Expression Number(Int128 value) {
  Expression node;
  node.value = Rational{value, 1};
  node.number = static_cast<long double>(value);
  return node;
}

Expression Negative(Expression e) {
  if (e.kind == Kind::kNumber && e.value) {
    e.value->numerator = -e.value->numerator;
    e.number = -e.number;
    return e;
  }
  return Node(Kind::kProduct, {Number(-1), std::move(e)});
}

Expression Inverse(Expression e) {
  return Node(Kind::kPower, {std::move(e), Number(-1)});
}

Expression Quotient(Expression a, Expression b) {
  return Node(Kind::kProduct, {std::move(a), Inverse(std::move(b))});
}

bool IsInteger(const Expression& e) {
  return e.kind == Kind::kNumber && !e.decimal && (!e.value || e.value->IsInteger());
}

// a/b of two whole numbers.
bool IsPlainFraction(const Expression& e) {
  return e.kind == Kind::kProduct && e.arguments.size() == 2 && IsInteger(e.arguments[0]) &&
         e.arguments[1].kind == Kind::kPower && IsInteger(e.arguments[1].arguments[0]);
}

class Parser {
 public:
  Parser(std::string_view text, Dialect dialect)
      : text_(text), sympy_(dialect == Dialect::kSympy) {}

  Expression ParseAll() {
    if (sympy_) {
      Expression start = ParseSum();
      if (TakeRelation() != '\0' || Peek() == '%') throw NotUnderstood();
      return start;
    }
    Expression result = ParseList();
    SkipSpace();
    if (at_ != text_.size()) throw NotUnderstood();
    return result;
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool Sees(std::string_view token) {
    SkipSpace();
    if (!text_.substr(at_).starts_with(token)) return false;
    // A command ends where letters end.
    const size_t end = at_ + token.size();
    const bool command = token.size() > 1 && token[0] == '\\' && IsLetter(token.back());
    return !(command && end < text_.size() && IsLetter(text_[end]));
  }
  bool Take(std::string_view token) {
    if (!Sees(token)) return false;
    at_ += token.size();
    return true;
  }
  bool TakeAny(std::initializer_list<std::string_view> tokens) {
    for (const std::string_view token : tokens) {
      if (Take(token)) return true;
    }
    return false;
  }
  void Need(std::string_view token) {
    if (!Take(token)) throw NotUnderstood();
  }
  char Peek() {
    SkipSpace();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  Expression ParseList() {
    std::vector<Expression> parts = {ParseRelation()};
    while (TakeAny({",", ";"})) parts.push_back(ParseRelation());
    return parts.size() == 1 ? std::move(parts[0]) : Node(Kind::kList, std::move(parts));
  }

  char TakeRelation() {
    static constexpr std::array<std::pair<std::string_view, char>, 17> kRelations = {
        {{"\\leq", 'l'},
         {"\\leqslant", 'l'},
         {"\\le", 'l'},
         {"<=", 'l'},
         {"\\geq", 'g'},
         {"\\geqslant", 'g'},
         {"\\ge", 'g'},
         {">=", 'g'},
         {"\\neq", '!'},
         {"\\ne", '!'},
         {"\\lt", '<'},
         {"\\gt", '>'},
         {"\\in", 'e'},
         {"\\approx", '='},
         {"=", '='},
         {"<", '<'},
         {">", '>'}}};
    for (const auto& [token, relation] : kRelations) {
      if (Take(token)) return relation;
    }
    return '\0';
  }

  Expression ParseRelation() {
    const Nesting nesting(*this);
    std::vector<Expression> sides = {ParseUnion()};
    std::string relations;
    while (const char relation = TakeRelation()) {
      relations.push_back(relation);
      sides.push_back(ParseUnion());
    }
    if (relations.empty()) return std::move(sides[0]);
    // "x in S" says no more than S.
    if (relations == "e") return std::move(sides[1]);
    return Node(Kind::kRelation, std::move(sides), relations);
  }

  Expression ParseUnion() {
    std::vector<Expression> parts = {ParseSum()};
    while (Take("\\cup")) parts.push_back(ParseSum());
    return parts.size() == 1 ? std::move(parts[0]) : Node(Kind::kUnion, std::move(parts));
  }

  Expression ParseSum() {
    Expression result;
    if (!sympy_ && Take("\\pm")) {
      result = Node(Kind::kPlusMinus, {Number(0), ParseProduct()}, "+");
    } else {
      const bool negative = Peek() == '-';
      if (negative || Peek() == '+') ++at_;
      result = ParseProduct();
      if (negative) result = Negative(std::move(result));
    }
    for (;;) {
      if (Take("+")) {
        result = Node(Kind::kSum, {std::move(result), ParseProduct()});
      } else if (Take("-")) {
        result = Node(Kind::kSum, {std::move(result), Negative(ParseProduct())});
      } else if (!sympy_ && Take("\\pm")) {
        result = Node(Kind::kPlusMinus, {std::move(result), ParseProduct()}, "+");
      } else if (!sympy_ && Take("\\mp")) {
        result = Node(Kind::kPlusMinus, {std::move(result), ParseProduct()}, "-");
      } else {
        return result;
      }
    }
  }

  // Whether a factor may follow without a sign of multiplication.
  bool StartsFactor() {
    const char c = Peek();
    if (IsLetter(c) || c == '(' || c == '{' || c == '[') return true;
    if (c == '|') return bars_ == 0;
    if (c != '\\') return false;
    if (sympy_ && (Sees("\\pm") || Sees("\\mp"))) return true;
    for (const std::string_view token :
         {"\\cup",    "\\pm",    "\\mp",    "\\cdot",   "\\times",    "\\div",
          "\\leq",    "\\le",    "\\geq",   "\\ge",     "\\neq",      "\\ne",
          "\\lt",     "\\gt",    "\\in",    "\\approx", "\\leqslant", "\\geqslant",
          "\\rfloor", "\\rceil", "\\rvert", "\\end",    "\\}",        "\\\\"}) {
      if (Sees(token)) return false;
    }
    return true;
  }

  Expression ParseProduct() {
    Expression first = ParseFactor();
    // 1\frac{4}{5} is a mixed number.
    if (!sympy_ && IsInteger(first) && Sees("\\frac")) {
      Expression fraction = ParseFactor();
      first = IsPlainFraction(fraction)
                  ? Node(Kind::kSum, {std::move(first), std::move(fraction)})
                  : Node(Kind::kProduct, {std::move(first), std::move(fraction)});
    }
    std::vector<Expression> factors = {std::move(first)};
    for (;;) {
      if (TakeAny({"\\cdot", "\\times", "*", "\xC3\x97"})) {
        factors.push_back(ParseSigned());
      } else if (TakeAny({"/", "\\div", "\xC3\xB7"})) {
        factors.push_back(Inverse(ParseSigned()));
      } else if (StartsFactor()) {
        factors.push_back(ParseFactor());
      } else {
        break;
      }
    }
    return factors.size() == 1 ? std::move(factors[0]) : Node(Kind::kProduct, std::move(factors));
  }

  Expression ParseSigned() {
    if (Take("-")) return Negative(ParseFactor());
    Take("+");
    return ParseFactor();
  }

  Expression ParseFactor() {
    Expression result = ParsePrimary();
    for (;;) {
      if (sympy_ && EndsHere(result)) return result;
      if (Take("^")) {
        result = Node(Kind::kPower, {std::move(result), ParseGroup()});
      } else if (Take("_")) {
        const std::string subscript = TakeRawGroup();
        if (result.kind == Kind::kSymbol) {
          result.name += "_" + subscript;
        } else {
          result = Node(Kind::kFunction, {std::move(result)}, "base " + subscript);
        }
      } else if (Take("!")) {
        result = Node(Kind::kFunction, {std::move(result)}, "factorial");
      } else if (Take("%")) {
        result = Node(Kind::kPercent, {std::move(result)});
      } else if (Take("'")) {
        if (result.kind != Kind::kSymbol) throw NotUnderstood();
        result.name += "'";
      } else {
        return result;
      }
    }
  }

  // sympy stops before a sign that it cannot use.
  bool EndsHere(const Expression& before) {
    if (Sees("_")) return before.kind != Kind::kSymbol;
    return Sees("^") && at_ + 1 == text_.size();
  }

  // {...}, or one digit, letter or command.
  Expression ParseGroup() {
    const Nesting nesting(*this);
    if (Take("{")) {
      Expression inside = ParseSum();
      Need("}");
      return inside;
    }
    if (Peek() == '-') {
      ++at_;
      return Negative(ParseGroup());
    }
    if (IsDigit(Peek())) return Number(text_[at_++] - '0');
    return ParsePrimary();
  }

  // The characters of {...}, or one character.
  std::string TakeRawGroup() {
    if (Take("{")) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) throw NotUnderstood();
      const std::string inside(Strip(text_.substr(at_, end - at_)));
      at_ = end + 1;
      return inside;
    }
    if (Peek() == '\0') throw NotUnderstood();
    return std::string(1, text_[at_++]);
  }

  Expression ParseNumber() {
    const size_t begin = at_;
    Int128 digits = 0, scale = 1;
    bool fits = true, decimal = false;
    while (at_ < text_.size() && (IsDigit(text_[at_]) || (text_[at_] == '.' && !decimal))) {
      const char c = text_[at_++];
      if (c == '.') {
        // A point without digits after it ends a sentence, not a number.
        if (at_ == text_.size() || !IsDigit(text_[at_])) throw NotUnderstood();
        decimal = true;
        continue;
      }
      fits = fits && !__builtin_mul_overflow(digits, 10, &digits) &&
             !__builtin_add_overflow(digits, c - '0', &digits);
      if (decimal) fits = fits && !__builtin_mul_overflow(scale, 10, &scale);
    }
    Expression node;
    node.decimal = decimal;
    if (fits) node.value = MakeRational(digits, scale);
    node.number = std::strtold(std::string(text_.substr(begin, at_ - begin)).c_str(), nullptr);
    return node;
  }

  // After an opening bracket: elements up to the closing one.
  Expression ParseBracket(char open) {
    const Nesting nesting(*this);
    std::vector<Expression> parts;
    const int bars = std::exchange(bars_, 0);
    parts.push_back(ParseRelation());
    while (!sympy_ && TakeAny({",", ";"})) parts.push_back(ParseRelation());
    bars_ = bars;
    const char close = Peek();
    if (close != ')' && close != ']') throw NotUnderstood();
    ++at_;
    const bool round = open == '(' && close == ')';
    if (parts.size() == 1) {
      if (open == '(' && close != ')') throw NotUnderstood();
      if (open == '[' && close != ']') throw NotUnderstood();
      return std::move(parts[0]);
    }
    if (parts.size() == 2 && !round) {
      Expression interval = Node(Kind::kInterval, std::move(parts));
      interval.left_open = open == '(';
      interval.right_open = close == ')';
      return interval;
    }
    return Node(Kind::kTuple, std::move(parts));
  }

  Expression ParseSet() {
    const Nesting nesting(*this);
    std::vector<Expression> parts;
    if (!Sees("\\}")) {
      parts.push_back(ParseRelation());
      while (TakeAny({",", ";"})) parts.push_back(ParseRelation());
    }
    Need("\\}");
    return Node(Kind::kSet, std::move(parts));
  }

  Expression ParseMatrix(const std::string& environment) {
    const Nesting nesting(*this);
    if (environment == "array" && Take("{")) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) throw NotUnderstood();
      at_ = end + 1;
    }
    std::vector<Expression> cells;
    size_t rows = 0;
    const std::string end = "\\end{" + environment + "}";
    while (!Sees(end)) {
      cells.push_back(ParseSum());
      while (Take("&")) cells.push_back(ParseSum());
      ++rows;
      if (!Take("\\\\")) break;
    }
    Need(end);
    if (rows == 0 || cells.size() % rows != 0) throw NotUnderstood();
    Expression matrix = Node(Kind::kMatrix, std::move(cells));
    matrix.columns = matrix.arguments.size() / rows;
    return matrix;
  }

  Expression ParseFunction(const std::string& name) {
    const Nesting nesting(*this);
    std::optional<Expression> power;
    if (Take("^")) power = ParseGroup();
    std::vector<Expression> arguments;
    std::string function = name;
    if (name == "log") {
      Expression base = Number(10);
      if (Take("_")) base = ParseGroup();
      arguments = {ParseFunctionArgument(), std::move(base)};
    } else {
      arguments = {ParseFunctionArgument()};
    }
    Expression result = Node(Kind::kFunction, std::move(arguments), function);
    return power ? Node(Kind::kPower, {std::move(result), *std::move(power)}) : std::move(result);
  }

  // A bracket or group, or the factors that follow without any sign.
  Expression ParseFunctionArgument() {
    if (Peek() == '(' || Peek() == '{') return ParseFactor();
    std::vector<Expression> factors = {ParseFactor()};
    while (StartsFactor() && Peek() != '(') factors.push_back(ParseFactor());
    return factors.size() == 1 ? std::move(factors[0]) : Node(Kind::kProduct, std::move(factors));
  }

  Expression ParseAbsolute(std::string_view close) {
    const Nesting nesting(*this);
    ++bars_;
    Expression inside = ParseSum();
    --bars_;
    Need(close);
    return Node(Kind::kFunction, {std::move(inside)}, "abs");
  }

  Expression ParseCommand() {
    if (sympy_ && (Sees("\\{") || Sees("\\begin"))) throw NotUnderstood();
    if (Take("\\{")) return ParseSet();
    if (Take("\\|")) throw NotUnderstood();
    size_t end = at_ + 1;
    while (end < text_.size() && IsLetter(text_[end])) ++end;
    const std::string name(text_.substr(at_ + 1, end - at_ - 1));
    if (name.empty()) throw NotUnderstood();
    at_ = end;
    if (name == "frac") {
      Expression above = ParseGroup();
      return Quotient(std::move(above), ParseGroup());
    }
    if (name == "binom") {
      Expression above = ParseGroup();
      return Node(Kind::kFunction, {std::move(above), ParseGroup()}, "binom");
    }
    if (name == "sqrt") {
      Expression degree = Number(2);
      if (Take("[")) {
        degree = ParseSum();
        Need("]");
      }
      return Node(Kind::kPower, {ParseGroup(), Inverse(std::move(degree))});
    }
    if (!sympy_ && (name == "text" || name == "operatorname")) {
      if (Peek() != '{') throw NotUnderstood();
      Expression text;
      text.kind = Kind::kText;
      text.name = TakeRawGroup();
      return text;
    }
    if (name == "begin") {
      const std::string environment = TakeRawGroup();
      if (environment != "array" && !environment.ends_with("matrix")) throw NotUnderstood();
      return ParseMatrix(environment);
    }
    if (name == "ln" || name == "log") return ParseFunction(name);
    for (const std::string_view function : kFunctions) {
      if (name == function) return ParseFunction(name);
    }
    if (name == "lfloor" || name == "lceil") {
      Expression inside = ParseSum();
      Need(name == "lfloor" ? "\\rfloor" : "\\rceil");
      return Node(Kind::kFunction, {std::move(inside)}, name == "lfloor" ? "floor" : "ceil");
    }
    if (name == "lvert") return ParseAbsolute("\\rvert");
    if (name == "overline" || name == "vec" || name == "hat") return ParseGroup();
    if (name == "emptyset" || name == "varnothing") return Node(Kind::kSet, {});
    return Variable("\\" + name);
  }

  Expression ParsePrimary() {
    const Nesting nesting(*this);
    const char c = Peek();
    if (IsDigit(c) || (c == '.' && !sympy_)) return ParseNumber();
    if (c == '(' || c == '[') {
      ++at_;
      return ParseBracket(c);
    }
    if (c == '{') {
      ++at_;
      Expression inside = ParseList();
      Need("}");
      return inside;
    }
    if (c == '|') {
      ++at_;
      return ParseAbsolute("|");
    }
    if (c == '\\') return ParseCommand();
    if (!IsLetter(c)) throw NotUnderstood();
    ++at_;
    return Variable(std::string(1, c));
  }

  // For sympy's parser e, i and pi are variables like others.
  Expression Variable(const std::string& name) const {
    return Node(Kind::kSymbol, {}, sympy_ ? "variable " + name : name);
  }

  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMostNesting) throw NotUnderstood();
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  std::string_view text_;
  size_t at_ = 0;
  bool sympy_;
  int nesting_ = 0;
  int bars_ = 0;  // open |, where the next one closes
};

}  // namespace

std::optional<Expression> ParseLatex(std::string_view latex, Dialect dialect) {
  if (Strip(latex).empty()) return std::nullopt;
  try {
    return Parser(latex, dialect).ParseAll();
  } catch (const NotUnderstood&) {
    return std::nullopt;
  }
}

}  // namespace loopspec::measure
