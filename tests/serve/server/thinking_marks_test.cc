// The end of thinking at every place of a chain of drafts, and cut into tokens in every way, before
// an answer with a grammar: LoopSpec writes what autoregressive decoding writes, thinking is free,
// and what follows it is valid.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/trimmed.h"
#include "grammar/grammar.h"
#include "tests/support/mark_cuts.h"
#include "tests/support/scripted_engine.h"

namespace loopspec::test {
namespace {

const std::string kEndOfThinking = "</think>";
constexpr const char* kAnswers = "[0-9]{1,3} (cats|dogs)\\.";
// White space after the mark is no part of the answer.
const std::string kValid = "\n\n12 cats.";
const std::string kInvalid = "\n\nno 12 dogs";

class ThinkingMarks : public testing::Test {
 protected:
  // An engine whose model thinks `before` letters, says the mark as it is cut, and an answer.
  void Say(const Cut& cut, size_t before, const std::string& answer) {
    engine_ = MakeScriptedEngine(ScriptOf(cut, before, answer));
    request_ = Request();
    request_.grammar = {GrammarKind::kRegex, kAnswers};
    request_.max_tokens = 60;
    request_.sampling.emplace();
  }
  void Ask(int length) {
    request_.prompt = std::string(static_cast<size_t>(length), 'z') + "?<think>";
  }

  WrittenIds Run(const Request& request) {
    const Result result = engine_->Generate(request);
    tokens_ = result.choices[0].tokens;
    text_ = result.text();
    return WrittenIn(result);
  }
  WrittenIds RunPlain() {
    Request plain = request_;
    plain.decoding = Decoding::kAutoregressive;
    return Run(plain);
  }

  // Where in its chain of drafts the token stands that ends the mark: which proposal it was, and
  // how many tokens before it were accepted one after the other.
  void NotePlace(size_t end) {
    ASSERT_LT(end, tokens_.size());
    size_t run = 0;
    while (run < end && tokens_[end - run - 1].source > 0) ++run;
    ++places_[{tokens_[end].source, std::min<size_t>(run, 4)}];
  }

  // Whether the text that was written last has a valid answer after its thinking.
  bool IsAnswered() const {
    const size_t end = text_.find(kEndOfThinking);
    if (end == std::string::npos) return false;
    const size_t begin =
        std::min(text_.find_first_not_of(kWhite, end + kEndOfThinking.size()), text_.size());
    const auto grammar = grammar::Grammar::FromRegex(kAnswers, nullptr);
    grammar::State state = grammar->Start();
    return state.Advance(text_.substr(begin)) && state.MayEnd();
  }

  std::shared_ptr<Engine> engine_;
  Request request_;
  std::vector<Token> tokens_;
  std::string text_;
  std::map<std::pair<int, size_t>, int> places_;
};

TEST_F(ThinkingMarks, AtEveryDraftAndCutInEveryWay) {
  int runs = 0, turn = 0;
  for (const Cut& cut : CutsOf(kEndOfThinking, "\n\n1")) {
    ++turn;
    for (const bool valid : {true, false}) {
      const std::string& answer = valid ? kValid : kInvalid;
      // A token that ends within the answer and breaks the grammar cannot come.
      if (!valid && cut.after > 2) continue;
      for (const size_t before : {0, 1, 2, 3, 5}) {
        Say(cut, before, answer);
        std::string thought = std::string("abcdeab").substr(0, before);
        for (const std::string& word : cut.words) thought += word;
        // Which drafts are wrong depends on the position, with a period of 15: all of them over
        // three cuts.
        for (int length = turn % 3; length < 15; length += 3) {
          Ask(length);
          request_.max_rows = 0;
          request_.depths.reset();
          const WrittenIds plain = RunPlain();
          ASSERT_EQ(plain.reason, FinishReason::kStop) << text_;
          ASSERT_TRUE(text_.starts_with(thought)) << text_;
          ASSERT_TRUE(IsAnswered()) << text_;
          if (valid) {
            ASSERT_EQ(text_, thought + answer.substr(cut.after));
          }
          for (const std::vector<int>& depths : {std::vector{1, 2}, std::vector{2}}) {
            request_.depths = depths;
            request_.guesses = (length + static_cast<int>(before)) % 2 == 0;
            request_.max_rows = std::array{0, 1, 3}[static_cast<size_t>(length) / 3 % 3];
            ASSERT_EQ(Run(request_), plain) << text_;
            NotePlace(before + cut.words.size() - 1);
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

// Sampled texts, some of them cut off.
TEST_F(ThinkingMarks, SampledTextsAreTheSame) {
  int answered = 0, cut_off = 0;
  for (const Cut& cut : CutsOf(kEndOfThinking, "\n\n1")) {
    Say(cut, 2, kValid);
    Ask(2);
    request_.sampling->temperature = 1.0f;
    request_.sampling->sampler = Sampler::kCoupled;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      request_.seed = seed;
      request_.max_tokens = seed % 2 == 0 ? 60 : 9;
      const WrittenIds plain = RunPlain();
      const bool stopped = plain.reason == FinishReason::kStop;
      ASSERT_EQ(IsAnswered(), stopped) << text_;
      ++(stopped ? answered : cut_off);
      for (const bool guesses : {false, true}) {
        request_.guesses = guesses;
        ASSERT_EQ(Run(request_), plain) << text_;
      }
      Request lookup = request_;
      lookup.decoding = Decoding::kLookup;
      ASSERT_EQ(Run(lookup), plain) << text_;
    }
  }
  EXPECT_GT(answered, 10);
  EXPECT_GT(cut_off, 0);
}

}  // namespace
}  // namespace loopspec::test
