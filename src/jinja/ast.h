// The parsed template: a tree that rendering only reads, so that threads can share it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace loopspec::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;         // *args
  ExpressionPtr double_star;  // **kwargs
};

enum class ExpressionKind {
  kConstant,      // constant
  kName,          // name
  kNamespaceRef,  // name.attribute as a target of set
  kTuple,         // operands
  kList,          // operands
  kDict,          // operands: key, value, key, value ...
  kConditional,   // operands: condition, then, else or null
  kOr,            // operands: left, right
  kAnd,
  kNot,  // operands: one
  kNegate,
  kPositive,
  kCompare,    // operands: first, then one for each of `operators`
  kBinary,     // operands: left, right; operators[0]
  kConcat,     // operands: any number, joined as text
  kAttribute,  // operands[0].attribute
  kSubscript,  // operands[0][operands[1]]
  kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], the last three may be null
  kCall,       // operands[0](arguments)
  kFilter,     // operands[0] | name(arguments); operands[0] is null for the text of a block
  kTest,       // operands[0] is name(arguments)
};

struct Expression {
  Expression(ExpressionKind k, int l) : kind(k), line(l) {}

  ExpressionKind kind;
  int line;
  int depth = 1;  // of the tree below
  std::string name;
  std::string attribute;
  Value constant;
  std::vector<std::string> operators;
  std::vector<ExpressionPtr> operands;
  CallArguments arguments;
};

// A macro, or the body of a call block, which becomes the macro `caller`.
struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  // Whether the body mentions these names; only then does the macro take what they hold.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

enum class StatementKind {
  kText,         // text
  kPrint,        // value
  kIf,           // branches, otherwise
  kFor,          // target, value (what to loop over), condition or null, recursive, body, otherwise
  kSet,          // target, value
  kSetBlock,     // target, filter or null, body
  kMacro,        // macro
  kCallBlock,    // value (the call), macro
  kFilterBlock,  // filter, body
  kWith,         // assignments, body
  kScope,        // body with variables of its own ({% generation %})
  kBlock,        // body in the outermost scope
  kBreak,
  kContinue,
  kUnsupported,  // text: why; fails when it is reached
};

struct Statement {
  Statement(StatementKind k, int l) : kind(k), line(l) {}

  StatementKind kind;
  int line;
  std::string text;
  ExpressionPtr target, value, condition, filter;
  bool recursive = false;
  bool uses_loop = false;  // the body of a for mentions `loop`
  Body body, otherwise;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Macro macro;
};

}  // namespace loopspec::jinja
