// Chat templates against stored results of jinja2, and what only we promise: limits, folders,
// arguments.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "jinja/budget.h"

namespace loopspec {
namespace {

const std::filesystem::path kSource = LOOPSPEC_SOURCE_DIR;

std::string RenderText(const std::string& source,
                       const OrderedJson& variables = OrderedJson::object()) {
  return ChatTemplate::FromSource(source, variables).Render(OrderedJson::array(), {});
}

std::string ErrorOf(const std::string& source) {
  try {
    RenderText(source);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Folders made for one test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "chat_template_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
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

TEST(ChatTemplate, SaysWhatTheTemplateSays) {
  EXPECT_EQ(ErrorOf("{{ raise_exception('Roles must alternate') }}"),
            "chat template: Roles must alternate");
}

TEST(ChatTemplate, NamesTheLineOfASyntaxError) {
  EXPECT_NE(ErrorOf("a\n{% if x %}\n{% endfor %}").find("line 3"), std::string::npos);
}

TEST(ChatTemplate, NamesTheBlockThatIsNotClosed) {
  EXPECT_EQ(
      ErrorOf("a\n{% for x in messages %}\n{{ x }}\n"),
      "chat template line 2: the 'for' that begins here is not closed, expected {% endfor %}");
  EXPECT_EQ(ErrorOf("{% if a %}\n{% for x in messages %}b{% endfor %}"),
            "chat template line 1: the 'if' that begins here is not closed, expected {% endif %}");
  EXPECT_EQ(ErrorOf("{% macro f() %}"),
            "chat template line 1: the 'macro' that begins here is not closed, expected "
            "{% endmacro %}");
}

TEST(ChatTemplate, RefusesChangingLists) {
  EXPECT_NE(
      ErrorOf("{% set x = [1] %}{{ x.append(2) }}").find("'append' of 'list' object is unsafe"),
      std::string::npos);
}

// Each would run or grow for ages; all end in an Error, in a fraction of a second each without
// sanitizers.
TEST(ChatTemplate, HostileTemplatesEndSoon) {
  const std::string deep(100000, '(');
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  const std::string hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] "
      "%}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = ns.l|map('string') "
      "%}{% endfor %}{{ ns.l|list }}",
      "{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns }}",
      "{{ 'x' * 9999999999 }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 'x'.center(999999999999) }}",
      "{{ [1] * 999999999999 }}",
      "{{ range(999999999999) }}",
      "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}",
      "{{ 9 ** 9 ** 9 }}",
      "{% for x in [[[]]] recursive %}{{ loop([x]) }}{% endfor %}",
      "{{ " + deep,
      sum + " }}",
      "{{ x" + std::string(100000, '!') + " }}",
      std::string("{{ '\xff' }}"),
  };
  for (const std::string& source : hostile) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NE(ErrorOf(source), "") << source.substr(0, 80);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60))
        << source.substr(0, 80);
  }
}

TEST(ChatTemplate, ChoosesTheTemplateOfAFolder) {
  const TemporaryFolder folder;
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
  const auto dir = kSource / "../shared/models/ouro-demo";
  if (!std::filesystem::exists(dir))
    GTEST_SKIP() << "no ../shared/models: the demo's folder is not tried";
  const auto chat_template = ChatTemplate::FromFolder(dir);
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
