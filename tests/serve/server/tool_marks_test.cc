// The opening mark of a call at every place of a chain of drafts, and cut into tokens in every way:
// LoopSpec writes what autoregressive decoding writes, and the call is valid from its mark on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/mark_cuts.h"
#include "tests/support/scripted_engine.h"
#include "text/tool_grammar.h"
#include "text/tool_reader.h"

namespace loopspec::test {
namespace {

const std::string kMark(kToolCall);

const std::vector<Tool>& Tools() {
  static const std::vector<Tool> tools = {
      {"add", OrderedJson::parse(R"({"type": "object", "properties": {"a": {"type": "integer",
          "minimum": 0, "maximum": 99}, "how": {"enum": ["fast", "slow"]}}, "required": ["a"]})")},
      {"now", OrderedJson()}};
  return tools;
}

struct Form {
  ToolFormat format;
  std::string valid;    // a call after its mark
  std::string invalid;  // of a tool that is not there
};
const Form kHermesForm = {
    ToolFormat::kHermes, "\n{\"name\": \"add\", \"arguments\": {\"a\": 12}}\n</tool_call>",
    "\n{\"name\": \"subtract\", \"arguments\": {\"b\": \"x\"}}\n</tool_call>"};
const Form kXmlForm = {
    ToolFormat::kXml,
    "\n<function=add>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>",
    "\n<function=subtract>\n<parameter=b>\nx\n</parameter>\n</function>\n"
    "</tool_call>"};

class ToolMarks : public testing::TestWithParam<Form> {
 protected:
  // An engine whose model says `before` letters, the mark as it is cut, and a call.
  void Say(const Cut& cut, size_t before, const std::string& call) {
    ScriptedOptions options = ScriptOf(cut, before, call);
    engine_ = MakeScriptedEngine(options);
    const ToolGrammar grammar = GrammarOfTools(GetParam().format, Tools(), {.parallel = false});
    request_ = Request();
    request_.grammar = {GrammarKind::kGbnf, grammar.rules, true, grammar.after};
    request_.max_tokens = 160;
    request_.sampling.emplace();
  }

  WrittenIds Run(const Request& request) {
    const Result result = engine_->Generate(request);
    tokens_ = result.choices[0].tokens;
    text_ = result.text();
    return WrittenIn(result);
  }

  // Notes where in its chain of drafts the token stands that ends the mark: which proposal it was,
  // and how many tokens before it were accepted one after the other.
  void NotePlace(const Cut& cut, size_t before) {
    const size_t end = before + cut.words.size() - 1;
    ASSERT_LT(end, tokens_.size());
    size_t run = 0;
    while (run < end && tokens_[end - run - 1].source > 0) ++run;
    ++places_[{tokens_[end].source, std::min<size_t>(run, 4)}];
  }

  // The calls in the text that was written last, by name.
  std::vector<std::string> Calls() const {
    AnswerSplitter::Options options;
    options.calls = MakeToolReader(GetParam().format, Tools());
    AnswerSplitter splitter(options);
    std::vector<AnswerPart> parts = splitter.Push(text_);
    for (AnswerPart& part : splitter.Finish()) parts.push_back(std::move(part));
    std::vector<std::string> names;
    for (const AnswerPart& part : parts) {
      if (part.kind == AnswerPart::Kind::kCall) names.push_back(part.text);
      if (part.kind == AnswerPart::Kind::kText) {
        EXPECT_EQ(part.text.find(kMark), std::string::npos) << text_;
      }
    }
    return names;
  }

  std::shared_ptr<Engine> engine_;
  Request request_;
  std::vector<Token> tokens_;
  std::string text_;
  std::map<std::pair<int, size_t>, int> places_;
};

TEST_P(ToolMarks, AtEveryDraftAndCutInEveryWay) {
  int runs = 0, turn = 0;
  for (const Cut& cut : CutsOf(kMark, "\n")) {
    ++turn;
    for (const bool valid : {true, false}) {
      const std::string& call = valid ? GetParam().valid : GetParam().invalid;
      for (const size_t before : {0, 1, 2, 3, 5}) {
        Say(cut, before, call);
        // Which drafts are wrong depends on the position, with a period of 15: all of them over
        // three cuts.
        for (int length = turn % 3; length < 15; length += 3) {
          request_.prompt = std::string(static_cast<size_t>(length), 'z') + "?";
          request_.decoding = Decoding::kAutoregressive;
          request_.max_rows = 0;
          request_.depths.reset();
          const WrittenIds plain = Run(request_);
          ASSERT_EQ(plain.reason, FinishReason::kStop) << text_;
          const std::vector<std::string> calls = Calls();
          ASSERT_FALSE(calls.empty()) << text_;
          if (valid) {
            std::string said = std::string("abcdeab").substr(0, before);
            for (const std::string& word : cut.words) said += word;
            ASSERT_EQ(text_, said + call.substr(cut.after));
            ASSERT_EQ(calls, std::vector<std::string>{"add"});
          }
          request_.decoding = Decoding::kLoopSpec;
          for (const std::vector<int>& depths : {std::vector{1, 2}, std::vector{2}}) {
            request_.depths = depths;
            request_.guesses = (length + static_cast<int>(before)) % 2 == 0;
            request_.max_rows = std::array{0, 1, 3}[static_cast<size_t>(length) / 3 % 3];
            ASSERT_EQ(Run(request_), plain) << text_;
            NotePlace(cut, before);
            ++runs;
          }
        }
      }
    }
  }
  // The token that ends the mark was accepted from each proposal, and decided at full depth, after
  // none, one, two, three and more tokens that were accepted one after the other.
  for (const int source : {0, 1, 2}) {
    for (size_t run = 0; run <= 4; ++run)
      EXPECT_GT((places_[{source, run}]), 0) << "proposal " << source << " after " << run;
  }
  EXPECT_GT(runs, 1000);
}

// Sampled texts, in which the mark comes early, late or twice, or never.
TEST_P(ToolMarks, SampledTextsAreTheSame) {
  int called = 0;
  for (const Cut& cut : CutsOf(kMark, "\n")) {
    Say(cut, 2, GetParam().valid);
    request_.prompt = "zz?";
    request_.sampling->temperature = 1.0f;
    request_.sampling->sampler = Sampler::kCoupled;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      request_.seed = seed;
      request_.decoding = Decoding::kAutoregressive;
      const WrittenIds plain = Run(request_);
      called += Calls().empty() ? 0 : 1;
      request_.decoding = Decoding::kLoopSpec;
      for (const bool guesses : {false, true}) {
        request_.guesses = guesses;
        ASSERT_EQ(Run(request_), plain) << text_;
      }
      request_.decoding = Decoding::kLookup;
      ASSERT_EQ(Run(request_), plain) << text_;
    }
  }
  EXPECT_GT(called, 10);
}

INSTANTIATE_TEST_SUITE_P(Forms, ToolMarks, testing::Values(kHermesForm, kXmlForm),
                         [](const auto& tested) {
                           return tested.param.format == ToolFormat::kXml ? "xml" : "hermes";
                         });

}  // namespace
}  // namespace loopspec::test
