// loopspec template: a conversation as the prompt that the model's chat template makes of it.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "text/chat_template.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/options.h"

namespace loopspec::tools {
namespace {

struct TemplateOptions {
  std::string model;
  std::string messages, text;
  std::string name = "default";
  std::vector<std::string> arguments;
  bool no_generation_prompt = false;
};

void RunTemplate(const TemplateOptions& options) {
  const auto dir = ResolveModel(options.model);
  const std::optional<ChatTemplate> chat_template = ReadChatTemplate(dir, options.name);
  if (!chat_template) {
    Fail(
        "{}: no chat template, expected chat_template.jinja or a chat_template in "
        "tokenizer_config.json",
        dir.string());
  }
  ChatTemplate::Options render;
  render.add_generation_prompt = !options.no_generation_prompt;
  OrderedJson messages =
      options.messages.empty()
          ? OrderedJson::array({{{"role", "user"}, {"content", options.text}}})
          : ParseOrderedJson(ReadInput(options.messages), NameOfInput(options.messages));
  if (messages.is_object()) {
    for (const char* name : {"tools", "documents"}) {
      if (messages.contains(name)) render.arguments[name] = messages[name];
    }
    if (!messages.contains("messages")) {
      Fail("{}: found an object without \"messages\"", NameOfInput(options.messages));
    }
    messages = OrderedJson(messages["messages"]);
  }
  if (!messages.is_array()) {
    Fail("{}: the messages are {}, expected a list", NameOfInput(options.messages),
         messages.type_name());
  }
  render.arguments.update(ParseTemplateArguments(options.arguments));
  std::string prompt = chat_template->Render(messages, render);
  // Exactly the prompt, for pipes and files; on a terminal the shell's own prompt starts on a line
  // of its own.
  if (isatty(STDOUT_FILENO) != 0 && !prompt.ends_with('\n')) prompt += '\n';
  if (std::fwrite(prompt.data(), 1, prompt.size(), stdout) != prompt.size()) {
    Fail("standard output: not all of the prompt could be written");
  }
}

}  // namespace

void AddTemplateCommand(Command app) {
  auto options = std::make_shared<TemplateOptions>();
  const Command command = app.AddCommand(
      "template", "Print the prompt that the model's chat template makes of a conversation");
  command.AddModel(options->model, "Folder of a model, or ORG/NAME of a downloaded one").Required();
  const Option file = command.AddOption(
      "--messages", options->messages,
      "JSON file with a list of messages, or an object with \"messages\" and \"tools\" or "
      "\"documents\"; - reads standard input");
  const Option text =
      command.AddOption("MESSAGE", options->text, "A user's message instead").OrElse({file});
  command.AddOption("--template", options->name,
                    "Name of the template, where the model brings several");
  command
      .AddOption("--template-arg", options->arguments,
                 "Variable for the template as key=value, the value JSON or else text; may be "
                 "given several "
                 "times")
      .OneValueEach();
  command.AddFlag("--no-generation-prompt", options->no_generation_prompt,
                  "Do not open the assistant's answer at the end");
  command.SetAction([options, file, text] {
    const size_t given = file.Count() + text.Count();
    if (given != 1)
      Fail("template needs one conversation: a message after the model, or --messages FILE{}",
           given == 0 ? TextInPlaceOfModel(options->model) : "");
    RunTemplate(*options);
  });
}

}  // namespace loopspec::tools
