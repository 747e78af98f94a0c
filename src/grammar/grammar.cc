#include "grammar/grammar.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/trimmed.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/marks.h"
#include "grammar/masks.h"
#include "grammar/pattern.h"
#include "grammar/threads.h"

namespace loopspec::grammar {
namespace {

// Memory of the states that texts have reached. Who starts a text when this much is taken gets new
// tables; the old ones go with the last text that uses them.
constexpr size_t kEnoughMemory = size_t{64} << 20;
// Memory of one grammar's states, beyond which a text cannot go on.
constexpr size_t kMaxMemory = size_t{512} << 20;
// Chains of marks that a grammar's users may start after: more are made anew each time.
constexpr size_t kMaxStarts = 16;
constexpr size_t kMostMarks = 8;
constexpr uint32_t kMostSpaceAfterMark = 16;  // after a mark
constexpr size_t kLargestSchema = size_t{4} << 20;

// What tells chains of marks apart.
std::string KeyOf(std::span<const Mark> marks) {
  std::string key;
  for (const Mark& mark : marks) {
    key += std::to_string(mark.text.size()) + (mark.may_end ? 'e' : 'm') + (mark.space ? 's' : 'n');
    key += mark.text + std::to_string(mark.open.size()) + ':' + mark.open;
  }
  return key;
}

// The grammar after free text up to each of the marks, one after the other.
class MarkedStart {
 public:
  MarkedStart(const Rules& rules, std::span<const Mark> marks) : rules_(rules), marks_(marks) {
    rules_.start = From(0, "");
  }
  const Rules& rules() const { return rules_; }

 private:
  // What comes before mark `i`, it and what follows it; the free text does not begin with `but`.
  Expression From(size_t i, std::string_view but) {
    if (i == marks_.size()) return rules_.start;
    Expressions& expressions = rules_.expressions;
    const Mark& mark = marks_[i];
    Expression after = From(i + 1, "");
    if (mark.space) after = expressions.Sequence(Space(), after);
    if (!mark.open.empty()) {
      const Node open = rules_.regular.FromTable(MarkAlone(mark.open));
      rules_.specials.push_back({open, mark.open});
      const Expression opened =
          expressions.Sequence({Space(), expressions.Terminal(open),
                                Free(UpToMark(mark.text, FreeText::kBytes)), after});
      return expressions.Choice({opened, From(i + 1, mark.open)});
    }
    after = expressions.Sequence(Free(UpToMark(mark.text, FreeText::kBytes, but)), after);
    if (!mark.may_end) return after;
    return expressions.Choice({after, Free(WithoutMark(mark.text, FreeText::kBytes, but))});
  }
  Expression Space() {
    return rules_.expressions.Terminal(
        rules_.regular.Repeat(SpaceByte(rules_.regular), 0, kMostSpaceAfterMark));
  }
  Expression Free(Table table) {
    rules_.free.push_back(rules_.regular.FromTable(std::move(table)));
    return rules_.expressions.Terminal(rules_.free.back());
  }

