// Chat templates against stored results of jinja2; folders and arguments. What the language itself
// refuses is tested in tests/jinja.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

const std::filesystem::path kSource = LOOPSPEC_SOURCE_DIR;

// Folders made for one test.
struct ModelFolder : TemporaryFolder {
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((*this / name).parent_path());
    std::ofstream(*this / name, std::ios::binary) << text;
  }
};

TEST(ChatTemplate, AgreesWithStoredResultsOfJinja2) {
  setenv("TZ", "UTC", 1);
  const auto path = std::filesystem::path(LOOPSPEC_TEMPLATE_DATA) / "templates.json";
  const OrderedJson data = ParseOrderedJson(ReadFile(path), path.string());
  size_t texts = 0, refusals = 0;
  for (const OrderedJson& test : data["cases"]) {
    const bool snippet = test.contains("source");
    const OrderedJson* named =
        snippet ? nullptr : &data["templates"][test["template"].get<std::string>()];
    const std::string source = (snippet ? test["source"] : (*named)["source"]).get<std::string>();
    ChatTemplate::Options options;
    options.now_unix = data["now"].get<int64_t>();
    options.add_generation_prompt = test.value("add_generation_prompt", false);
    options.arguments = test.value("arguments", OrderedJson::object());
    const OrderedJson messages =
        snippet
            ? OrderedJson::parse(
                  R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])")
            : test["messages"];
    const std::string shown = snippet ? source : test.dump();
    try {
      const std::string text =
          ChatTemplate::FromSource(source, snippet ? data["variables"] : (*named)["variables"])
              .Render(messages, options);
      ASSERT_TRUE(test.contains("text"))
          << shown << "\nrendered as " << text << "\njinja2 refuses: " << test["error"];
      EXPECT_EQ(text, test["text"].get<std::string>()) << shown;
      ++texts;
    } catch (const Error& error) {
      ASSERT_TRUE(test.contains("error")) << shown << "\nrefused: " << error.what();
      EXPECT_NE(std::string(error.what()).find(test["error"].get<std::string>()), std::string::npos)
          << shown << "\n"
          << error.what();
      ++refusals;
    }
  }
  EXPECT_GT(texts, 3000u);
  EXPECT_GT(refusals, 500u);
}

TEST(ChatTemplate, ChoosesTheTemplateOfAFolder) {
  const ModelFolder folder;
  EXPECT_FALSE(ChatTemplate::FromFolder(folder.path()).has_value());
  folder.Write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
      "chat_template": [{"name": "default", "template": "D{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"},
                        {"name": "tool_use", "template": "T"}]})");
  const OrderedJson none = OrderedJson::array();
  EXPECT_EQ(ChatTemplate::FromFolder(folder.path())->Render(none, {}), "D<s></s>False");
  EXPECT_EQ(ChatTemplate::FromFolder(folder.path(), "tool_use")->Render(none, {}), "T");
  EXPECT_THROW(ChatTemplate::FromFolder(folder.path(), "rag"), Error);
  folder.Write("additional_chat_templates/rag.jinja", "R");
  EXPECT_EQ(ChatTemplate::FromFolder(folder.path(), "rag")->Render(none, {}), "R");
  folder.Write("special_tokens_map.json", R"({"pad_token": {"content": "<pad>"}})");
  EXPECT_EQ(ChatTemplate::FromFolder(folder.path())->Render(none, {}), "D<s></s>True");
  folder.Write("chat_template.jinja", "J{{ pad_token }}\n");
  EXPECT_EQ(ChatTemplate::FromFolder(folder.path())->Render(none, {}), "J<pad>");
}

TEST(ChatTemplate, RendersTheDemoModels) {
  const auto chat_template = ChatTemplate::FromFolder(kSource / "models/ouro-demo");
  ASSERT_TRUE(chat_template.has_value());
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "user", "content": "Hi"}])");
  EXPECT_EQ(chat_template->Render(messages, {}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, ReadsArgumentsAsJsonOrText) {
  const std::string given[] = {"enable_thinking=false", "mode=short", "n=3",
                               "list=[1, \"a\"]",       "empty=",     "eq=a=b"};
  EXPECT_EQ(
      ParseTemplateArguments(given).dump(),
      R"({"enable_thinking":false,"mode":"short","n":3,"list":[1,"a"],"empty":"","eq":"a=b"})");
  const std::string bad[] = {"novalue"};
  EXPECT_THROW(ParseTemplateArguments(bad), Error);
  const std::string nameless[] = {"=x"};
  EXPECT_THROW(ParseTemplateArguments(nameless), Error);
}

}  // namespace
}  // namespace loopspec
