#include "experiments/tasks/tasks.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"

namespace loopspec::measure {
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
        "humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz",
        R"({"task_id": "HumanEval/0", "prompt": "def one():\n", "entry_point": "one", )"
        R"("canonical_solution": "    return 1\n", "test": "def check(f):\n    assert f() == 1\n"})");
    WriteGzip(
        "mbppplus/MbppPlus.jsonl.gz",
        R"({"task_id": "Mbpp/7", "prompt": "\"\"\"\nWrite two.\n\"\"\"\n", "entry_point": "two", )"
        R"("canonical_solution": "def two(): return 2", "x": [NaN, -Infinity, "NaN \" Infinity"]})");
    WriteGzip("mbppplus/MbppPlus-OriginFmt.jsonl.gz",
              R"({"task_id": 7, "test": "assert two() == 2"})");
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
    return MakeTask(name, {.data = data_, .chat = chat, .allow_unsandboxed_code = !HasSandbox()});
  }
  // Scores are the same without one.
  static bool HasSandbox() {
    try {
      NeedSandbox();
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  std::string ErrorOf(const std::string& name, std::optional<int> shots = {}) {
    try {
      MakeTask(name, {.data = data_, .shots = shots, .allow_unsandboxed_code = !HasSandbox()});
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
  EXPECT_EQ(task.items[1].reference, "1,000");
  EXPECT_EQ(task.max_tokens, 512);
  EXPECT_EQ(task.max_length, 2048);
  EXPECT_EQ(Make("gsm8k_cot").shots, 8);
  const TaskScore right = ScoreAnswer(task, task.items[1], " The answer is 1000.");
  EXPECT_TRUE(right.correct);
  EXPECT_TRUE(right.metrics.at("exact_match,strict-match"));
  const TaskScore wrong = ScoreAnswer(task, task.items[1], " The answer is 1001.");
  EXPECT_FALSE(wrong.correct);
  EXPECT_FALSE(wrong.metrics.at("exact_match,flexible-extract"));
}

TEST_F(Tasks, Gsm8kInTurns) {
  const Task task = MakeTask("gsm8k_cot", {.data = data_, .shots = 2, .chat = true});
  ASSERT_EQ(task.items[0].messages.size(), 5u);
  EXPECT_EQ(task.items[0].prompt, "");
  EXPECT_EQ(task.items[0].messages[1].role, "assistant");
  EXPECT_EQ(task.items[0].messages[4], (TaskMessage{"user", "Q: Two and two?\nA:"}));
  EXPECT_EQ(task.max_tokens, 4096);
  EXPECT_TRUE(ScoreAnswer(task, task.items[0], "Is it 5?</think>It is 4.").correct);
  EXPECT_FALSE(ScoreAnswer(task, task.items[0], "It is 4.</think>It is 5.").correct);
}

TEST_F(Tasks, Math500) {
  const Task task = Make("minerva_math500");
  EXPECT_EQ(task.shots, 4);
  EXPECT_TRUE(task.items[0].prompt.ends_with("\n\nProblem:\nHalve $1$.\n\nSolution:"));
  EXPECT_EQ(task.items[0].reference, "\\frac{1}{2}");
  const TaskScore score = ScoreAnswer(
      task, task.items[0], "Final Answer: The final answer is $0.5$. I hope it is correct.");
  EXPECT_TRUE(score.correct);
  EXPECT_TRUE(score.metrics.at("exact_match"));
  EXPECT_FALSE(ScoreAnswer(task, task.items[0], "I do not know.").correct);
}

TEST_F(Tasks, Bbh) {
  const Task part = Make("bbh_cot_fewshot_word_sorting");
  ASSERT_EQ(part.items.size(), 2u);
  EXPECT_EQ(part.items[0].prompt,
            "Do it.\n\nQ: a\nA: Let's think step by step.\nSo the answer is b.\n\n"
            "Q: c\nA: Let's think step by step.\nSo the answer is d.\n\n"
            "Q: e\nA: Let's think step by step.\nSo the answer is f.\n\n"
            "Q: x\nA: Let's think step by step.\n");
  EXPECT_TRUE(ScoreAnswer(part, part.items[0], "So the answer is (A).").correct);
  EXPECT_FALSE(ScoreAnswer(part, part.items[1], "So the answer is (A).").correct);
  EXPECT_EQ(Make("bbh_cot_fewshot").items.size(), 54u);
  const Task limited = MakeTask("bbh_cot_fewshot", {.data = data_, .limit = 30});
  EXPECT_EQ(limited.items.size(), 30u);
  EXPECT_EQ(MakeTask("bbh_cot_fewshot", {.data = data_, .limit = 27}).items[26].id,
            "bbh/word_sorting/0");
}

TEST_F(Tasks, Aime) {
  const Task task = Make("aime24", true);
  EXPECT_EQ(task.items[0].messages[0].content, "Question: Find it.\nAnswer:");
  EXPECT_TRUE(ScoreAnswer(task, task.items[0], "So $\\boxed{25}$").correct);
  const Task next = Make("aime25");
  EXPECT_EQ(next.items[0].prompt, "Question: Find $n$.\nAnswer:");
  EXPECT_TRUE(ScoreAnswer(next, next.items[0], "It is $\\boxed{336}$.").correct);
  EXPECT_FALSE(ScoreAnswer(next, next.items[0], "It is $\\boxed{335}$.").correct);
}

// aime24 and aime25 look into the box; without one between dollar signs, else at everything.
TEST_F(Tasks, AimeMatchesWhatIsBoxed) {
  Write("aime2024/test.jsonl", R"({"problem": "Find it.", "answer": "204"})");
  const Task task = Make("aime24");
  const auto exact = [&](const std::string& answer) {
    return ScoreAnswer(task, task.items[0], answer).metrics.at("exact_match");
  };
  EXPECT_TRUE(exact("So the answer is $\\boxed{204}$."));
  EXPECT_TRUE(exact("\\boxed{7}, no: \\boxed{204}"));
  EXPECT_TRUE(exact("It is $204$."));
  EXPECT_TRUE(exact(" 204\n"));
  EXPECT_FALSE(exact("It is 204."));
  EXPECT_FALSE(exact("\\boxed{240}"));
}

// As the paper's authors score it: the last number, wherever it stands.
TEST_F(Tasks, Gsm8kCountsTheFlexibleMatch) {
  const Task task = Make("gsm8k_cot");
  const auto right = [&](const std::string& answer) {
    const TaskScore score = ScoreAnswer(task, task.items[0], answer);
    EXPECT_EQ(score.correct, score.metrics.at("exact_match,flexible-extract")) << answer;
    return score.correct;
  };
  EXPECT_TRUE(right("Two and two make $4."));
  EXPECT_TRUE(right("The answer is 5. No, 4"));
  EXPECT_FALSE(right("4.0"));  // equal as a number, not as a text
  EXPECT_FALSE(right("The answer is 4. That was 1 step."));
}

TEST_F(Tasks, Programs) {
  const Task plain = Make("humaneval");
  EXPECT_EQ(plain.items[0].prompt, "def one():\n");
  EXPECT_TRUE(ScoreAnswer(plain, plain.items[0], "    return 1\n").correct);
  const TaskScore wrong = ScoreAnswer(plain, plain.items[0], "    return 2\n");
  EXPECT_FALSE(wrong.correct);
  EXPECT_EQ(wrong.reason, "AssertionError");
  const Task plus = Make("humaneval_plus");
  EXPECT_TRUE(plus.items[0].prompt.ends_with("```\ndef one():\n```\nSolution:\n```python\n"));
  EXPECT_NE(plus.note.find("our own wording"), std::string::npos);
  EXPECT_TRUE(ScoreAnswer(plus, plus.items[0], "def one():\n    return 1\n```").correct);
  EXPECT_FALSE(ScoreAnswer(plus, plus.items[0], "    return 1\n").correct);
  const Task mbpp = Make("mbpp_plus", true);
  EXPECT_EQ(mbpp.items[0].answer_prefix, "Solution:\n```python\n");
  EXPECT_TRUE(ScoreAnswer(mbpp, mbpp.items[0], "def two(): return 2").correct);
}

// A program that changes its arguments does not change what is expected of it.
TEST_F(Tasks, ExpectationsComeFromUnchangedInputs) {
  const std::string tests =
      "def assertion(out, exp, atol):\n    assert out == exp\n\n\ndef ref_func(x):\n    return "
      "sorted(x)\n\n\ninputs = [[[3, 1]]]\nfor i, inp in enumerate(inputs):\n    "
      "assertion(two(*inp), ref_func(*inp), 0)\n";
  WriteGzip("mbppplus/MbppPlus-OriginFmt.jsonl.gz", Json{{"task_id", 7}, {"test", tests}}.dump());
  const Task mbpp = Make("mbpp_plus");
  EXPECT_TRUE(ScoreAnswer(mbpp, mbpp.items[0], "def two(x): return sorted(x)").correct);
  EXPECT_TRUE(ScoreAnswer(mbpp, mbpp.items[0], "def two(x):\n    x.sort()\n    return x").correct);
  EXPECT_FALSE(
      ScoreAnswer(mbpp, mbpp.items[0], "def two(x):\n    x.clear()\n    return x").correct);
}

// Helpers of a prompt, which its tests call, are the prompt's and not the program's.
TEST_F(Tasks, HelpersOfThePromptAreTrusted) {
  WriteGzip(
      "humaneval/HumanEval.jsonl.gz",
      Json{{"task_id", "HumanEval/38"},
           {"prompt", "def encode(x):\n    return -x\n\n\ndef decode(x):\n    \"\"\"Back.\"\"\"\n"},
           {"entry_point", "decode"},
           {"canonical_solution", "    return -x\n"},
           {"test",
            "def check(candidate):\n    assert candidate(encode(3)) == 3 == "
            "decode(-3)\n"}}
          .dump());
  const Task task = Make("humaneval");
  EXPECT_TRUE(ScoreAnswer(task, task.items[0], "    return -x\n").correct);
  EXPECT_FALSE(
      ScoreAnswer(task, task.items[0], "    return x\n\ndef encode(x):\n    return x\n").correct);
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

// As they were released, the tests of three problems compare a match or None with what is expected
// and forget to assert it.
TEST_F(Tasks, TestsThatAssertNothingAreRepaired) {
  const std::string tests =
      "def assertion(out, exp, atol):\n    if isinstance(out, bool):\n        exact_match = out == "
      "exp\n"
      "    else:\n        exact_match = exp == (out is not None)\n\n\nassertion(two(), True, 0)\n";
  WriteGzip("mbppplus/MbppPlus-OriginFmt.jsonl.gz", Json{{"task_id", 7}, {"test", tests}}.dump());
  const Task mbpp = Make("mbpp_plus");
  EXPECT_TRUE(ScoreAnswer(mbpp, mbpp.items[0], "def two(): return 2").correct);
  EXPECT_TRUE(ScoreAnswer(mbpp, mbpp.items[0], "def two(): return True").correct);
  EXPECT_FALSE(ScoreAnswer(mbpp, mbpp.items[0], "def two(): return None").correct);
  EXPECT_FALSE(ScoreAnswer(mbpp, mbpp.items[0], "def two(): return False").correct);
}

TEST_F(Tasks, HeldoutProblemsAndStories) {
  for (const bool chat : {false, true}) {
    const Task task = MakeTask("heldout_problems", {.data = kModels, .chat = chat, .limit = 5});
    ASSERT_EQ(task.items.size(), 5u);
    EXPECT_EQ(task.items[0].reference, "50");
    EXPECT_EQ(task.items[0].prompt.starts_with("Question: Kate has 4 drawers"), !chat);
    EXPECT_TRUE(ScoreAnswer(task, task.items[0], " 28 + 22 = 50.\n#### 50\n").correct);
    EXPECT_FALSE(ScoreAnswer(task, task.items[0], " #### 51").correct);
    EXPECT_FALSE(ScoreAnswer(task, task.items[0], " 50").correct);
    EXPECT_EQ(MakeTask("stories", {.chat = chat, .limit = 3}).items.size(), 3u);
  }
}

TEST_F(Tasks, RefuseWhatIsWrong) {
  EXPECT_NE(ErrorOf("gsm9k").find("task \"gsm9k\" is unknown"), std::string::npos);
  EXPECT_NE(ErrorOf("gsm8k_cot", 9).find("9 shots asked for, expected 0 to 8"), std::string::npos);
  EXPECT_NE(ErrorOf("aime24", 1).find("no few-shot examples"), std::string::npos);
  fs::remove(data_ / "gsm8k/test.jsonl");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("no such benchmark file"), std::string::npos);
  Write("gsm8k/test.jsonl", "{\"question\": \"?\"}\n");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("gsm8k/0: no \"answer\""), std::string::npos);
  Write("gsm8k/test.jsonl", "\n[1]\n");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("line 2"), std::string::npos);
  Write("gsm8k/test.jsonl", "{\"question\": ");
  EXPECT_NE(ErrorOf("gsm8k_cot").find("line 1"), std::string::npos);
  Write("math500/test.jsonl", R"({"problem": "p", "solution": "none"})");
  EXPECT_NE(ErrorOf("minerva_math500").find("no \\boxed answer"), std::string::npos);
  fs::resize_file(data_ / "humaneval/HumanEval.jsonl.gz", 40);
  EXPECT_NE(ErrorOf("humaneval").find("not a complete gzip file"), std::string::npos);
  Write("bbh/cot-prompts/navigate.txt", "no dashes");
  EXPECT_NE(ErrorOf("bbh_cot_fewshot_navigate").find("no line of dashes"), std::string::npos);
}

TEST(CutAtStop, TakesTheFirst) {
  EXPECT_EQ(CutAtStop("a Q: b </s>", {"</s>", "Q:"}), "a ");
  EXPECT_EQ(CutAtStop("abc", {"", "x"}), "abc");
}

}  // namespace
}  // namespace loopspec::measure
