// loopspec detokenize: token ids to text.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "text/tokenizer.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/token_list.h"

namespace loopspec::tools {
namespace {

struct DetokenizeOptions {
  std::string model;
  std::string ids;
  std::string file;
  bool skip_special = false;
  bool json = false;
};

std::string ReadIdText(const DetokenizeOptions& options, bool ids_given, bool file_given) {
  if (ids_given == file_given) {
    Fail(
        "detokenize needs token ids once: as an argument, as --file FILE, or as - for standard "
        "input");
  }
  if (file_given) return ReadInput(options.file);
  return options.ids == "-" ? ReadInput("-") : options.ids;
}

void RunDetokenize(const DetokenizeOptions& options, bool ids_given, bool file_given) {
  const std::vector<int32_t> ids = ParseTokenList(ReadIdText(options, ids_given, file_given));
  for (const int32_t id : ids) {
    if (id < 0) Fail("{} is no token id, expected 0 or more", id);
  }
  const Tokenizer tokenizer = ReadTokenizer(ResolveModel(options.model));
  std::string text = tokenizer.Decode(ids, options.skip_special);
  if (options.json) text = Json{{"text", text}}.dump();
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (options.json) std::fputc('\n', stdout);
}

}  // namespace

void AddDetokenizeCommand(Command app) {
  const Command command = app.AddCommand("detokenize", "Turn token ids back into text");
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec detokenize --model models/ouro-demo 1,2,3\n"
      "  loopspec tokenize --model models/ouro-demo \"Hello\" | loopspec detokenize --model "
      "models/ouro-demo -\n"
      "\n"
      "Prints the text and nothing else, no newline at the end. Ids that the tokenizer does not "
      "know are left out.");
  auto options = std::make_shared<DetokenizeOptions>();
  command.AddModel(options->model, "Folder of a model, or ORG/NAME of a downloaded one").Required();
  const Option ids = command.AddOption("ids", options->ids,
                                       "Token ids with commas between; - reads standard input");
  const Option file = command.AddOption("--file,-f", options->file,
                                        "Read the ids from this file; - is standard input");
  command.AddFlag("--skip-special", options->skip_special,
                  "Leave out special tokens such as <|endoftext|>");
  command.AddFlag("--json", options->json, R"(Print {"text": "..."} instead of the bare text)");
  command.SetAction(
      [options, ids, file] { RunDetokenize(*options, ids.Count() > 0, file.Count() > 0); });
}

}  // namespace loopspec::tools
