#include "grammar/expressions.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace loopspec::grammar {

Expressions::Expressions() {
  Make({Kind::kNone, 0, 0, 0, 0});
  Make({Kind::kEpsilon, 0, 0, 0, 0});
  used_.Intern({});
}

Expression Expressions::Make(const Entry& entry) {
  const Expression made = table_.Intern(std::span(&entry, 1));
  if (made == entries_.size()) entries_.push_back(entry);
  return made;
}

Expression Expressions::Terminal(Node node) {
  if (node == kNothing) return kNoText;
  if (node == kEmpty) return kEmptyText;
  return Make({Kind::kTerminal, node, 0, 0, 0});
}

Expression Expressions::Sequence(Expression first, Expression second) {
  if (first == kNoText || second == kNoText) return kNoText;
  if (first == kEmptyText) return second;
  if (second == kEmptyText) return first;
  return Make({Kind::kSequence, first, second, 0, 0});
}

Expression Expressions::Sequence(std::initializer_list<Expression> parts) {
  Expression made = kEmptyText;
  for (auto it = std::rbegin(parts); it != std::rend(parts); ++it) made = Sequence(*it, made);
  return made;
}

Expression Expressions::Choice(std::vector<Expression> choices) {
  std::erase(choices, kNoText);
  std::ranges::sort(choices);
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  if (choices.empty()) return kNoText;
  if (choices.size() == 1) return choices.front();
  return Make({Kind::kChoice, lists_.Intern(choices), 0, 0, 0});
}

Expression Expressions::Repeat(Expression expression, uint32_t min, uint32_t max) {
  if (min > max) return kNoText;
  if (max == 0 || expression == kEmptyText) return kEmptyText;
  if (expression == kNoText) return min == 0 ? kEmptyText : kNoText;
  if (min == 1 && max == 1) return expression;
  return Make({Kind::kRepeat, expression, 0, min, max});
}

uint32_t Expressions::AddRule() {
  rules_.push_back(kNoText);
  return static_cast<uint32_t>(rules_.size() - 1);
}

Expression Expressions::Rule(uint32_t rule) {
  return Make({Kind::kRule, rule, 0, 0, 0});
}

Expression Expressions::Members(ObjectRules rules) {
  objects_.push_back(std::move(rules));
  return Members(static_cast<uint32_t>(objects_.size() - 1), 0, 0, MemberPlace::kFirst);
}

Expression Expressions::Members(uint32_t object, uint32_t place, uint32_t count, MemberPlace at) {
  // Where there is no upper bound, members above the lower one need no count.
  const ObjectRules& rules = objects_[object];
  if (rules.max == kUnbounded) count = std::min(count, rules.min);
  return Make({Kind::kMembers, object, place, count, static_cast<uint32_t>(at)});
}

Expression Expressions::Unique(UniqueRules rules) {
  uniques_.push_back(std::move(rules));
  return Unique(static_cast<uint32_t>(uniques_.size() - 1), 0, UniquePlace::kOpened);
}

Expression Expressions::Unique(uint32_t array, uint32_t count, UniquePlace at) {
  // Items are counted as far as the count matters.
  const UniqueRules& rules = uniques_[array];
  uint32_t most = std::max(static_cast<uint32_t>(rules.prefix.size()), rules.min);
  if (rules.max != kUnbounded) most = std::max(most, rules.max);
  return Make({Kind::kUnique, array, std::min(count, most), static_cast<uint32_t>(at), 0});
}

uint32_t Expressions::UsedUp(uint32_t set, uint32_t property) {
  std::vector<uint32_t> list(used_[set].begin(), used_[set].end());
  list.insert(std::ranges::lower_bound(list, property), property);
  return used_.Intern(list);
}

bool Expressions::IsUsedUp(uint32_t set, uint32_t property) const {
  return std::ranges::binary_search(used_[set], property);
}

bool Expressions::MayFollow(const Entry& members, uint32_t property) const {
  const ObjectRules& rules = objects_[members.a];
  const uint32_t count = members.min + 1;
  const bool other = property == kUnbounded;
  if (!other && !Matchable(rules.properties[property].value)) return false;
  uint32_t required = 0;  // that must still come after this one
  uint32_t usable = 0;    // that can
  if (rules.any_order) {
    if (!other && IsUsedUp(members.b, property)) return false;
    const auto used = used_[members.b];
    required = rules.required_from[0];
    usable = rules.usable_from[0] - static_cast<uint32_t>(used.size());
    for (const uint32_t u : used) required -= rules.properties[u].required ? 1 : 0;
    if (!other) {
      --usable;
      required -= rules.properties[property].required ? 1 : 0;
    }
  } else if (other) {
    if (rules.required_from[members.b] > rules.required_from[rules.named]) return false;
    required = rules.required_from[std::max(members.b, rules.named)];
  } else {
    if (property < members.b || property > rules.next_required[members.b]) return false;
    required = rules.required_from[property + 1];
    usable = rules.usable_from[property + 1];
  }
  if (rules.max != kUnbounded && count + required > rules.max) return false;
  if (other) {
    for (uint32_t i = rules.named; i < rules.properties.size(); ++i) {
      const bool used = rules.any_order ? IsUsedUp(members.b, i) : i < members.b;
      if (used && rules.properties[i].last) return false;
    }
  }
  return !rules.others.empty() || count + usable >= rules.min;
}