  Rules rules_;
  std::span<const Mark> marks_;
};

}  // namespace

// The states that texts of one grammar have reached, and their masks.
struct Tables {
  Tables(const Rules& rules, Grammar::VocabularyPtr vocabulary_used)
      : vocabulary(std::move(vocabulary_used)), automaton(rules) {
    automaton.set_memory_limit(kMaxMemory);
    if (vocabulary != nullptr) masks.emplace(automaton, *vocabulary);
  }
  std::mutex mutex;
  Grammar::VocabularyPtr vocabulary;
  Automaton automaton;
  std::optional<MaskMaker> masks;
};

// The tables that new texts start with, by the marks that they start after.
struct Grammar::Starts {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Tables>, std::less<>> tables;
};

Grammar::Grammar(VocabularyPtr vocabulary)
    : vocabulary_(std::move(vocabulary)), starts_(std::make_unique<Starts>()) {}
Grammar::~Grammar() = default;

std::shared_ptr<Grammar> Grammar::Finish(std::unique_ptr<Rules> rules, VocabularyPtr vocabulary) {
  rules->expressions.Finish(rules->regular);
  if (!rules->expressions.Matchable(rules->start)) Fail("the grammar allows no text at all");
  bool several = false;
  for (uint32_t i = 0; i < rules->expressions.unique_count(); ++i) {
    several = several || rules->expressions.unique(i).min > 1;
  }
  if (several) Automaton(*rules).RefuseFewItems();
  std::shared_ptr<Grammar> grammar(new Grammar(std::move(vocabulary)));
  grammar->rules_ = std::move(rules);
  return grammar;
}

std::shared_ptr<Grammar> Grammar::FromRegex(std::string_view pattern, VocabularyPtr vocabulary) {
  auto rules = std::make_unique<Rules>();
  const Node node = ParsePattern(rules->regular, pattern, Writing::kUtf8, Anchoring::kWhole);
  if (!rules->regular.Alive(node)) Fail("the pattern {} matches no text", pattern.substr(0, 200));
  rules->start = rules->expressions.Terminal(node);
  return Finish(std::move(rules), std::move(vocabulary));
}

std::shared_ptr<Grammar> Grammar::FromGbnf(std::string_view text, VocabularyPtr vocabulary,
                                           const SchemaOptions& options) {
  auto rules = std::make_unique<Rules>();
  std::vector<std::string> ignored = ParseGbnf(text, options, *rules);
  auto grammar = Finish(std::move(rules), std::move(vocabulary));
  grammar->ignored_ = std::move(ignored);
  return grammar;
}

std::shared_ptr<Grammar> Grammar::FromSchema(std::string_view schema, VocabularyPtr vocabulary,
                                             const SchemaOptions& options) {
  if (schema.size() > kLargestSchema) {
    Fail("the schema has {} bytes, the most allowed is {}", schema.size(), kLargestSchema);
  }
  const OrderedJson json = ParseOrderedJson(schema, "the schema");
  auto rules = std::make_unique<Rules>();
  CompiledSchema compiled = CompileSchema(json, options, *rules);
  rules->start = compiled.texts;
  auto grammar = Finish(std::move(rules), std::move(vocabulary));
  grammar->ignored_ = std::move(compiled.ignored);
  return grammar;
}

State Grammar::Start() {
  return StartAfter(std::span<const Mark>());
}

State Grammar::StartAfter(std::span<const Mark> marks) {
  if (marks.size() > kMostMarks) {
    Fail("{} marks come before the grammar, the most allowed is {}", marks.size(), kMostMarks);
  }
  for (const Mark& mark : marks) {
    if (mark.text.empty() || std::max(mark.text.size(), mark.open.size()) > kLongestMark) {
      Fail("the mark that starts a grammar has {} bytes, expected 1 to {}",
           std::max(mark.text.size(), mark.open.size()), kLongestMark);
    }
  }
  const std::string key = KeyOf(marks);
  const std::lock_guard lock(starts_->mutex);
  const auto known = starts_->tables.find(key);
  if (known != starts_->tables.end()) {
    const std::shared_ptr<Tables>& tables = known->second;
    const std::lock_guard tables_lock(tables->mutex);
    if (tables->automaton.memory() < kEnoughMemory) {
      return State(tables, tables->automaton.start());
    }
  }
  const auto tables =
      marks.empty() ? std::make_shared<Tables>(*rules_, vocabulary_)
                    : std::make_shared<Tables>(MarkedStart(*rules_, marks).rules(), vocabulary_);
  if (starts_->tables.size() >= kMaxStarts && known == starts_->tables.end()) {
    starts_->tables.erase(starts_->tables.begin());
  }
  starts_->tables.insert_or_assign(key, tables);
  return State(tables, tables->automaton.start());
}

size_t Grammar::memory() const {
  size_t bytes = rules_->regular.memory() + rules_->expressions.memory();
  const std::lock_guard lock(starts_->mutex);
  for (const auto& [key, tables] : starts_->tables) {
    const std::lock_guard tables_lock(tables->mutex);
    bytes += tables->automaton.memory() + (tables->masks ? tables->masks->memory() : 0);
  }
  return bytes;
}

size_t State::CountValid(std::string_view bytes) const {
  if (ended_) return 0;
  const std::lock_guard lock(tables_->mutex);
  StateId state = state_;
  for (size_t i = 0; i < bytes.size(); ++i) {
    state = tables_->automaton.Next(state, static_cast<uint8_t>(bytes[i]));
    if (state == kDead) return i;
  }
  return bytes.size();
}

bool State::Advance(std::string_view bytes) {
  if (ended_) return false;
  const std::lock_guard lock(tables_->mutex);
  StateId state = state_;
  for (const char c : bytes) {
    state = tables_->automaton.Next(state, static_cast<uint8_t>(c));
    if (state == kDead) return false;
  }
  state_ = state;
  return true;
}

bool State::AdvanceToken(int32_t id) {
  if (ended_ || tables_->vocabulary == nullptr || id < 0 || id >= tables_->vocabulary->size()) {
    return false;
  }
  const Vocabulary& vocabulary = *tables_->vocabulary;
  if (vocabulary.IsEnd(id)) {
    if (!MayEnd()) return false;
    ended_ = true;
    return true;
  }
  if (vocabulary.bytes(id).empty()) return false;
  if (!vocabulary.IsSpecial(id)) return Advance(vocabulary.bytes(id));
  const std::lock_guard lock(tables_->mutex);
  const StateId next = tables_->automaton.NextSpecial(state_, vocabulary.bytes(id));
  if (next == kDead) return false;
  state_ = next;
  return true;
}

bool State::MayEnd() const {
  const std::lock_guard lock(tables_->mutex);
  return tables_->automaton.MayEnd(state_);
}

bool State::MustEnd() const {
  const std::lock_guard lock(tables_->mutex);
  return tables_->automaton.Threads(state_).empty();
}

bool State::IsFree() const {
  const std::lock_guard lock(tables_->mutex);
  return tables_->automaton.IsFree(state_);
}

Mask State::NextTokens() const {
  const std::lock_guard lock(tables_->mutex);
  if (!tables_->masks) Fail("a grammar without a vocabulary has no masks");
  if (ended_) return std::make_shared<std::vector<uint32_t>>(tables_->vocabulary->words());
  return tables_->masks->Make(state_);
}

std::string State::ForcedBytes(size_t most, bool without_space) const {
  std::string forced;
  if (ended_) return forced;
  const std::lock_guard lock(tables_->mutex);
  StateId state = state_;
  while (forced.size() < most && !tables_->automaton.MayEnd(state)) {
    int only = -1;
    StateId next = kDead;
    for (int byte = 0; byte < 256; ++byte) {
      if (without_space && IsWhite(byte)) continue;
      const StateId reached = tables_->automaton.Next(state, static_cast<uint8_t>(byte));
      if (reached == kDead) continue;
      if (only >= 0) return forced;
      only = byte;
      next = reached;
    }
    if (only < 0) return forced;
    forced += static_cast<char>(only);
    state = next;
  }
  return forced;
}

}  // namespace loopspec::grammar
