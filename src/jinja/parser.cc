#include "jinja/parser.h"

#include <algorithm>

#include "base/error.h"

namespace loopspec::jinja {
namespace {

constexpr int kMaxNesting = 200;

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText:
      return "template text";
    case TokenKind::kPrintBegin:
      return "{{";
    case TokenKind::kPrintEnd:
      return "}}";
    case TokenKind::kBlockBegin:
      return "{%";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return token.text;
  }
}

}  // namespace

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) {
    --parser_.nesting_;
    Fail("chat template line {}: nested deeper than {} levels", parser.current().line, kMaxNesting);
  }
}

const Token& Parser::Next() {
  const Token& token = tokens_[position_];
  if (token.kind != TokenKind::kEnd) ++position_;
  return token;
}

bool Parser::IsName(std::string_view name) const {
  return current().kind == TokenKind::kName && current().text == name;
}
bool Parser::IsOperator(std::string_view op) const {
  return current().kind == TokenKind::kOperator && current().text == op;
}
bool Parser::IsTupleEnd(std::string_view end_name) const {
  return current().kind == TokenKind::kPrintEnd || current().kind == TokenKind::kBlockEnd ||
         IsOperator(")") || (!end_name.empty() && IsName(end_name));
}
bool Parser::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  Next();
  return true;
}
bool Parser::SkipOperator(std::string_view op) {
  if (!IsOperator(op)) return false;
  Next();
  return true;
}
void Parser::ExpectName(std::string_view name) {
  if (!SkipName(name)) FailExpected(name);
}
void Parser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) FailExpected(op);
}
void Parser::ExpectBlockEnd() {
  if (current().kind != TokenKind::kBlockEnd) FailExpected("%}");
  Next();
}
std::string Parser::ExpectIdentifier() {
  if (current().kind != TokenKind::kName) FailExpected("a name");
  return Next().text;
}
void Parser::FailExpected(std::string_view what) const {
  Fail("chat template line {}: found '{}', expected '{}'", current().line, Describe(current()),
       what);
}

Body Parser::ParseTemplate() {
  Body body = ParseUntil({});
  for (const UnknownName& unknown : unknown_) {
    if (!unknown.conditional) Fail("{}", unknown.message);
  }
  return body;
}

// Statements up to a tag of one of these names, which is the current token afterwards; all of them
// when none is given.
Body Parser::ParseUntil(const std::vector<std::string_view>& end_names) {
  const Nesting nesting(*this);
  const int opened = tokens_[position_ > 0 ? position_ - 1 : 0].line;
  Body body;
  while (current().kind != TokenKind::kEnd) {
    const Token& token = Next();
    if (token.kind == TokenKind::kText) {
      auto text = std::make_unique<Statement>(StatementKind::kText, token.line);
      text->text = token.text;
      body.push_back(std::move(text));
    } else if (token.kind == TokenKind::kPrintBegin) {
      auto print = std::make_unique<Statement>(StatementKind::kPrint, token.line);
      print->value = ParseTuple(true, false, "");
      if (current().kind != TokenKind::kPrintEnd) FailExpected("}}");
      Next();
      body.push_back(std::move(print));
    } else {
      if (std::any_of(end_names.begin(), end_names.end(),
                      [&](std::string_view name) { return IsName(name); })) {
        return body;
      }
      body.push_back(ParseStatement());
      ExpectBlockEnd();
    }
  }
  for (const std::string_view name : end_names) {
    if (!name.starts_with("end")) continue;
    Fail("chat template line {}: the '{}' that begins here is not closed, expected {{% {} %}}",
         opened, name.substr(3), name);
  }
  return body;
}

Body Parser::ParseBody(const std::vector<std::string_view>& end_names) {
  SkipOperator(":");
  ExpectBlockEnd();
  return ParseUntil(end_names);
}

// A body with variables of its own. What is unknown in it fails at once, even if it is never
// reached: jinja2 looks at conditions only within one frame.
Body Parser::ParseInnerBody(const std::vector<std::string_view>& end_names, bool keeps_loop) {
  const bool conditional = std::exchange(conditional_, false);
  const int loops = keeps_loop ? loops_ : std::exchange(loops_, 0);
  Body body = ParseBody(end_names);
  conditional_ = conditional;
  loops_ = loops;
  return body;
}

