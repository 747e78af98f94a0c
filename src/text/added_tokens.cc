#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

bool EndsWithWord(std::string_view text) {
  return !text.empty() &&
         HasClass(DecodeUtf8(text, PreviousCharacter(text, text.size())).value, kWord);
}
bool StartsWithWord(std::string_view text) {
  return !text.empty() && HasClass(DecodeUtf8(text, 0).value, kWord);
}

// Where the spaces at the end of text[floor, end) begin.
size_t SpacesBefore(std::string_view text, size_t floor, size_t end) {
  while (end > floor) {
    const size_t previous = PreviousCharacter(text, end);
    if (!HasClass(DecodeUtf8(text, previous).value, kSpace)) break;
    end = previous;
  }
  return end;
}

size_t SpacesAfter(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = DecodeUtf8(text, begin);
    if (!HasClass(c.value, kSpace)) break;
    begin += static_cast<size_t>(c.length);
  }
  return begin;
}

}  // namespace

void StringSet::Add(std::string_view text, int32_t value) {
  if (text.empty()) return;
  const auto first = static_cast<unsigned char>(text[0]);
  if (roots_[first] == 0) {
    roots_[first] = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(-1);
    ++first_bytes_;
    only_first_byte_ = text[0];
  }
  uint32_t node = roots_[first];
  for (const char c : text.substr(1)) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [edge, added] = edges_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.push_back(-1);
    node = edge->second;
  }
  if (nodes_[node] < 0) nodes_[node] = value;
}

std::optional<StringSet::Match> StringSet::Find(std::string_view text, size_t from) const {
  if (first_bytes_ == 0) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (first_bytes_ == 1) {
      const void* found = std::memchr(text.data() + begin, only_first_byte_, text.size() - begin);
      if (found == nullptr) return std::nullopt;
      begin = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    }
    uint32_t node = roots_[static_cast<unsigned char>(text[begin])];
    if (node == 0) continue;
    std::optional<Match> longest;
    for (size_t end = begin + 1;; ++end) {
      if (nodes_[node] >= 0) longest = Match{begin, end, nodes_[node]};
      if (end == text.size()) break;
      const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[end]));
      if (edge == edges_.end()) break;
      node = edge->second;
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

bool StringSet::Has(std::string_view text) const {
  const auto match = Find(text, 0);
  return match && match->begin == 0 && match->end == text.size();
}

AddedTokens::Token AddedTokens::ReadToken(const Json& json, std::string_view what) {
  Token token;
  token.content = RequireString(json, "content", what);
  token.special = FindBool(json, "special", what).value_or(false);
  token.single_word = FindBool(json, "single_word", what).value_or(false);
  token.lstrip = FindBool(json, "lstrip", what).value_or(false);
  token.rstrip = FindBool(json, "rstrip", what).value_or(false);
  token.normalized = FindBool(json, "normalized", what).value_or(!token.special);
  token.shown = token.content;
  return token;
}

int32_t AddedTokens::IdFor(const Token& token, const BpeVocab& vocab) const {
  if (const auto known = ids_.find(token.content); known != ids_.end()) return known->second;
  if (const int32_t id = vocab.Find(token.content); id >= 0) return id;
  const auto size = static_cast<int32_t>(vocab.size());
  return largest_id_ >= 0 && (largest_id_ >= size || size == 0) ? largest_id_ + 1 : size;
}

AddedTokens AddedTokens::FromJson(const Json& list, const BpeVocab& vocab,
                                  const Normalizer& normalizer, std::string_view what) {
  AddedTokens result;
  if (list.is_null()) return result;
  if (!list.is_array()) Fail("{}: added_tokens is no list", what);
  std::vector<Token> order;  // special tokens first, as the library looks for them
  std::vector<Token> classic;
  for (const Json& json : list) {
    Token token = ReadToken(json, fmt::format("{}: added_tokens", what));
    if (token.content.empty()) continue;
    const int32_t id = result.IdFor(token, vocab);
    if (const auto known = result.tokens_.find(id);
        known != result.tokens_.end() && known->second == token)
      continue;
    if (token.special && result.special_.insert(token.content).second) order.push_back(token);
    if (!result.special_.contains(token.content)) classic.push_back(token);
    result.ids_.insert_or_assign(token.content, id);
    result.largest_id_ = std::max(result.largest_id_, id);
    result.tokens_.insert_or_assign(id, std::move(token));
  }
  order.insert(order.end(), classic.begin(), classic.end());
  for (const Token& token : order) {
    const int32_t id = result.ids_.at(token.content);
    if (token.normalized) {
      result.has_normalized_special_ = result.has_normalized_special_ || token.special;
      NormalizedText text{token.content, 0};
      normalizer.Apply(text);
      result.normalized_.Add(text.text, id);
      result.tokens_.at(id).shown = text.text;
    } else {
      result.plain_.Add(token.content, id);
    }
  }
  return result;
}

void AddedTokens::Split(std::string_view text, bool normalized, std::span<const size_t> text_at,
                        const PartSink& sink) const {
  const StringSet& set = normalized ? normalized_ : plain_;
  size_t done = 0;  // what has been given to the sink
  size_t from = 0;  // where the search goes on
  while (const auto match = set.Find(text, from)) {
    from = match->end;
    size_t begin = match->begin, end = match->end;
    const Token& token = tokens_.at(match->value);
    if (!text_at.empty() && token.special) {
      const auto at = std::lower_bound(text_at.begin(), text_at.end(), begin);
      if (at != text_at.end() && *at < end) {
        from = begin + 1;  // another may begin within it
        continue;
      }
    }
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end))))
      continue;
    // The spaces on the left may belong to the token before already.
    if (token.lstrip) begin = std::max(SpacesBefore(text, done, begin), done);
    if (token.rstrip) end = SpacesAfter(text, end);
    if (done < begin) sink(text.substr(done, begin - done), -1);
    sink(text.substr(begin, end - begin), match->value);
    done = end;
  }
  if (done < text.size()) sink(text.substr(done), -1);
}

std::vector<size_t> AddedTokens::SpecialPositions(std::string_view text) const {
  std::vector<size_t> positions;
  for (const StringSet* set : {&plain_, &normalized_}) {
    for (size_t from = 0; const auto match = set->Find(text, from);) {
      from = match->begin + 1;
      if (!tokens_.at(match->value).special) continue;
      const size_t second =
          match->begin + static_cast<size_t>(DecodeUtf8(text, match->begin).length);
      // A token of one character has no inside, and may begin a longer one.
      if (second == match->end || set->Has(text.substr(match->begin, second - match->begin))) {
        positions.push_back(match->begin);
      }
      if (second < match->end) positions.push_back(second);
    }
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

std::optional<int32_t> AddedTokens::Find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

const std::string* AddedTokens::Shown(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.shown;
}

std::vector<int32_t> AddedTokens::SpecialIds() const {
  std::vector<int32_t> ids;
  for (const auto& [id, token] : tokens_) {
    if (special_.contains(token.shown)) ids.push_back(id);
  }
  return ids;
}

size_t AddedTokens::longest() const {
  size_t bytes = 0;
  for (const auto& [id, token] : tokens_) bytes = std::max(bytes, token.content.size());
  return bytes;
}

bool AddedTokens::strips() const {
  return std::any_of(tokens_.begin(), tokens_.end(),
                     [](const auto& entry) { return entry.second.lstrip || entry.second.rstrip; });
}

}  // namespace loopspec
