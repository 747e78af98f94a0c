// loopspec grammar: what a schema, a regular expression or a GBNF grammar allows.
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "fmt/format.h"
#include "grammar/grammar.h"
#include "text/token_bytes.h"
#include "text/tokenizer.h"
#include "tools/commands.h"
#include "tools/input_file.h"

namespace loopspec::tools {
namespace {

struct GrammarOptions {
  std::string schema;
  std::string regex;
  std::string gbnf;
  bool loose = false;
  bool any_order = false;
  std::string text;
  std::string model;
  bool json = false;
};

struct GrammarSources {
  Option schema, regex, gbnf;
};

GrammarSources AddSources(Command command, GrammarOptions& options) {
  const Option schema =
      command.AddOption("--schema", options.schema, "File with a JSON schema; - is standard input");
  const Option regex = command.AddOption("--regex", options.regex,
                                         "Regular expression that the whole text must match");
  const Option gbnf =
      command.AddOption("--grammar", options.gbnf, "File with a grammar in llama.cpp's GBNF form");
  command.AddFlag("--loose", options.loose,
                  "Ignore keywords of the schema that cannot be enforced, and name them");
  command.AddFlag("--any-order", options.any_order,
                  "Take the properties of objects in any order, not only in the schema's");
  return {schema, regex, gbnf};
}

std::shared_ptr<grammar::Grammar> Compile(const GrammarOptions& options,
                                          const GrammarSources& sources,
                                          grammar::Grammar::VocabularyPtr vocabulary) {
  using grammar::Grammar;
  const size_t given = sources.schema.Count() + sources.regex.Count() + sources.gbnf.Count();
  if (given != 1) Fail("give one of --schema FILE, --regex EXPRESSION and --grammar FILE");
  if (sources.regex.Count() > 0) return Grammar::FromRegex(options.regex, std::move(vocabulary));
  grammar::SchemaOptions schema;
  schema.strict = !options.loose;
  if (options.any_order) schema.order = grammar::PropertyOrder::kAny;
  if (sources.gbnf.Count() > 0) {
    return Grammar::FromGbnf(ReadInput(options.gbnf), std::move(vocabulary), schema);
  }
  return Grammar::FromSchema(ReadInput(options.schema), std::move(vocabulary), schema);
}

void RunCheck(const GrammarOptions& options, const GrammarSources& sources, bool text_given) {
  const auto grammar = Compile(options, sources, nullptr);
  for (const std::string& keyword : grammar->ignored()) {
    fmt::print(stderr, "ignored: {}\n", keyword);
  }
  if (!text_given) {
    fmt::print("the grammar can be enforced\n");
    return;
  }
  std::string text = ReadInput(options.text);
  // The newline that editors put at the end of a file is no part of the text.
  if (text.ends_with('\n')) text.pop_back();
  grammar::State state = grammar->Start();
  const size_t valid = state.CountValid(text);
  if (valid < text.size()) Fail("the text is invalid at byte {}", valid);
  state.Advance(text);
  if (!state.MayEnd()) Fail("the text is invalid at byte {}: it ends too early", text.size());
  fmt::print("valid\n");
}

void RunMask(const GrammarOptions& options, const GrammarSources& sources, bool text_given) {
  const Tokenizer tokenizer = ReadTokenizer(ResolveModel(options.model));
  const std::vector<std::string> bytes = TokenBytes(tokenizer);
  std::vector<grammar::Vocabulary::Token> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back({bytes[static_cast<size_t>(id)], tokenizer.IsSpecial(id)});
  }
  const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(std::move(tokens), std::vector<int32_t>{});
  const auto grammar = Compile(options, sources, vocabulary);
  const std::string text = text_given ? ReadInput(options.text) : "";
  grammar::State state = grammar->Start();
  const size_t valid = state.CountValid(text);
  if (valid < text.size()) Fail("the text is invalid at byte {}", valid);
  state.Advance(text);
  const grammar::Mask mask = state.NextTokens();
  Json ids = Json::array();
  for (int32_t id = 0; id < vocabulary->size(); ++id) {
    if (((*mask)[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
    ids.push_back(id);
    if (!options.json) {
      fmt::print("{}\t{}\n", id,
                 Json(vocabulary->bytes(id)).dump(-1, ' ', true, Json::error_handler_t::replace));
    }
  }
  if (options.json) {
    fmt::print(
        "{}\n",
        Json{{"tokens", ids}, {"may_end", state.MayEnd()}, {"forced", state.ForcedBytes(256)}}.dump(
            -1, ' ', true, Json::error_handler_t::replace));
  } else if (state.MayEnd()) {
    fmt::print("end of text\n");
  }
}

}  // namespace

void AddGrammarCommand(Command app) {
  const Command command = app.AddCommand(
      "grammar", "Check a JSON schema, regular expression or grammar, and what it allows next");
  const Command check = command.AddCommand(
      "check", "Say whether a grammar can be enforced, and whether it allows a text");
  check.SetFooter(
      "\nExamples:\n"
      "  loopspec grammar check --schema schema.json\n"
      "  loopspec grammar check --schema schema.json --text answer.json\n"
      "\n"
      "A keyword that cannot be enforced is an error that names it.");
  auto checked = std::make_shared<GrammarOptions>();
  const GrammarSources sources = AddSources(check, *checked);
  const Option text = check.AddOption("--text", checked->text, "File with a text to check");
  check.SetAction([checked, sources, text] { RunCheck(*checked, sources, text.Count() > 0); });

  const Command mask =
      command.AddCommand("mask", "List the tokens of a model that may come next after a text");
  mask.SetFooter(
      "\nExamples:\n"
      "  loopspec grammar mask --model models/ouro-demo --regex \"(yes|no)\"\n"
      "  loopspec grammar mask --model models/ouro-demo --schema schema.json --text begun.txt\n"
      "\n"
      "Needs no weights: a folder with tokenizer.json is enough.");
  auto masked = std::make_shared<GrammarOptions>();
  mask.AddModel(masked->model, "Folder of a model, or ORG/NAME of a downloaded one").Required();
  const GrammarSources mask_sources = AddSources(mask, *masked);
  const Option begun =
      mask.AddOption("--text", masked->text, "File with the text so far, every byte of it");
  mask.AddFlag("--json", masked->json,
               R"(Print {"tokens": [...], "may_end": ..., "forced": ...} instead of a list)");
  mask.SetAction(
      [masked, mask_sources, begun] { RunMask(*masked, mask_sources, begun.Count() > 0); });
}

}  // namespace loopspec::tools