std::unique_ptr<Statement> Parser::ParseStatement() {
  if (current().kind != TokenKind::kName) FailExpected("the name of a tag");
  auto statement = std::make_unique<Statement>(StatementKind::kText, current().line);
  const std::string tag = Next().text;
  Statement* s = statement.get();
  if (tag == "if") {
    ParseIf(s);
  } else if (tag == "for") {
    ParseFor(s);
  } else if (tag == "set") {
    ParseSet(s);
  } else if (tag == "macro") {
    ParseMacro(s);
  } else if (tag == "call") {
    ParseCallBlock(s);
  } else if (tag == "with") {
    ParseWith(s);
  } else if (tag == "filter") {
    s->kind = StatementKind::kFilterBlock;
    s->filter = ParseFilter(nullptr, true);
    s->body = ParseInnerBody({"endfilter"}, true);
    Next();
  } else if (tag == "generation") {
    s->kind = StatementKind::kScope;
    s->body = ParseInnerBody({"endgeneration"}, false);
    Next();
  } else if (tag == "block") {
    ParseBlock(s);
  } else if (tag == "print") {
    ParsePrint(s);
  } else if (tag == "break" || tag == "continue") {
    ParseLoopControl(s, tag);
  } else {
    ParseUnsupported(s, tag);
  }
  return statement;
}

void Parser::ParseLoopControl(Statement* statement, const std::string& tag) {
  if (loops_ == 0) Fail("chat template line {}: {} outside of a loop", statement->line, tag);
  statement->kind = tag == "break" ? StatementKind::kBreak : StatementKind::kContinue;
}

void Parser::ParseIf(Statement* statement) {
  statement->kind = StatementKind::kIf;
  const bool conditional = std::exchange(conditional_, true);
  do {
    ExpressionPtr condition = ParseTuple(false, false, "");
    Body body = ParseBody({"elif", "else", "endif"});
    statement->branches.emplace_back(std::move(condition), std::move(body));
  } while (SkipName("elif"));
  if (SkipName("else")) statement->otherwise = ParseBody({"endif"});
  Next();
  conditional_ = conditional;
}

void Parser::ParseFor(Statement* statement) {
  statement->kind = StatementKind::kFor;
  statement->target = ParseTarget("in", false);
  const auto is_loop = [](const Expression& e) {
    return e.kind == ExpressionKind::kName && e.name == "loop";
  };
  if (is_loop(*statement->target) ||
      std::any_of(statement->target->operands.begin(), statement->target->operands.end(),
                  [&](const ExpressionPtr& e) { return is_loop(*e); })) {
    Fail("chat template line {}: cannot assign to the special variable loop", statement->line);
  }
  ExpectName("in");
  statement->value = ParseTuple(false, false, "recursive");
  if (SkipName("if")) statement->condition = ParseExpression();
  statement->recursive = SkipName("recursive");
  const bool outer_mention = std::exchange(mentions_.loop, false);
  ++loops_;
  statement->body = ParseInnerBody({"endfor", "else"}, true);
  --loops_;
  statement->uses_loop = statement->recursive || mentions_.loop;
  mentions_.loop = outer_mention;
  if (Next().text == "else") {
    statement->otherwise = ParseInnerBody({"endfor"}, true);
    Next();
  }
}

void Parser::ParseSet(Statement* statement) {
  statement->target = ParseTarget("", true);
  if (SkipOperator("=")) {
    statement->kind = StatementKind::kSet;
    statement->value = ParseTuple(true, false, "");
    return;
  }
  statement->kind = StatementKind::kSetBlock;
  if (IsOperator("|")) statement->filter = ParseFilter(nullptr, false);
  statement->body = ParseInnerBody({"endset"}, true);
  Next();
}

void Parser::ParseMacro(Statement* statement) {
  statement->kind = StatementKind::kMacro;
  statement->macro.name = ExpectIdentifier();
  ParseSignature(&statement->macro);
  ParseMacroBody(&statement->macro, "endmacro");
}

void Parser::ParseSignature(Macro* macro) {
  ExpectOperator("(");
  while (!IsOperator(")")) {
    if (!macro->parameters.empty()) ExpectOperator(",");
    macro->parameters.push_back(ExpectIdentifier());
    if (SkipOperator("=")) {
      macro->defaults.push_back(ParseExpression());
    } else if (!macro->defaults.empty()) {
      Fail("chat template line {}: non-default argument follows default argument", current().line);
    }
  }
  ExpectOperator(")");
}

