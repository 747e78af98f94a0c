#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr size_t kSmallCache = 1 << 8;  // slots; grows to kLargeCache when words keep missing
constexpr size_t kLargeCache = 1 << 14;
constexpr size_t kLongestLinear =
    40;                           // symbols; above them a heap beats scanning for the lowest rank
constexpr size_t kRunLength = 4;  // symbols of a run, on average, from which on runs are merged

std::string_view Shown(std::string_view token) {
  return token.substr(0, 80);
}

}  // namespace

void FailTooManyTokens(int64_t at_least, int64_t limit) {
  throw TooManyTokens(
      fmt::format("the text has at least {} tokens, expected at most {}", at_least, limit),
      at_least);
}

void BpeScratch::CheckWord(size_t tokens, size_t bytes, size_t bytes_per_token) {
  if (limits == nullptr) return;
  const size_t least =
      tokens + (bytes_per_token > 0 ? (bytes + bytes_per_token - 1) / bytes_per_token : 0);
  if (static_cast<int64_t>(least) > limits->max_tokens)
    FailTooManyTokens(static_cast<int64_t>(least), limits->max_tokens);
  CheckWork(bytes);
}

void BpeScratch::CheckWork(size_t work) {
  constexpr size_t kBetweenQuestions = 1 << 14;
  unchecked += work;
  if (unchecked < kBetweenQuestions || limits == nullptr) return;
  unchecked = 0;
  if (limits->cancelled && limits->cancelled())
    throw EncodeCancelled("the text was given up before it was made into tokens");
}

void BpeScratch::Trim() {
  constexpr size_t kUsual = 1 << 14;  // symbols of a word
  const auto trim = [](auto& buffer) {
    if (buffer.capacity() > kUsual) std::decay_t<decltype(buffer)>().swap(buffer);
  };
  trim(symbols);
  trim(list);
  trim(heap);
  trim(runs);
  trim(run_pairs);
  trim(text);
}

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
    AppendUtf8(c, characters_[static_cast<size_t>(byte)]);
    bytes_[c] = static_cast<int16_t>(byte);
  }
}

const ByteAlphabet& ByteAlphabet::Get() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

BpeModel BpeModel::FromJson(const TokenizerJson& file, bool byte_level, std::string_view what) {
  BpeModel model;
  model.what_ = what;
  const Json& json = RequireMember(file.rest, "model", what);
  if (const auto type = FindString(json, "type", fmt::format("{}: model", what));
      type && *type != "BPE") {
    Fail("{}: the model has type {}, expected BPE", what, *type);
  }
  if (!file.has_vocab || !file.has_merges) {
    Fail("{}: the model lacks {}, expected a BPE model", what, file.has_vocab ? "merges" : "vocab");
  }
  size_t bytes = 0;
  for (const auto& item : file.vocab) bytes += item.token.size();
  model.vocab_.Reserve(file.vocab.size(), bytes);
  for (const auto& [token, id] : file.vocab) {
    if (id > BpeVocab::kLargestId) {
      Fail("{}: token \"{}\" has id {}, expected at most {}", what, Shown(token), id,
           BpeVocab::kLargestId);
    }
    model.vocab_.Set(token, static_cast<int32_t>(id));
  }
  model.vocab_.Index();
  model.ReadOptions(json, fmt::format("{}: model", what));
  model.ReadMerges(file, what);
  // Byte-level models come with a splitter of words and need no breaks within them.
  if (byte_level) model.can_break_ = false;
  model.FindSafeBreaks();
  model.FindLongestToken(byte_level);
  return model;
}

// Every character of a byte-level token stands for one byte.
void BpeModel::FindLongestToken(bool byte_level) {
  const bool nothing_vanishes = byte_level ? all_bytes_known_
                                           : std::all_of(fallback_ids_.begin(), fallback_ids_.end(),
                                                         [](int32_t id) { return id >= 0; }) ||
                                                 (has_unknown_ && !fuse_unknown_);
  if (!nothing_vanishes) return;
  for (size_t entry = 0; entry < vocab_.size(); ++entry) {
    const std::string_view token = vocab_.Entry(entry);
    bytes_per_token_ =
        std::max(bytes_per_token_, byte_level ? CountCharacters(token) : token.size());
  }
  if (!byte_level)
    bytes_per_token_ = std::max<size_t>(bytes_per_token_, 4);  // an unknown character
}

