// The expressions of the grammar, from the loosest binding to the tightest.
#include <algorithm>

#include "base/error.h"
#include "jinja/filters.h"
#include "jinja/parser.h"
#include "jinja/tests.h"

namespace loopspec::jinja {
namespace {

constexpr int kMaxTreeDepth = 400;

}  // namespace

ExpressionPtr Parser::New(ExpressionKind kind) const {
  return std::make_unique<Expression>(kind, current().line);
}

ExpressionPtr Parser::Finish(ExpressionPtr node) const {
  int deepest = 0;
  const auto consider = [&](const ExpressionPtr& child) {
    if (child != nullptr) deepest = std::max(deepest, child->depth);
  };
  for (const ExpressionPtr& child : node->operands) consider(child);
  for (const ExpressionPtr& child : node->arguments.positional) consider(child);
  for (const auto& [name, child] : node->arguments.named) consider(child);
  consider(node->arguments.star);
  consider(node->arguments.double_star);
  node->depth = deepest + 1;
  if (node->depth > kMaxTreeDepth) {
    Fail("chat template line {}: an expression of more than {} levels", node->line, kMaxTreeDepth);
  }
  return node;
}

ExpressionPtr Parser::Binary(ExpressionKind kind, std::string op, ExpressionPtr left,
                             ExpressionPtr right) {
  ExpressionPtr node = New(kind);
  if (!op.empty()) node->operators.push_back(std::move(op));
  node->operands.push_back(std::move(left));
  node->operands.push_back(std::move(right));
  return Finish(std::move(node));
}

void Parser::NoteMention(std::string_view name) {
  if (name == "caller") mentions_.caller = true;
  if (name == "varargs") mentions_.varargs = true;
  if (name == "kwargs") mentions_.kwargs = true;
  if (name == "loop") mentions_.loop = true;
}

void Parser::NoteUnknown(std::string message) {
  unknown_.push_back(UnknownName{std::move(message), conditional_});
}

ExpressionPtr Parser::ParseTuple(bool with_conditional, bool parenthesised,
                                 std::string_view end_name) {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) ExpectOperator(",");
    if (IsTupleEnd(end_name)) break;
    items.push_back(ParseExpression(with_conditional));
    if (!IsOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!parenthesised) FailExpected("an expression");
  }
  ExpressionPtr node = New(ExpressionKind::kTuple);
  node->operands = std::move(items);
  return Finish(std::move(node));
}

ExpressionPtr Parser::ParseExpression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? ParseConditional() : ParseOr();
}

ExpressionPtr Parser::ParseConditional() {
  const size_t first_unknown = unknown_.size();
  ExpressionPtr value = ParseOr();
  while (SkipName("if")) {
    ExpressionPtr node = New(ExpressionKind::kConditional);
    node->operands.push_back(ParseOr());
    node->operands.push_back(std::move(value));
    node->operands.push_back(SkipName("else") ? ParseExpression() : nullptr);
    value = Finish(std::move(node));
    for (size_t i = first_unknown; i < unknown_.size(); ++i) unknown_[i].conditional = true;
  }
  return value;
}

ExpressionPtr Parser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (SkipName("or")) left = Binary(ExpressionKind::kOr, "", std::move(left), ParseAnd());
  return left;
}

ExpressionPtr Parser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (SkipName("and")) left = Binary(ExpressionKind::kAnd, "", std::move(left), ParseNot());
  return left;
}

ExpressionPtr Parser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Nesting nesting(*this);
  Next();
  ExpressionPtr node = New(ExpressionKind::kNot);
  node->operands.push_back(ParseNot());
  return Finish(std::move(node));
}

ExpressionPtr Parser::ParseCompare() {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr node = New(ExpressionKind::kCompare);
  node->operands.push_back(ParseSum());
  while (true) {
    const bool is_operator = std::any_of(std::begin(kOperators), std::end(kOperators),
                                         [&](std::string_view op) { return IsOperator(op); });
    if (is_operator || IsName("in")) {
      node->operators.push_back(Next().text);
    } else if (IsName("not") && Peek().kind == TokenKind::kName && Peek().text == "in") {
      Next();
      Next();
      node->operators.push_back("not in");
    } else {
      break;
    }
    node->operands.push_back(ParseSum());
  }
  if (node->operators.empty()) return std::move(node->operands.front());
  return Finish(std::move(node));
}

ExpressionPtr Parser::ParseSum() {
  ExpressionPtr left = ParseConcat();
  while (IsOperator("+") || IsOperator("-")) {
    const std::string op = Next().text;
    left = Binary(ExpressionKind::kBinary, op, std::move(left), ParseConcat());
  }
  return left;
}

ExpressionPtr Parser::ParseConcat() {
  ExpressionPtr node = New(ExpressionKind::kConcat);
  node->operands.push_back(ParseProduct());
  while (SkipOperator("~")) node->operands.push_back(ParseProduct());
  if (node->operands.size() == 1) return std::move(node->operands.front());
  return Finish(std::move(node));
}

