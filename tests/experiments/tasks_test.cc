#include "experiments/tasks/tasks.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"

namespace loopspec::experiments {
namespace {

namespace fs = std::filesystem;
const fs::path kModels = fs::path(LOOPSPEC_SOURCE_DIR) / "models";

// A folder of small benchmark files; the problems are ours.
class Tasks : public testing::Test {
 protected:
  void SetUp() override {
    data_ = fs::path(LOOPSPEC_BINARY_DIR) / "tasks_test_data" /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(data_);
    Write("gsm8k/test.jsonl", R"({"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"})"
                              "\n\n"
                              R"({"question": "One less than 1,001?", "answer": "#### 1,000"})");
    Write(
        "math500/test.jsonl",
        R"({"problem": "Halve $1$.", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "answer": "?"})");
    for (const std::string& name : TaskNames()) {
      if (!name.starts_with("bbh_cot_fewshot_")) continue;
      const std::string part = name.substr(16);
      Write("bbh/cot-prompts/" + part + ".txt",
            "warning\n-----\nDo it.\n\nQ: a\nA: Let's think step by step.\nSo the answer is b.\n\n"
            "Q: c\nA: Let's think step by step. So the answer is d.\n\n"
            "Q: e\nA: Let's think step by step.\nSo the answer is f.");
      Write(
          "bbh/bbh/" + part + ".json",
          R"json({"examples": [{"input": "x", "target": "(A)"}, {"input": "y", "target": "(B)"}]})json");
    }
    Write("aime2024/test.jsonl", R"({"problem": "Find it.", "answer": "025"})");
    Write("aime2025/test.jsonl", R"({"question": "Find $n$.", "answer": "336^\\circ"})");
    WriteGzip(
        "humaneval/HumanEval.jsonl.gz",
        R"({"task_id": "HumanEval/0", "prompt": "def one():\n", "entry_point": "one", )"
        R"("canonical_solution": "    return 1\n", "test": "def check(f):\n    assert f() == 1\n"})");
    WriteGzip(
        "humanevalplus/HumanEvalPlus.jsonl.gz",
        R"({"task_id": "HumanEval/0", "prompt": "def one():\n", "entry_point": "one", )"
        R"("canonical_solution": "    return 1\n", "test": "def check(f):\n    assert f() == 1\n"})");
    WriteGzip(
        "mbppplus/MbppPlus.jsonl.gz",
        R"({"task_id": "Mbpp/7", "prompt": "\"\"\"\nWrite two.\n\"\"\"\n", "entry_point": "two", )"
        R"("canonical_solution": "def two(): return 2", "x": [NaN, -Infinity, "NaN \" Infinity"]})");
  }