void BpeModel::ReadOptions(const Json& model, std::string_view what) {
  if (const auto dropout = FindNumber(model, "dropout", what); dropout && *dropout != 0.0) {
    Fail("{}: dropout is {}, expected none: encoding with it is random", what, *dropout);
  }
  if (auto unknown = FindString(model, "unk_token", what)) {
    has_unknown_ = true;
    unknown_token_ = std::move(*unknown);
    unknown_id_ = vocab_.Find(unknown_token_);
  }
  fuse_unknown_ = FindBool(model, "fuse_unk", what).value_or(false);
  byte_fallback_ = FindBool(model, "byte_fallback", what).value_or(false);
  ignore_merges_ = FindBool(model, "ignore_merges", what).value_or(false);
  subword_prefix_ = FindString(model, "continuing_subword_prefix", what).value_or("");
  word_suffix_ = FindString(model, "end_of_word_suffix", what).value_or("");

  all_bytes_known_ = subword_prefix_.empty() && word_suffix_.empty();
  for (int byte = 0; byte < 256; ++byte) {
    const auto i = static_cast<size_t>(byte);
    byte_ids_[i] = vocab_.Find(ByteAlphabet::Get().Character(static_cast<unsigned char>(byte)));
    all_bytes_known_ = all_bytes_known_ && byte_ids_[i] >= 0;
    fallback_ids_[i] = byte_fallback_ ? vocab_.Find(fmt::format("<0x{:02X}>", byte)) : -1;
  }
}

void BpeModel::ReadMerges(const TokenizerJson& file, std::string_view what) {
  constexpr size_t kBlock = 64;
  merges_.Reserve(file.merges.size());
  std::string merged;                    // the block's new tokens, one after the other
  std::vector<std::string_view> tokens;  // of each merge in the block: left, right, new
  std::vector<int32_t> ids;
  for (size_t done = 0; done < file.merges.size(); done += kBlock) {
    const std::span block =
        std::span(file.merges).subspan(done, std::min(kBlock, file.merges.size() - done));
    size_t bytes = 0;
    for (const auto& [left, right] : block) bytes += left.size() + right.size();
    merged.clear();
    merged.reserve(bytes);  // so that views of it stay good
    tokens.clear();
    for (const auto& [left, right] : block) {
      if (right.size() < subword_prefix_.size()) {
        Fail("{}: a merge ends with \"{}\", expected the prefix \"{}\" before it", what,
             Shown(right), subword_prefix_);
      }
      const size_t begin = merged.size();
      merged.append(left).append(right.substr(subword_prefix_.size()));
      tokens.insert(tokens.end(), {left, right, std::string_view(merged).substr(begin)});
    }
    ids.resize(tokens.size());
    vocab_.FindMany(tokens, ids);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (ids[i] < 0) {
        Fail("{}: merge {} needs the token \"{}\", which the vocabulary lacks", what, done + i / 3,
             Shown(tokens[i]));
      }
    }
    for (size_t i = 0; i < tokens.size(); i += 3) merges_.Prefetch(ids[i], ids[i + 1]);
    for (size_t i = 0; i < tokens.size(); i += 3) {
      merges_.Set(ids[i], ids[i + 1], {static_cast<uint32_t>(done + i / 3), ids[i + 2]});
    }
  }
  // Merges that start from a fallback byte or from the unknown token join characters that the
  // token's text does not show.
  can_break_ = subword_prefix_.empty() && word_suffix_.empty() && !ignore_merges_;
  std::vector<bool> stand_in(static_cast<size_t>(vocab_.largest_id() + 1));
  const auto mark = [&](int32_t id) {
    if (id >= 0) stand_in[static_cast<size_t>(id)] = true;
  };
  std::for_each(fallback_ids_.begin(), fallback_ids_.end(), mark);
  mark(unknown_id_);
  for (size_t rank = 0; rank < file.merges.size() && can_break_ && (byte_fallback_ || has_unknown_);
       ++rank) {
    const auto& [left, right] = file.merges[rank];
    can_break_ = !stand_in[static_cast<size_t>(vocab_.Find(left))] &&
                 !stand_in[static_cast<size_t>(vocab_.Find(right))];
  }
}

