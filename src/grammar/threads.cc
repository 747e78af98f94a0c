#include "grammar/threads.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace loopspec::grammar {
namespace {

// The number of threads of one state.
constexpr size_t kMaxThreads = 20'000;
constexpr uint32_t kBottom = 0;  // the stack with the end of the text alone

uint64_t Key(uint32_t high, uint32_t low) {
  return uint64_t{high} << 32 | low;
}

}  // namespace

Automaton::Automaton(const Rules& rules) : rules_(rules) {
  const Frame end{kEmptyText, ~0u};
  frames_.Intern(std::span(&end, 1));
  const uint32_t bottom[] = {0};
  stacks_.Intern(bottom);
  stack_marks_.push_back(kOpenEnded);
  Intern({}, false);  // kDead
  work_.push_back({rules_.start, kBottom});
  Expand();
  start_ = Collect();
}

void Automaton::set_memory_limit(size_t bytes) {
  memory_limit_ = bytes;
  rules_.regular.set_memory_limit(bytes);
}

size_t Automaton::memory() const {
  return rules_.regular.memory() + rules_.expressions.memory() + frames_.memory() +
         stacks_.memory() + states_.memory() + next_.memory() + after_.memory() +
         unique_items_.memory();
}

StateId Automaton::Intern(std::span<const Thread> threads, bool may_end, UniqueItems::Track track) {
  std::vector<Thread> list(threads.begin(), threads.end());
  list.push_back({~0u, track, may_end ? 1u : 0u});
  const StateId state = states_.Intern(list);
  if (state == may_end_.size()) {
    may_end_.push_back(may_end);
    if (memory() > memory_limit_) {
      Fail("the grammar's states take more than {} MiB, which is the most allowed",
           memory_limit_ >> 20);
    }
  }
  return state;
}

bool Automaton::IsFree(StateId state) const {
  for (const Thread& thread : Threads(state)) {
    for (const Node table : rules_.free) {
      if (thread.b == 0 && rules_.regular.SameTable(thread.a, table)) return true;
    }
  }
  return false;
}

bool Automaton::KnowsSpecial(std::string_view bytes) const {
  return std::ranges::any_of(rules_.specials,
                             [&](const Rules::Special& special) { return special.bytes == bytes; });
}

bool Automaton::TakesSpecial(const Thread& thread, std::string_view bytes) const {
  if (thread.b != 0) return false;
  const auto reads = [&](Node table) { return rules_.regular.SameTable(thread.a, table); };
  return std::ranges::any_of(rules_.free, reads) ||
         std::ranges::any_of(rules_.specials, [&](const Rules::Special& special) {
           return special.bytes == bytes && reads(special.table);
         });
}

StateId Automaton::NextSpecial(StateId state, std::string_view bytes) {
  std::vector<Thread> taking;
  for (const Thread& thread : Threads(state)) {
    if (TakesSpecial(thread, bytes)) taking.push_back(thread);
  }
  StateId next = Intern(taking, false);
  for (const char c : bytes) next = Next(next, static_cast<uint8_t>(c));
  return next;
}

uint32_t Automaton::Push(Expression expression, uint32_t stack) {
  if (expression == kEmptyText) return stack;
  const Frame frame{expression, stack};
  const uint32_t number = frames_.Intern(std::span(&frame, 1));
  return InternStack(std::span(&number, 1));
}

uint32_t Automaton::InternStack(std::span<const uint32_t> frames) {
  const uint32_t stack = stacks_.Intern(frames);
  if (stack == stack_marks_.size()) {
    uint8_t marks = 0;
    for (const uint32_t frame : stacks_[stack]) {
      marks |= frame == 0 ? kOpenEnded : MarksOf(frames_[frame][0]);
    }
    stack_marks_.push_back(marks);
  }
  return stack;
}

