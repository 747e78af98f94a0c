// loopspec tokenize: text to token ids.
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "fmt/format.h"
#include "text/tokenizer.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/options.h"

namespace loopspec::tools {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text;
  std::string file;
  bool no_special = false;
  bool json = false;
};

// The bytes as they are: a newline at the end belongs to the text.
std::string ReadText(const TokenizeOptions& options, bool text_given, bool file_given) {
  if (text_given == file_given) {
    Fail("tokenize needs one text: as an argument, as --file FILE, or as - for standard input{}",
         text_given ? "" : TextInPlaceOfModel(options.model));
  }
  if (file_given) return ReadInput(options.file);
  return options.text == "-" ? ReadInput("-") : options.text;
}

void RunTokenize(const TokenizeOptions& options, bool text_given, bool file_given) {
  const std::string text = ReadText(options, text_given, file_given);
  const Tokenizer tokenizer = ReadTokenizer(ResolveModel(options.model));
  const std::vector<int32_t> ids = tokenizer.Encode(text, !options.no_special);
  const std::string line =
      options.json ? Json{{"tokens", ids}}.dump() : fmt::format("{}", fmt::join(ids, ","));
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
}

}  // namespace

void AddTokenizeCommand(Command app) {
  const Command command = app.AddCommand(
      "tokenize", "Show the token ids of a text, exactly as the model will see them");
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec tokenize --model models/ouro-demo \"Once upon a time\"\n"
      "  loopspec tokenize --model models/ouro-demo --file story.txt --json\n"
      "  echo -n \"Hello\" | loopspec tokenize --model models/ouro-demo -\n"
      "\n"
      "Needs no weights: a folder with tokenizer.json is enough. The ids can be given to `loopspec "
      "detokenize`.");
  auto options = std::make_shared<TokenizeOptions>();
  command.AddModel(options->model, "Folder of a model, or ORG/NAME of a downloaded one").Required();
  const Option text = command.AddOption("text", options->text, "The text; - reads standard input");
  const Option file =
      command.AddOption("--file,-f", options->file,
                        "Read the text from this file, every byte of it; - is standard input");
  text.OrElse({file});
  command.AddFlag(
      "--no-special", options->no_special,
      "Leave out the special tokens that the model expects around a text (begin of text, ...)");
  command.AddFlag("--json", options->json,
                  R"(Print {"tokens": [...]} instead of ids with commas between)");
  command.SetAction(
      [options, text, file] { RunTokenize(*options, text.Count() > 0, file.Count() > 0); });
}

}  // namespace loopspec::tools