void BpeModel::FindSafeBreaks() {
  constexpr size_t kMostJoinWords = 1 << 16;
  if (can_break_) joins_.assign(std::min(kMostJoinWords, std::bit_ceil(vocab_.size() * 2 + 1)), 0);
  for (size_t entry = 0; entry < vocab_.size(); ++entry) {
    const std::string_view token = vocab_.Entry(entry);
    if (token.empty()) continue;
    const CodePoint first = DecodeUtf8(token, 0);
    if (token.size() == static_cast<size_t>(first.length)) {
      if (character_ids_.size() <= first.value) character_ids_.resize(first.value + 1, -1);
      character_ids_[first.value] = vocab_.Find(token);
      continue;
    }
    char32_t previous = first.value;
    for (size_t i = static_cast<size_t>(first.length); can_break_ && i < token.size();) {
      const CodePoint c = DecodeUtf8(token, i);
      MarkJoin(previous, c.value);
      previous = c.value;
      i += static_cast<size_t>(c.length);
    }
  }
}

template <typename F>
void BpeModel::Cached(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids,
                      F encode) const {
  using CachedWord = BpeScratch::CachedWord;
  if (word.size() > sizeof(CachedWord::text)) return encode();
  if (scratch.cache.empty() ||
      (scratch.misses > 4 * kSmallCache && scratch.cache.size() < kLargeCache)) {
    scratch.cache.assign(scratch.cache.empty() ? kSmallCache : kLargeCache, {});
  }
  CachedWord& slot = scratch.cache[(HashBytes(word) >> 16) & (scratch.cache.size() - 1)];
  if (slot.length == word.size() && std::memcmp(slot.text, word.data(), word.size()) == 0) {
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return;
  }
  ++scratch.misses;
  const size_t before = ids.size();
  encode();
  const size_t count = ids.size() - before;
  if (count > std::size(slot.ids)) return;
  std::memcpy(slot.text, word.data(), word.size());
  slot.length = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::copy(ids.end() - static_cast<ptrdiff_t>(count), ids.end(), slot.ids);
}

void BpeModel::EncodeBytes(std::string_view word, BpeScratch& scratch,
                           std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  Cached(word, scratch, ids, [&] {
    if (ignore_merges_ || !all_bytes_known_) {
      scratch.text.clear();
      ByteAlphabet::Get().AppendMapped(word, scratch.text);
      if (!all_bytes_known_) return EncodeWholeText(scratch.text, scratch, ids);
      if (const int32_t id = vocab_.Find(scratch.text); id >= 0) return ids.push_back(id);
    }
    const auto symbol = [&](size_t i) { return byte_ids_[static_cast<unsigned char>(word[i])]; };
    if (FindRuns(word.size(), symbol, scratch)) return MergeRuns(scratch, ids);
    scratch.symbols.clear();
    for (size_t i = 0; i < word.size(); ++i) scratch.symbols.push_back(symbol(i));
    Merge(scratch, ids);
  });
}

void BpeModel::EncodeText(std::string_view word, BpeScratch& scratch,
                          std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (!can_break_) return EncodePiece(word, scratch, ids);
  size_t begin = 0;
  CodePoint previous = DecodeUtf8(word, 0);
  for (size_t i = static_cast<size_t>(previous.length); i < word.size();) {
    const CodePoint c = DecodeUtf8(word, i);
    // Both must be tokens: unknown characters may vanish, fuse or become bytes across the break.
    if (!MayJoin(previous.value, c.value) && CharacterId(previous.value) >= 0 &&
        CharacterId(c.value) >= 0) {
      EncodePiece(word.substr(begin, i - begin), scratch, ids);
      begin = i;
    }
    previous = c;
    i += static_cast<size_t>(c.length);
  }
  EncodePiece(word.substr(begin), scratch, ids);
}

void BpeModel::EncodePiece(std::string_view piece, BpeScratch& scratch,
                           std::vector<int32_t>& ids) const {
  Cached(piece, scratch, ids, [&] { EncodeWholeText(piece, scratch, ids); });
}

void BpeModel::EncodeWholeText(std::string_view word, BpeScratch& scratch,
                               std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const int32_t id = vocab_.Find(word); id >= 0) return ids.push_back(id);
  }
  scratch.symbols.clear();
  SymbolsOf(word, scratch.symbols);
  const auto symbol = [&](size_t i) { return scratch.symbols[i]; };
  // Where no merge starts from a symbol that stands for another text than its own.
  if (can_break_ && FindRuns(scratch.symbols.size(), symbol, scratch))
    return MergeRuns(scratch, ids);
  Merge(scratch, ids);
}

template <typename F>
bool BpeModel::FindRuns(size_t count, F symbol, BpeScratch& scratch) {
  if (count <= kLongestLinear || !scratch.by_runs) return false;
  scratch.runs.clear();
  for (size_t i = 0; i < count; ++i) {
    const int32_t id = symbol(i);
    if (!scratch.runs.empty() && scratch.runs.back().id == id) {
      ++scratch.runs.back().count;
      continue;
    }
    if (scratch.runs.size() * kRunLength > count) return false;
    scratch.runs.push_back({id, 1, -1, -1, static_cast<uint32_t>(i), 1});
  }
  return true;
}