void Automaton::Expand() {
  expanded_.Clear();
  while (!work_.empty()) {
    const Work work = work_.back();
    work_.pop_back();
    const uint64_t key = Key(work.expression, work.stack);
    if (expanded_.Find(key) != NumberMap::kMissing) continue;
    expanded_.Set(key, 1);
    if (!rules_.expressions.Matchable(work.expression)) continue;
    const Expressions::Entry entry = rules_.expressions[work.expression];
    using Kind = Expressions::Kind;
    switch (entry.kind) {
      case Kind::kNone:
        break;
      case Kind::kEpsilon:
        for (const uint32_t frame : stacks_[work.stack]) {
          if (frame == 0) {
            ended_ = true;
          } else {
            work_.push_back({frames_[frame][0].expression, frames_[frame][0].stack});
          }
        }
        break;
      case Kind::kTerminal: {
        const Reading reading{entry.a, 0};
        AddThread(reading, work.stack);
        if (MayStop(reading)) work_.push_back({kEmptyText, work.stack});
        break;
      }
      case Kind::kSequence:
        work_.push_back({entry.a, Push(entry.b, work.stack)});
        break;
      case Kind::kChoice:
        for (const Expression choice : rules_.expressions.Choices(entry)) {
          work_.push_back({choice, work.stack});
        }
        break;
      case Kind::kRepeat: {
        if (entry.min == 0) work_.push_back({kEmptyText, work.stack});
        if (!rules_.expressions.Matchable(entry.a)) break;
        const Expression rest =
            rules_.expressions.Repeat(entry.a, entry.min == 0 ? 0 : entry.min - 1,
                                      entry.max == kUnbounded ? kUnbounded : entry.max - 1);
        work_.push_back({entry.a, Push(rest, work.stack)});
        break;
      }
      case Kind::kRule:
        work_.push_back({rules_.expressions.rule(entry.a), work.stack});
        break;
      case Kind::kMembers:
        ExpandMembers(work.expression, work.stack);
        break;
      case Kind::kUnique:
        ExpandUnique(entry, work.stack);
        break;
    }
  }
}

void Automaton::ExpandMembers(Expression members, uint32_t stack) {
  Expressions& expressions = rules_.expressions;
  const Expressions::Entry entry = expressions[members];
  const ObjectRules& rules = expressions.object(entry.a);
  const auto at = static_cast<MemberPlace>(entry.max);
  if (at != MemberPlace::kAfterComma && expressions.MayClose(entry)) {
    AddThread({at == MemberPlace::kFirst ? rules.close_empty : rules.close, 0}, stack);
  }
  const Reading keys{members, 1};
  const bool key = KeyMayFollow(keys);
  const bool other = !rules.others.empty() && expressions.MayFollow(entry, kUnbounded);
  std::vector<uint32_t> present;  // names that must be there
  for (auto i = rules.named; i < rules.properties.size(); ++i) {
    if (expressions.MayFollow(entry, i)) present.push_back(i);
  }
  if (!key && !other && present.empty()) return;
  if (at == MemberPlace::kAfterMember) {
    const Expression next =
        expressions.Members(entry.a, entry.b, entry.min, MemberPlace::kAfterComma);
    AddThread({rules.comma, 0}, Push(next, stack));
    return;
  }
  if (key) AddThread(keys, stack);
  const Expression colon = expressions.Terminal(rules.colon);
  const auto add = [&](const std::vector<ObjectRules::Others>& names, uint32_t place) {
    const Expression rest =
        expressions.Members(entry.a, place, entry.min + 1, MemberPlace::kAfterMember);
    for (const auto& [name, value] : names) {
      AddThread({name, 0}, Push(colon, Push(value, Push(rest, stack))));
    }
  };
  for (const uint32_t i : present) {
    add(rules.properties[i].names, rules.any_order ? expressions.UsedUp(entry.b, i) : i + 1);
  }
  if (other) add(rules.others, rules.any_order ? entry.b : std::max(entry.b, rules.named));
}

bool Automaton::KeyMayFollow(const Reading& reading) const {
  const Expressions::Entry& members = rules_.expressions[reading.a];
  const ObjectRules& rules = rules_.expressions.object(members.a);
  const std::vector<uint32_t>& below = rules.keys[reading.b - 1].below;
  auto it = below.begin();
  if (!rules.any_order) it = std::ranges::lower_bound(below, members.b);
  for (; it != below.end(); ++it) {
    if (rules_.expressions.MayFollow(members, *it)) return true;
    if (!rules.any_order && *it > rules.next_required[members.b]) return false;
  }
  return false;
}

Reading Automaton::Step(const Reading& reading, uint8_t byte) {
  if (reading.b == 0) return {rules_.regular.Next(reading.a, byte), 0};
  const Expressions::Entry& members = rules_.expressions[reading.a];
  for (const auto& [edge, next] : rules_.expressions.object(members.a).keys[reading.b - 1].edges) {
    if (edge != byte) continue;
    const Reading moved{reading.a, next + 1};
    if (KeyMayFollow(moved)) return moved;
  }
  return {kNothing, 0};
}

bool Automaton::MayStop(const Reading& reading) const {
  if (reading.b == 0) return rules_.regular.Nullable(reading.a);
  const Expressions::Entry& members = rules_.expressions[reading.a];
  // No key is the beginning of another: each ends with its quote.
  return rules_.expressions.object(members.a).keys[reading.b - 1].property >= 0;
}

bool Automaton::MayGoOn(const Reading& reading) {
  if (reading.b == 0) return rules_.regular.HasNext(reading.a);
  return !MayStop(reading);
}