void Parser::ParseMacroBody(Macro* macro, std::string_view end_name) {
  const Mentions outer = std::exchange(mentions_, {});
  macro->body = ParseInnerBody({end_name}, false);
  Next();
  macro->uses_caller = mentions_.caller;
  macro->uses_varargs = mentions_.varargs;
  macro->uses_kwargs = mentions_.kwargs;
  mentions_.caller |= outer.caller;
  mentions_.varargs |= outer.varargs;
  mentions_.kwargs |= outer.kwargs;
  mentions_.loop |= outer.loop;
}

void Parser::ParseCallBlock(Statement* statement) {
  statement->kind = StatementKind::kCallBlock;
  statement->macro.name = "caller";
  if (IsOperator("(")) ParseSignature(&statement->macro);
  statement->value = ParseExpression();
  if (statement->value->kind != ExpressionKind::kCall) {
    Fail("chat template line {}: expected a call", statement->line);
  }
  ParseMacroBody(&statement->macro, "endcall");
}

void Parser::ParseWith(Statement* statement) {
  statement->kind = StatementKind::kWith;
  while (current().kind != TokenKind::kBlockEnd) {
    if (!statement->assignments.empty()) ExpectOperator(",");
    ExpressionPtr target = ParseTarget("", false);
    ExpectOperator("=");
    statement->assignments.emplace_back(std::move(target), ParseExpression());
  }
  statement->body = ParseInnerBody({"endwith"}, true);
  Next();
}

void Parser::ParseBlock(Statement* statement) {
  statement->kind = StatementKind::kBlock;
  const std::string name = ExpectIdentifier();
  SkipName("scoped");
  statement->body = ParseInnerBody({"endblock"}, false);
  Next();
  SkipName(name);
}

void Parser::ParsePrint(Statement* statement) {
  // Several values print one after the other, as concatenation does.
  statement->kind = StatementKind::kPrint;
  ExpressionPtr values = New(ExpressionKind::kConcat);
  while (current().kind != TokenKind::kBlockEnd) {
    if (!values->operands.empty()) ExpectOperator(",");
    values->operands.push_back(ParseExpression());
  }
  statement->value = Finish(std::move(values));
}

void Parser::ParseUnsupported(Statement* statement, const std::string& tag) {
  statement->kind = StatementKind::kUnsupported;
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    statement->text = "there are no other templates for '" + tag + "' to load";
    while (current().kind != TokenKind::kBlockEnd && current().kind != TokenKind::kEnd) Next();
    return;
  }
  if (tag == "autoescape") {
    statement->text = "autoescape blocks are not supported";
    ParseExpression();
    ParseInnerBody({"endautoescape"}, true);
    Next();
    return;
  }
  Fail("chat template line {}: unknown tag '{}'", statement->line, tag);
}

// A name, names in (nested) tuples or, for set, attributes of a namespace.
ExpressionPtr Parser::ParseTarget(std::string_view end_name, bool with_namespace) {
  // A target is written, not mentioned.
  const Mentions mentions = mentions_;
  std::vector<ExpressionPtr> targets;
  bool is_tuple = false;
  while (true) {
    if (!targets.empty()) ExpectOperator(",");
    if (IsTupleEnd(end_name)) break;
    targets.push_back(ParsePrimary(with_namespace));
    if (!IsOperator(",")) break;
    is_tuple = true;
  }
  if (targets.empty()) FailExpected("a name to assign to");
  ExpressionPtr target;
  if (is_tuple) {
    target = New(ExpressionKind::kTuple);
    target->operands = std::move(targets);
    target = Finish(std::move(target));
  } else {
    target = std::move(targets.front());
  }
  CheckTarget(*target);
  mentions_ = mentions;
  return target;
}

void Parser::CheckTarget(const Expression& target) const {
  switch (target.kind) {
    case ExpressionKind::kName:
    case ExpressionKind::kNamespaceRef:
      return;
    case ExpressionKind::kTuple:
      for (const ExpressionPtr& item : target.operands) CheckTarget(*item);
      return;
    default:
      Fail("chat template line {}: cannot assign to this expression", target.line);
  }
}

Body Parse(std::string_view source) {
  return Parser(Tokenize(source)).ParseTemplate();
}

}  // namespace loopspec::jinja