ExpressionPtr Parser::ParseProduct() {
  ExpressionPtr left = ParsePower();
  while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
    const std::string op = Next().text;
    left = Binary(ExpressionKind::kBinary, op, std::move(left), ParsePower());
  }
  return left;
}

ExpressionPtr Parser::ParsePower() {
  ExpressionPtr left = ParseUnary();
  while (SkipOperator("**")) {
    left = Binary(ExpressionKind::kBinary, "**", std::move(left), ParseUnary());
  }
  return left;
}

ExpressionPtr Parser::ParseUnary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPtr node;
  if (IsOperator("-") || IsOperator("+")) {
    node = New(IsOperator("-") ? ExpressionKind::kNegate : ExpressionKind::kPositive);
    Next();
    node->operands.push_back(ParseUnary(false));
    node = Finish(std::move(node));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  return with_filter ? ParseFiltersAndTests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::ParsePrimary(bool with_namespace) {
  const Nesting nesting(*this);
  const Token& token = current();
  if (token.kind == TokenKind::kName) return ParseNameOrConstant(with_namespace);
  if (IsOperator("[")) return ParseList();
  if (IsOperator("{")) return ParseDict();
  if (SkipOperator("(")) {
    ExpressionPtr node = ParseTuple(true, true, "");
    ExpectOperator(")");
    return node;
  }
  ExpressionPtr node = New(ExpressionKind::kConstant);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += Next().text;  // adjacent literals join
    node->constant = Value::Of(std::move(text));
  } else if (token.kind == TokenKind::kInteger) {
    node->constant = Value::Of(Next().integer);
  } else if (token.kind == TokenKind::kFloat) {
    node->constant = Value::Of(Next().real);
  } else {
    FailExpected("an expression");
  }
  return node;
}

ExpressionPtr Parser::ParseNameOrConstant(bool with_namespace) {
  ExpressionPtr node = New(ExpressionKind::kConstant);
  const std::string name = Next().text;
  if (name == "true" || name == "True") {
    node->constant = Value::Of(true);
  } else if (name == "false" || name == "False") {
    node->constant = Value::Of(false);
  } else if (name == "none" || name == "None") {
    node->constant = Value::MakeNone();
  } else if (with_namespace && SkipOperator(".")) {
    node->kind = ExpressionKind::kNamespaceRef;
    node->name = name;
    node->attribute = ExpectIdentifier();
  } else {
    node->kind = ExpressionKind::kName;
    node->name = name;
    NoteMention(name);
  }
  return node;
}

ExpressionPtr Parser::ParseList() {
  ExpressionPtr node = New(ExpressionKind::kList);
  ExpectOperator("[");
  while (!IsOperator("]")) {
    if (!node->operands.empty()) ExpectOperator(",");
    if (IsOperator("]")) break;
    node->operands.push_back(ParseExpression());
  }
  ExpectOperator("]");
  return Finish(std::move(node));
}

ExpressionPtr Parser::ParseDict() {
  ExpressionPtr node = New(ExpressionKind::kDict);
  ExpectOperator("{");
  while (!IsOperator("}")) {
    if (!node->operands.empty()) ExpectOperator(",");
    if (IsOperator("}")) break;
    node->operands.push_back(ParseExpression());
    ExpectOperator(":");
    node->operands.push_back(ParseExpression());
  }
  ExpectOperator("}");
  return Finish(std::move(node));
}