void Automaton::AddThread(const Reading& reading, uint32_t stack) {
  if (MayGoOn(reading)) threads_.push_back({reading.a, reading.b, stack});
  if (threads_.size() > kMaxThreads) {
    Fail("the grammar can be read in more than {} ways at one place, which is the most allowed",
         kMaxThreads);
  }
}

void Automaton::Stop(const Reading& reading, uint32_t stack) {
  if (reading.b == 0) {
    work_.push_back({kEmptyText, stack});
    return;
  }
  Expressions& expressions = rules_.expressions;
  const Expressions::Entry members = expressions[reading.a];
  const ObjectRules& rules = expressions.object(members.a);
  const auto property = static_cast<uint32_t>(rules.keys[reading.b - 1].property);
  const uint32_t place = rules.any_order ? expressions.UsedUp(members.b, property) : property + 1;
  const Expression rest =
      expressions.Members(members.a, place, members.min + 1, MemberPlace::kAfterMember);
  work_.push_back({expressions.Terminal(rules.colon),
                   Push(rules.properties[property].value, Push(rest, stack))});
}

StateId Automaton::Collect() {
  const auto order = [](const Thread& x, const Thread& y) {
    return std::tie(x.a, x.b, x.stack) < std::tie(y.a, y.b, y.stack);
  };
  std::ranges::sort(threads_, order);
  // Threads that read the same become one, with the frames of all their stacks.
  std::vector<Thread> merged;
  std::vector<uint32_t> frames;
  for (size_t i = 0; i < threads_.size();) {
    size_t end = i + 1;
    while (end < threads_.size() && threads_[end].a == threads_[i].a &&
           threads_[end].b == threads_[i].b) {
      ++end;
    }
    uint32_t stack = threads_[i].stack;
    if (threads_[end - 1].stack != stack) {
      frames.clear();
      for (size_t k = i; k < end; ++k) {
        const auto more = stacks_[threads_[k].stack];
        frames.insert(frames.end(), more.begin(), more.end());
      }
      std::ranges::sort(frames);
      frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
      stack = InternStack(frames);
    }
    merged.push_back({threads_[i].a, threads_[i].b, stack});
    i = end;
  }
  threads_.clear();
  const bool ended = ended_;
  ended_ = false;
  UniqueItems::Track track = UniqueItems::kNone;
  if (std::ranges::any_of(merged, [&](const Thread& t) { return IsWithinUnique(t.stack); })) {
    track = track_ == UniqueItems::kNone ? unique_items_.Opened() : asked_ ? kAskedItems : track_;
  }
  return Intern(merged, ended, track);
}

StateId Automaton::Next(StateId state, uint8_t byte) {
  const uint64_t key = uint64_t{state} << 8 | byte;
  const uint32_t known = next_.Find(key);
  if (known != NumberMap::kMissing) return known;
  StateId next = NextUnchecked(state, byte);
  if (KnowsItems(next) && !LeadsOn(next)) next = kDead;
  next_.Set(key, next);
  return next;
}

StateId Automaton::NextUnchecked(StateId state, uint8_t byte) {
  Reset();
  track_ = TrackOf(state);
  if (KnowsItems(state)) track_ = unique_items_.Append(track_, byte);
  if (track_ == kAskedItems) track_ = kAnyItems;
  for (const Thread thread : CopyOfThreads(state)) {
    const Reading reading = Step({thread.a, thread.b}, byte);
    if (reading.a == kNothing) continue;
    AddThread(reading, thread.stack);
    if (MayStop(reading)) Stop(reading, thread.stack);
  }
  if (threads_.empty() && work_.empty()) return kDead;  // what most bytes come to
  Expand();
  return Collect();
}

StateId Automaton::After(const Thread& thread) {
  if (thread.b == 0) {
    const uint32_t known = after_.Find(thread.stack);
    if (known != NumberMap::kMissing) return known;
  }
  Reset();
  track_ = IsWithinUnique(thread.stack) ? kAnyItems : UniqueItems::kNone;
  Stop({thread.a, thread.b}, thread.stack);
  Expand();
  const StateId state = Collect();
  if (thread.b == 0) after_.Set(thread.stack, state);
  return state;
}

// An exception may have left a state half made.
void Automaton::Reset() {
  work_.clear();
  threads_.clear();
  ended_ = false;
  asked_ = false;
  track_ = UniqueItems::kNone;
}

const std::vector<Automaton::Thread>& Automaton::CopyOfThreads(StateId state) {
  const auto threads = Threads(state);
  copy_.assign(threads.begin(), threads.end());
  return copy_;
}

}  // namespace loopspec::grammar