  void Write(const fs::path& name, const std::string& text) {
    fs::create_directories((data_ / name).parent_path());
    std::ofstream(data_ / name, std::ios::binary) << text;
  }
  void WriteGzip(const fs::path& name, const std::string& text) {
    fs::create_directories((data_ / name).parent_path());
    gzFile file = gzopen((data_ / name).c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
  }
  Task Make(const std::string& name, bool chat = false) {
    return MakeTask(name, {.data = data_, .chat = chat});
  }
  std::string ErrorOf(const std::string& name, std::optional<int> shots = {}) {
    try {
      MakeTask(name, {.data = data_, .shots = shots});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path data_;
};

TEST_F(Tasks, Gsm8k) {
  const Task task = MakeTask("gsm8k_cot", {.data = data_, .shots = 1});
  ASSERT_EQ(task.items.size(), 2u);
  EXPECT_EQ(
      task.items[0].prompt,
      "Q: There are 15 trees in the grove. Grove workers will plant trees in the grove today. "
      "After they are done, there will be 21 trees. How many trees did the grove workers plant "
      "today?\nA: There are 15 trees originally. Then there were 21 trees after some more were "
      "planted. So there must have been 21 - 15 = 6. The answer is 6.\n\n"
      "Q: Two and two?\nA:");
  EXPECT_EQ(task.max_tokens, 512);
  EXPECT_EQ(task.max_length, 2048);
  EXPECT_EQ(Make("gsm8k_cot").shots, 8);
}

TEST_F(Tasks, Gsm8kInTurns) {
  const Task task = MakeTask("gsm8k_cot", {.data = data_, .shots = 2, .chat = true});
  ASSERT_EQ(task.items[0].messages.size(), 5u);
  EXPECT_EQ(task.items[0].prompt, "");
  EXPECT_EQ(task.items[0].messages[1].role, "assistant");
  EXPECT_EQ(task.items[0].messages[4], (TaskMessage{"user", "Q: Two and two?\nA:"}));
  EXPECT_EQ(task.max_tokens, 4096);
}

TEST_F(Tasks, Math500) {
  const Task task = Make("minerva_math500");
  EXPECT_EQ(task.shots, 4);
  EXPECT_TRUE(task.items[0].prompt.ends_with("\n\nProblem:\nHalve $1$.\n\nSolution:"));
}

TEST_F(Tasks, Bbh) {
  const Task part = Make("bbh_cot_fewshot_word_sorting");
  ASSERT_EQ(part.items.size(), 2u);
  EXPECT_EQ(part.items[0].prompt,
            "Do it.\n\nQ: a\nA: Let's think step by step.\nSo the answer is b.\n\n"
            "Q: c\nA: Let's think step by step.\nSo the answer is d.\n\n"
            "Q: e\nA: Let's think step by step.\nSo the answer is f.\n\n"
            "Q: x\nA: Let's think step by step.\n");
  EXPECT_EQ(Make("bbh_cot_fewshot").items.size(), 54u);
  const Task limited = MakeTask("bbh_cot_fewshot", {.data = data_, .limit = 30});
  EXPECT_EQ(limited.items.size(), 30u);
  EXPECT_EQ(MakeTask("bbh_cot_fewshot", {.data = data_, .limit = 27}).items[26].id,
            "bbh/word_sorting/0");
}

TEST_F(Tasks, Aime) {
  const Task task = Make("aime24", true);
  EXPECT_EQ(task.items[0].messages[0].content, "Question: Find it.\nAnswer:");
  const Task next = Make("aime25");
  EXPECT_EQ(next.items[0].prompt, "Question: Find $n$.\nAnswer:");
}

TEST_F(Tasks, Programs) {
  const Task plain = Make("humaneval");
  EXPECT_EQ(plain.items[0].prompt, "def one():\n");
  const Task plus = Make("humaneval_plus");
  EXPECT_TRUE(plus.items[0].prompt.ends_with("```\ndef one():\n```\nSolution:\n```python\n"));
  EXPECT_NE(plus.note.find("our own wording"), std::string::npos);
  const Task mbpp = Make("mbpp_plus", true);
  EXPECT_EQ(mbpp.items[0].answer_prefix, "Solution:\n```python\n");
}

// The authors' wording is data.
TEST_F(Tasks, ProgramsAreAskedForInTheWordsOfTheFile) {
  Write("evalplus_prompt.json", R"({"instruction": "Do this:", "answer_opening": "Here it is:"})");
  const Task plain = Make("humaneval_plus"), chat = Make("mbpp_plus", true);
  EXPECT_EQ(plain.items[0].prompt, "Do this:\n```\ndef one():\n```\nHere it is:\n```python\n");
  EXPECT_EQ(plain.note, "");
  EXPECT_EQ(chat.items[0].messages[0].content, "Do this:\n```\n\"\"\"\nWrite two.\n\"\"\"\n```\n");
  EXPECT_EQ(chat.items[0].answer_prefix, "Here it is:\n```python\n");
  Write("evalplus_prompt.json", R"({"instruction": "Do this:"})");
  EXPECT_NE(ErrorOf("mbpp_plus").find("no \"answer_opening\""), std::string::npos);
}

TEST_F(Tasks, HeldoutProblemsAndStories) {
  for (const bool chat : {false, true}) {
    const Task task = MakeTask("heldout_problems", {.data = kModels, .chat = chat, .limit = 5});
    ASSERT_EQ(task.items.size(), 5u);
    EXPECT_EQ(task.items[0].answer, "50");
    EXPECT_EQ(task.items[0].prompt.starts_with("Question: Kate has 4 drawers"), !chat);
    EXPECT_EQ(MakeTask("stories", {.chat = chat, .limit = 3}).items.size(), 3u);
  }
}

TEST_F(Tasks, RefuseWhatIsWrong) {
  EXPECT_NE(ErrorOf("gsm9k").find("task \"gsm9k\" is unknown"), std::string::npos);
  EXPECT_NE(ErrorOf("gsm8k_cot", 9).find("9 shots asked for, expected 0 to 8"), std::string::npos);
  EXPECT_NE(ErrorOf("aime24", 1).find("no few-shot examples"), std::string::npos);
  fs::remove(data_ / "gsm8k/test.jsonl");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("no such benchmark file"), std::string::npos);
  Write("gsm8k/test.jsonl", "{\"answer\": \"?\"}\n");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("gsm8k/0: no \"question\""), std::string::npos);
  Write("gsm8k/test.jsonl", "\n[1]\n");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("line 2"), std::string::npos);
  Write("gsm8k/test.jsonl", "{\"question\": ");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("line 1"), std::string::npos);
  Write("math500/test.jsonl", R"({"solution": "none"})");
  EXPECT_NE(ErrorOf("minerva_math500").find("no \"problem\""), std::string::npos);
  fs::resize_file(data_ / "humaneval/HumanEval.jsonl.gz", 40);
  EXPECT_NE(ErrorOf("humaneval").find("not a complete gzip file"), std::string::npos);
  Write("bbh/cot-prompts/navigate.txt", "no dashes");
  EXPECT_NE(ErrorOf("bbh_cot_fewshot_navigate").find("no line of dashes"), std::string::npos);
}

TEST(FinalAnswer, IsWhatFollowsTheLastMark) {
  EXPECT_EQ(FinalAnswer("2 + 2 = 4\n#### 4"), "4");
  EXPECT_EQ(FinalAnswer("#### 1\nNo.\n####  1,000 \nmore"), "1,000");
  EXPECT_EQ(FinalAnswer("It is 4."), std::nullopt);
}

}  // namespace
}  // namespace loopspec::experiments
