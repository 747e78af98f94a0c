// From tokens to a tree. The grammar, its precedences and its refusals are jinja2's with the
// loop-control extension and the {% generation %} blocks of Hugging Face templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace loopspec::jinja {

// Throws Error naming the line and what was expected.
Body Parse(std::string_view source);

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Body ParseTemplate();

 private:
  // Names whose mention changes what a macro or loop is given.
  struct Mentions {
    bool caller = false, varargs = false, kwargs = false, loop = false;
  };
  struct UnknownName {
    std::string message;
    bool conditional;  // in an if: fails only when it is reached
  };
  // Guards recursion of the parser itself.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  // Tokens.
  const Token& current() const { return tokens_[position_]; }
  const Token& Peek() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const Token& Next();
  bool IsName(std::string_view name) const;
  bool IsOperator(std::string_view op) const;
  bool IsTupleEnd(std::string_view end_name) const;
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  void ExpectName(std::string_view name);
  void ExpectOperator(std::string_view op);
  void ExpectBlockEnd();
  std::string ExpectIdentifier();
  [[noreturn]] void FailExpected(std::string_view what) const;

  // Statements (parser.cc).
  Body ParseUntil(const std::vector<std::string_view>& end_names);
  Body ParseBody(const std::vector<std::string_view>& end_names);
  Body ParseInnerBody(const std::vector<std::string_view>& end_names, bool keeps_loop);
  std::unique_ptr<Statement> ParseStatement();
  void ParseIf(Statement* statement);
  void ParseFor(Statement* statement);
  void ParseSet(Statement* statement);
  void ParseMacro(Statement* statement);
  void ParseSignature(Macro* macro);
  void ParseMacroBody(Macro* macro, std::string_view end_name);
  void ParseCallBlock(Statement* statement);
  void ParseWith(Statement* statement);
  void ParseBlock(Statement* statement);
  void ParsePrint(Statement* statement);
  void ParseUnsupported(Statement* statement, const std::string& tag);
  void ParseLoopControl(Statement* statement, const std::string& tag);
  ExpressionPtr ParseTarget(std::string_view end_name, bool with_namespace);
  void CheckTarget(const Expression& target) const;

  // Expressions (parser_expression.cc).
  ExpressionPtr ParseTuple(bool with_conditional, bool parenthesised, std::string_view end_name);
  ExpressionPtr ParseExpression(bool with_conditional = true);
  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool with_filter = true);
  ExpressionPtr ParsePrimary(bool with_namespace = false);
  ExpressionPtr ParseNameOrConstant(bool with_namespace);
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParsePostfix(ExpressionPtr node);
  ExpressionPtr ParseSubscript(ExpressionPtr node);
  ExpressionPtr ParseBracketItem();
  ExpressionPtr ParseFiltersAndTests(ExpressionPtr node);
  ExpressionPtr ParseFilter(ExpressionPtr node, bool name_follows);
  ExpressionPtr ParseTest(ExpressionPtr node);
  ExpressionPtr ParseCall(ExpressionPtr node);
  CallArguments ParseCallArguments();
  std::string ParseDottedName();
  ExpressionPtr New(ExpressionKind kind) const;
  ExpressionPtr Binary(ExpressionKind kind, std::string op, ExpressionPtr left,
                       ExpressionPtr right);
  // Sets the depth from the operands; fails on a tree too deep to walk.
  ExpressionPtr Finish(ExpressionPtr node) const;
  void NoteMention(std::string_view name);
  void NoteUnknown(std::string message);

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
  int loops_ = 0;             // how many for loops a break would find
  bool conditional_ = false;  // inside an if of the current frame
  Mentions mentions_;
  std::vector<UnknownName> unknown_;
};

}  // namespace loopspec::jinja