void BpeModel::SymbolsOf(std::string_view word, std::vector<int32_t>& symbols) const {
  const bool affixes = !subword_prefix_.empty() || !word_suffix_.empty();
  bool unknown =
      false;  // an unknown token that is still to be written, after the bytes that follow it
  std::string spelled;
  for (size_t i = 0; i < word.size();) {
    const CodePoint c = DecodeUtf8(word, i);
    std::string_view text = word.substr(i, static_cast<size_t>(c.length));
    int32_t id = affixes ? -1 : CharacterId(c.value);
    if (affixes) {
      spelled = i > 0 ? subword_prefix_ : std::string();
      spelled.append(text);
      if (i + text.size() == word.size()) spelled.append(word_suffix_);
      text = spelled;
      id = vocab_.Find(text);
    }
    i += static_cast<size_t>(c.length);
    if (id >= 0) {
      if (unknown) symbols.push_back(unknown_id_);
      unknown = false;
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback_ && AppendFallbackBytes(text, symbols)) continue;
    if (!has_unknown_) continue;
    if (unknown_id_ < 0) {
      Fail("{}: the text needs the unknown token \"{}\", which the vocabulary lacks", what_,
           unknown_token_);
    }
    if (unknown && !fuse_unknown_) symbols.push_back(unknown_id_);
    unknown = true;
  }
  if (unknown) symbols.push_back(unknown_id_);
}

bool BpeModel::AppendFallbackBytes(std::string_view text, std::vector<int32_t>& symbols) const {
  const auto id = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return id(c) >= 0; })) return false;
  for (const char c : text) symbols.push_back(id(c));
  return true;
}

void BpeModel::Merge(BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (scratch.symbols.size() <= kLongestLinear) {
    MergeShort(scratch.symbols.data(), scratch.symbols.size(), ids);
  } else {
    MergeLong(scratch, ids);
  }
}

void BpeModel::MergeShort(int32_t* symbols, size_t count, std::vector<int32_t>& ids) const {
  std::array<BpeMerges::Merge, kLongestLinear> pairs;  // pairs[i]: the merge of symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.Find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == BpeMerges::kNone) break;
    symbols[best] = pairs[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best + 1 < count) pairs[best] = merges_.Find(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = merges_.Find(symbols[best - 1], symbols[best]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void BpeModel::MergeLong(BpeScratch& scratch, std::vector<int32_t>& ids) const {
  using Candidate = BpeScratch::Candidate;
  auto& list = scratch.list;
  auto& heap = scratch.heap;
  const auto later = [](const Candidate& a, const Candidate& b) { return a.order > b.order; };
  const auto count = static_cast<int32_t>(scratch.symbols.size());
  list.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    list.push_back({scratch.symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto note = [&](int32_t position) {
    const auto& symbol = list[static_cast<size_t>(position)];
    if (symbol.next < 0) return false;
    const auto merge = merges_.Find(symbol.id, list[static_cast<size_t>(symbol.next)].id);
    if (merge.rank == BpeMerges::kNone) return false;
    heap.push_back({uint64_t{merge.rank} << 32 | static_cast<uint32_t>(position), merge.id});
    return true;
  };
  for (int32_t i = 0; i + 1 < count; ++i) note(i);
  std::make_heap(heap.begin(), heap.end(), later);
  constexpr size_t kBetweenChecks = 1 << 12;
  for (size_t round = 1; !heap.empty(); ++round) {
    if (round % kBetweenChecks == 0) scratch.CheckWork(kBetweenChecks);
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(top.order & UINT32_MAX);
    auto& symbol = list[static_cast<size_t>(position)];
    if (symbol.id < 0 || symbol.next < 0) continue;  // merged away, or the last one
    auto& right = list[static_cast<size_t>(symbol.next)];
    const auto merge = merges_.Find(symbol.id, right.id);
    if (merge.rank == BpeMerges::kNone || merge.id != top.id)
      continue;  // the pair has changed since
    symbol.id = merge.id;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) list[static_cast<size_t>(symbol.next)].previous = position;
    if (symbol.previous >= 0 && note(symbol.previous))
      std::push_heap(heap.begin(), heap.end(), later);
    if (note(position)) std::push_heap(heap.begin(), heap.end(), later);
  }
  for (const auto& symbol : list) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace loopspec