ExpressionPtr Parser::ParsePostfix(ExpressionPtr node) {
  while (true) {
    if (IsOperator(".") || IsOperator("[")) {
      node = ParseSubscript(std::move(node));
    } else if (IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::ParseSubscript(ExpressionPtr node) {
  ExpressionPtr result = New(ExpressionKind::kSubscript);
  if (SkipOperator(".")) {
    if (current().kind == TokenKind::kName) {
      result->kind = ExpressionKind::kAttribute;
      result->attribute = Next().text;
      result->operands.push_back(std::move(node));
    } else if (current().kind == TokenKind::kInteger) {
      ExpressionPtr index = New(ExpressionKind::kConstant);
      index->constant = Value::Of(Next().integer);
      result->operands.push_back(std::move(node));
      result->operands.push_back(std::move(index));
    } else {
      FailExpected("a name or a number");
    }
    return Finish(std::move(result));
  }
  ExpectOperator("[");
  std::vector<ExpressionPtr> items;
  while (!IsOperator("]")) {
    if (!items.empty()) ExpectOperator(",");
    items.push_back(ParseBracketItem());
  }
  ExpectOperator("]");
  if (items.empty()) Fail("chat template line {}: an empty subscript", result->line);
  const auto is_open_slice = [](const ExpressionPtr& item) {
    return item->kind == ExpressionKind::kSlice && item->operands[0] == nullptr;
  };
  if (items.size() == 1 && is_open_slice(items[0])) {
    items[0]->operands[0] = std::move(node);
    return Finish(std::move(items[0]));
  }
  result->operands.push_back(std::move(node));
  if (items.size() == 1) {
    result->operands.push_back(std::move(items[0]));
  } else {
    if (std::any_of(items.begin(), items.end(), is_open_slice)) {
      Fail("chat template line {}: slices of several dimensions are not supported", result->line);
    }
    ExpressionPtr tuple = New(ExpressionKind::kTuple);
    tuple->operands = std::move(items);
    result->operands.push_back(Finish(std::move(tuple)));
  }
  return Finish(std::move(result));
}

// An index, or a slice whose first operand, what is sliced, is still missing.
ExpressionPtr Parser::ParseBracketItem() {
  ExpressionPtr parts[3];
  if (!IsOperator(":")) {
    parts[0] = ParseExpression();
    if (!IsOperator(":")) return std::move(parts[0]);
  }
  ExpressionPtr node = New(ExpressionKind::kSlice);
  for (int i = 1; i < 3 && SkipOperator(":"); ++i) {
    if (!IsOperator(":") && !IsOperator("]") && !IsOperator(",")) parts[i] = ParseExpression();
  }
  node->operands.push_back(nullptr);
  for (ExpressionPtr& part : parts) node->operands.push_back(std::move(part));
  return node;
}

ExpressionPtr Parser::ParseFiltersAndTests(ExpressionPtr node) {
  while (true) {
    if (IsOperator("|")) {
      node = ParseFilter(std::move(node), false);
    } else if (IsName("is")) {
      node = ParseTest(std::move(node));
    } else if (IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      return node;
    }
  }
}

std::string Parser::ParseDottedName() {
  std::string name = ExpectIdentifier();
  while (SkipOperator(".")) {
    name += '.';
    name += ExpectIdentifier();
  }
  return name;
}

// One filter after another; for a block (`node` null) the first bar may have been left out.
ExpressionPtr Parser::ParseFilter(ExpressionPtr node, bool name_follows) {
  while (name_follows || SkipOperator("|")) {
    name_follows = false;
    ExpressionPtr filter = New(ExpressionKind::kFilter);
    filter->name = ParseDottedName();
    if (FindFilter(filter->name) == nullptr && !IsLeftOutFilter(filter->name)) {
      NoteUnknown(
          fmt::format("chat template line {}: no filter named '{}'", filter->line, filter->name));
    }
    if (IsOperator("(")) filter->arguments = ParseCallArguments();
    filter->operands.push_back(std::move(node));
    node = Finish(std::move(filter));
  }
  return node;
}

ExpressionPtr Parser::ParseTest(ExpressionPtr node) {
  ExpectName("is");
  const bool negated = SkipName("not");
  ExpressionPtr test = New(ExpressionKind::kTest);
  test->name = ParseDottedName();
  if (!IsKnownTest(test->name)) {
    NoteUnknown(fmt::format("chat template line {}: no test named '{}'", test->line, test->name));
  }
  test->operands.push_back(std::move(node));
  const TokenKind kind = current().kind;
  if (IsOperator("(")) {
    test->arguments = ParseCallArguments();
  } else if ((kind == TokenKind::kName || kind == TokenKind::kString ||
              kind == TokenKind::kInteger || kind == TokenKind::kFloat || IsOperator("[") ||
              IsOperator("{")) &&
             !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) Fail("chat template line {}: tests cannot be chained with is", test->line);
    test->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  test = Finish(std::move(test));
  if (!negated) return test;
  ExpressionPtr inverted = New(ExpressionKind::kNot);
  inverted->operands.push_back(std::move(test));
  return Finish(std::move(inverted));
}

ExpressionPtr Parser::ParseCall(ExpressionPtr node) {
  ExpressionPtr call = New(ExpressionKind::kCall);
  call->arguments = ParseCallArguments();
  call->operands.push_back(std::move(node));
  return Finish(std::move(call));
}

CallArguments Parser::ParseCallArguments() {
  const Nesting nesting(*this);
  CallArguments arguments;
  bool first = true;
  const auto require = [&](bool allowed) {
    if (!allowed) Fail("chat template line {}: arguments in the wrong order", current().line);
  };
  ExpectOperator("(");
  while (!IsOperator(")")) {
    if (!first) {
      ExpectOperator(",");
      if (IsOperator(")")) break;
    }
    first = false;
    if (SkipOperator("*")) {
      require(arguments.star == nullptr && arguments.double_star == nullptr);
      arguments.star = ParseExpression();
    } else if (SkipOperator("**")) {
      require(arguments.double_star == nullptr);
      arguments.double_star = ParseExpression();
    } else if (current().kind == TokenKind::kName && Peek().kind == TokenKind::kOperator &&
               Peek().text == "=") {
      require(arguments.double_star == nullptr);
      std::string name = Next().text;
      Next();
      for (const auto& [other, value] : arguments.named) {
        if (other == name) {
          Fail("chat template line {}: keyword argument repeated: {}", current().line, name);
        }
      }
      arguments.named.emplace_back(std::move(name), ParseExpression());
    } else {
      require(arguments.star == nullptr && arguments.double_star == nullptr &&
              arguments.named.empty());
      arguments.positional.push_back(ParseExpression());
    }
  }
  ExpectOperator(")");
  return arguments;
}

}  // namespace loopspec::jinja
