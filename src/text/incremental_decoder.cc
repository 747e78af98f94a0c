#include "text/incremental_decoder.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace loopspec {

StopMatcher::StopMatcher(const std::vector<std::string>& stop) {
  for (const std::string& text : stop) {
    uint32_t node = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      uint32_t next = Edge(node, byte);
      if (next == 0) {
        next = static_cast<uint32_t>(nodes_.size());
        nodes_[node].edges.emplace_back(byte, next);
        nodes_.emplace_back();
        nodes_[next].depth = nodes_[node].depth + 1;
      }
      node = next;
    }
    nodes_[node].match = text.size();
  }
  std::deque<uint32_t> queue = {0};
  while (!queue.empty()) {
    const uint32_t node = queue.front();
    queue.pop_front();
    for (const auto& [byte, child] : nodes_[node].edges) {
      uint32_t fallback = nodes_[node].fallback;
      while (fallback != 0 && Edge(fallback, byte) == 0) fallback = nodes_[fallback].fallback;
      if (node != 0) nodes_[child].fallback = Edge(fallback, byte);
      // A node's own string is longer than any that ends inside it.
      if (nodes_[child].match == 0) nodes_[child].match = nodes_[nodes_[child].fallback].match;
      queue.push_back(child);
    }
  }
}

uint32_t StopMatcher::Edge(uint32_t node, unsigned char byte) const {
  for (const auto& [label, child] : nodes_[node].edges) {
    if (label == byte) return child;
  }
  return 0;
}

size_t StopMatcher::Step(unsigned char byte) {
  uint32_t next = Edge(state_, byte);
  while (next == 0 && state_ != 0) {
    state_ = nodes_[state_].fallback;
    next = Edge(state_, byte);
  }
  state_ = next;
  return nodes_[state_].match;
}

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)), matcher_(options_.stop) {
  hidden_.insert(options_.hidden.begin(), options_.hidden.end());
  for (const std::string& token : options_.always_shown) {
    if (const auto id = tokenizer_.TokenToId(token)) shown_.insert(*id);
  }
  pipeline_ = tokenizer_.decoder().Stream(decoded_);
}

std::string IncrementalDecoder::Push(int32_t id) {
  if (stopped_ || finished_) return {};
  const std::string_view token = tokenizer_.IdToToken(id);
  if (token.data() == nullptr) return {};
  if (hidden_.contains(id)) return {};
  if (options_.skip_special && tokenizer_.IsSpecial(id) && !shown_.contains(id)) return {};
  pipeline_.front().Feed(token, true);
  return Release();
}

std::string IncrementalDecoder::Finish() {
  if (stopped_ || finished_) return {};
  finished_ = true;
  pipeline_.front().Finish();
  std::string text = Release();
  if (!stopped_) text += std::exchange(held_, {});
  return text;
}

std::string IncrementalDecoder::Release() {
  const size_t before = held_.size();
  held_ += std::exchange(decoded_, {});
  for (size_t i = before; i < held_.size(); ++i) {
    if (const size_t length = matcher_.Step(static_cast<unsigned char>(held_[i]))) {
      stopped_ = true;
      stop_string_ = held_.substr(i + 1 - length, length);
      held_.resize(i + 1 - length);
      return std::exchange(held_, {});
    }
  }
  std::string safe = held_.substr(0, held_.size() - matcher_.depth());
  held_.erase(0, safe.size());
  return safe;
}

}  // namespace loopspec