bool Expressions::MayClose(const Entry& members) const {
  const ObjectRules& rules = objects_[members.a];
  if (members.min < rules.min) return false;
  if (!rules.any_order) return rules.required_from[members.b] == 0;
  uint32_t required = rules.required_from[0];
  for (const uint32_t used : used_[members.b]) required -= rules.properties[used].required ? 1 : 0;
  return required == 0;
}

void Expressions::FinishObject(ObjectRules& rules) {
  const auto count = static_cast<uint32_t>(rules.properties.size());
  std::erase_if(rules.others, [&](const auto& other) { return !Matchable(other.value); });
  rules.keys.assign(1, {});
  rules.named = count;
  for (uint32_t i = count; i-- > 0 && rules.properties[i].key.empty();) {
    rules.named = i;
    std::erase_if(rules.properties[i].names,
                  [&](const auto& name) { return !Matchable(name.value); });
  }
  for (uint32_t i = 0; i < rules.named; ++i) {
    if (!Matchable(rules.properties[i].value)) continue;
    uint32_t at = 0;
    rules.keys[0].below.push_back(i);
    for (const char c : rules.properties[i].key) {
      const auto byte = static_cast<uint8_t>(c);
      uint32_t next = 0;
      for (const auto& [edge, target] : rules.keys[at].edges) {
        if (edge == byte) next = target;
      }
      if (next == 0) {
        next = static_cast<uint32_t>(rules.keys.size());
        rules.keys[at].edges.emplace_back(byte, next);
        rules.keys.emplace_back();
      }
      rules.keys[next].below.push_back(i);
      at = next;
    }
    rules.keys[at].property = static_cast<int32_t>(i);
  }
  rules.usable_from.assign(count + 1, 0);
  rules.required_from.assign(count + 1, 0);
  rules.next_required.assign(count + 1, count);
  for (uint32_t i = count; i-- > 0;) {
    const auto& property = rules.properties[i];
    rules.usable_from[i] = rules.usable_from[i + 1] + (Matchable(property.value) ? 1 : 0);
    rules.required_from[i] = rules.required_from[i + 1] + (property.required ? 1 : 0);
    rules.next_required[i] = property.required ? i : rules.next_required[i + 1];
  }
}

// No array goes on past an item that nothing matches.
void Expressions::FinishUnique(UniqueRules& rules) {
  for (uint32_t i = 0; i <= rules.prefix.size() && i < rules.max; ++i) {
    if (!Matchable(rules.Item(i))) rules.max = i;
  }
}

