#include "engine/grammars.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/reasoning.h"
#include "text/token_bytes.h"

namespace loopspec {
namespace {

// Grammars that are kept.
constexpr size_t kMostKept = 32;
// Their bytes grow while texts are written: they are counted again after this many requests.
constexpr uint64_t kUsesBetweenCounts = 64;
// What ends the thinking of a model whose prompt ends in <think>, as text/reasoning.h has it.
constexpr const char* kEndOfThinking = "</think>";
constexpr const char* kStartOfThinking = "<think>";

// Where it starts is no part of it: texts that start after different marks share the rules.
std::string KeyOf(const GrammarSource& source) {
  std::string key = std::to_string(static_cast<int>(source.kind));
  key += source.strict ? 's' : 'l';
  return key + source.text;
}

}  // namespace

std::shared_ptr<grammar::Grammar> Grammars::Get(const GrammarSource& source) {
  std::promise<Compiled> promise;
  std::shared_future<Compiled> known;
  const std::string key = KeyOf(source);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      found->second.used = ++uses_;
      known = found->second.grammar;
      if (uses_ % kUsesBetweenCounts == 0) Trim();
    } else {
      entries_[key] = {promise.get_future().share(), ++uses_};
      ++compiled_;
      Trim();
    }
  }
  if (known.valid()) return known.get();
  try {
    Compiled grammar = Compile(source);
    promise.set_value(grammar);
    return grammar;
  } catch (...) {
    promise.set_exception(std::current_exception());  // for those who wait for it
    const std::lock_guard lock(mutex_);
    entries_.erase(key);
    throw;
  }
}

void Grammars::Trim() {
  std::vector<std::map<std::string, Entry>::iterator> latest;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) latest.push_back(it);
  std::ranges::sort(latest, std::ranges::greater(), [](const auto& it) { return it->second.used; });
  size_t bytes = 0;
  for (size_t i = 0; i < latest.size(); ++i) {
    const std::shared_future<Compiled>& grammar = latest[i]->second.grammar;
    // One that is being compiled counts when it is ready, unless it could not be compiled.
    if (grammar.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      try {
        bytes += grammar.get()->memory();
      } catch (const Error&) {
      }
    }
    if (i > 0 && (i >= kMostKept || bytes > most_bytes_)) entries_.erase(latest[i]);
  }
}

Grammars::Compiled Grammars::Compile(const GrammarSource& source) {
  using grammar::Grammar;
  if (source.kind == GrammarKind::kRegex) return Grammar::FromRegex(source.text, Vocabulary());
  grammar::SchemaOptions options;
  options.strict = source.strict;
  options.space = grammar::JsonSpace::kUsual;
  if (source.kind == GrammarKind::kGbnf)
    return Grammar::FromGbnf(source.text, Vocabulary(), options);
  return Grammar::FromSchema(source.text, Vocabulary(), options);
}

grammar::Grammar::VocabularyPtr Grammars::Vocabulary() {
  if (loaded_->special().eos.empty())
    Fail("a grammar needs a token that ends the text, and the model has none");
  std::call_once(vocabulary_made_, [&] {
    const Tokenizer& tokenizer = loaded_->tokenizer();
    const std::vector<std::string> bytes = TokenBytes(tokenizer);
    // As many as the model has logits for, whether or not the tokenizer knows them.
    std::vector<grammar::Vocabulary::Token> tokens(static_cast<size_t>(loaded_->spec().vocab));
    for (size_t id = 0; id < std::min(tokens.size(), bytes.size()); ++id)
      tokens[id] = {bytes[id], tokenizer.IsSpecial(static_cast<int32_t>(id))};
    vocabulary_ =
        std::make_shared<const grammar::Vocabulary>(std::move(tokens), loaded_->special().eos);
  });
  return vocabulary_;
}

std::string Grammars::TailOf(std::span<const int32_t> prompt) const {
  constexpr size_t kTail = 32;  // tokens that hold the mark and the white space after it
  return loaded_->tokenizer().Decode(prompt.last(std::min(kTail, prompt.size())), false);
}

std::optional<ThinkingLimit> Grammars::LimitThinking(std::span<const int32_t> prompt, int tokens) {
  if (!EndsInThink(TailOf(prompt))) return std::nullopt;
  const GrammarSource anything{GrammarKind::kGbnf, "root ::= .*"};
  const GrammarSource end{GrammarKind::kGbnf, R"(root ::= "\n" %special "</think>")"};
  const grammar::Mark mark{kEndOfThinking, true};
  return ThinkingLimit{Get(anything)->StartAfter(std::span(&mark, 1)), Get(end)->Start(), tokens};
}

std::optional<grammar::State> Grammars::StartAfter(std::span<const int32_t> prompt,
                                                   const GrammarSource& source, bool chat) {
  if (source.kind == GrammarKind::kNone) return std::nullopt;
  const std::shared_ptr<grammar::Grammar> grammar = Get(source);
  const std::string tail = TailOf(prompt);
  std::vector<grammar::Mark> marks;
  if (EndsInThink(tail)) {
    marks.push_back({kEndOfThinking, false, true});
  } else if ((chat || source.thinking) && loaded_->has_chat_template() &&
             MayOpenThink(loaded_->chat_template().source(), tail)) {
    marks.push_back({kEndOfThinking, false, true, kStartOfThinking});
  }
  if (!source.after.empty()) marks.push_back({source.after, true});
  grammar::State start = grammar->StartAfter(marks);
  start.NextTokens();  // in this thread rather than in the scheduler's
  return start;
}

int64_t Grammars::compiled() const {
  const std::lock_guard lock(mutex_);
  return compiled_;
}

}  // namespace loopspec