void Expressions::FindMatchable() {
  // The least fixed point, by following from what has become matchable to what contains it.
  const size_t count = entries_.size();
  std::vector<bool> found(count, false);
  std::vector<std::vector<Expression>> users(count);
  std::vector<std::vector<Expression>> rule_users(rules_.size());
  std::vector<Expression> work;
  for (Expression e = 0; e < count; ++e) {
    const Entry& entry = entries_[e];
    switch (entry.kind) {
      case Kind::kNone:
        break;
      case Kind::kEpsilon:
      case Kind::kTerminal:
        work.push_back(e);
        break;
      case Kind::kSequence:
        users[entry.a].push_back(e);
        users[entry.b].push_back(e);
        break;
      case Kind::kChoice:
        for (const Expression choice : Choices(entry)) users[choice].push_back(e);
        break;
      case Kind::kRepeat:
        users[entry.a].push_back(e);
        if (entry.min == 0) work.push_back(e);
        break;
      case Kind::kRule:
        users[rules_[entry.a]].push_back(e);
        break;
      case Kind::kMembers:
        for (const auto& property : objects_[entry.a].properties) {
          users[property.value].push_back(e);
        }
        for (const auto& other : objects_[entry.a].others) users[other.value].push_back(e);
        work.push_back(e);  // perhaps: an object without members
        break;
      case Kind::kUnique:
        for (const Expression item : uniques_[entry.a].prefix) users[item].push_back(e);
        users[uniques_[entry.a].rest].push_back(e);
        work.push_back(e);  // perhaps: an array without items
        break;
    }
  }
  const auto matches = [&](Expression e) {
    const Entry& entry = entries_[e];
    switch (entry.kind) {
      case Kind::kNone:
        return false;
      case Kind::kEpsilon:
      case Kind::kTerminal:
        return true;
      case Kind::kSequence:
        return found[entry.a] && found[entry.b];
      case Kind::kChoice:
        return std::ranges::any_of(Choices(entry), [&](Expression c) { return found[c]; });
      case Kind::kRepeat:
        return entry.min == 0 || found[entry.a];
      case Kind::kRule:
        return static_cast<bool>(found[rules_[entry.a]]);
      case Kind::kMembers: {
        const ObjectRules& rules = objects_[entry.a];
        uint32_t required = 0;
        uint32_t usable = 0;
        for (const auto& property : rules.properties) {
          if (property.required && !found[property.value]) return false;
          required += property.required ? 1 : 0;
          usable += found[property.value] ? 1 : 0;
        }
        if (required > rules.max) return false;
        if (usable >= rules.min) return rules.min <= rules.max;
        return rules.min <= rules.max &&
               std::ranges::any_of(rules.others, [&](const auto& o) { return found[o.value]; });
      }
      case Kind::kUnique: {
        const UniqueRules& rules = uniques_[entry.a];
        const auto needed = std::min(rules.min, static_cast<uint32_t>(rules.prefix.size() + 1));
        for (uint32_t i = 0; i < needed; ++i) {
          if (!found[rules.Item(i)]) return false;
        }
        return true;
      }
    }
    return false;
  };
  while (!work.empty()) {
    const Expression e = work.back();
    work.pop_back();
    if (found[e] || !matches(e)) continue;
    found[e] = true;
    work.insert(work.end(), users[e].begin(), users[e].end());
  }
  matchable_ = std::move(found);
}

void Expressions::Finish(const Regular& regular) {
  FindMatchable();
  for (ObjectRules& rules : objects_) FinishObject(rules);
  for (UniqueRules& rules : uniques_) FinishUnique(rules);
  RefuseLeftRecursion(regular);
}

void Expressions::RefuseLeftRecursion(const Regular& regular) const {
  // Which expressions match the empty text: a fixed point, by repetition until nothing changes.
  const size_t count = matchable_.size();
  std::vector<bool> empty(count, false);
  for (bool changed = true; changed;) {
    changed = false;
    for (Expression e = 0; e < count; ++e) {
      if (empty[e]) continue;
      const Entry& entry = entries_[e];
      bool now = false;
      switch (entry.kind) {
        case Kind::kEpsilon:
          now = true;
          break;
        case Kind::kTerminal:
          now = regular.Nullable(entry.a);
          break;
        case Kind::kSequence:
          now = empty[entry.a] && empty[entry.b];
          break;
        case Kind::kChoice:
          now = std::ranges::any_of(Choices(entry), [&](Expression c) { return empty[c]; });
          break;
        case Kind::kRepeat:
          now = entry.min == 0 || empty[entry.a];
          break;
        case Kind::kRule:
          now = empty[rules_[entry.a]];
          break;
        default:
          break;
      }
      if (now) {
        empty[e] = true;
        changed = true;
      }
    }
  }
  // A cycle of "begins with": depth first, without recursion.
  std::vector<uint8_t> color(count, 0);
  std::vector<std::pair<Expression, size_t>> path;
  std::vector<Expression> begins;
  const auto beginnings = [&](Expression e) {
    const Entry& entry = entries_[e];
    begins.clear();
    switch (entry.kind) {
      case Kind::kSequence:
        begins.push_back(entry.a);
        if (empty[entry.a]) begins.push_back(entry.b);
        break;
      case Kind::kChoice:
        begins.assign(Choices(entry).begin(), Choices(entry).end());
        break;
      case Kind::kRepeat:
        begins.push_back(entry.a);
        break;
      case Kind::kRule:
        begins.push_back(rules_[entry.a]);
        break;
      default:
        break;
    }
  };
  for (Expression start = 0; start < count; ++start) {
    if (color[start] != 0) continue;
    path.assign(1, {start, 0});
    color[start] = 1;
    while (!path.empty()) {
      auto& [e, next] = path.back();
      beginnings(e);
      if (next == begins.size()) {
        color[e] = 2;
        path.pop_back();
        continue;
      }
      const Expression child = begins[next++];
      if (color[child] == 1) {
        Fail("a rule of the grammar begins with itself (left recursion), which is not supported");
      }
      if (color[child] == 0) {
        color[child] = 1;
        path.emplace_back(child, 0);
      }
    }
  }
}

size_t Expressions::memory() const {
  return table_.memory() + entries_.size() * sizeof(Entry) + lists_.memory() + used_.memory();
}

}  // namespace loopspec::grammar
