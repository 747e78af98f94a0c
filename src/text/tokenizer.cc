#include "text/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr size_t kMaxTokenizerBytes = size_t{1} << 30;
constexpr size_t kLongestText = size_t{1} << 30;
constexpr size_t kMostReserved = size_t{1} << 16;  // tokens that a text gets room for at once
constexpr size_t kKeptScratch = 16;                // threads that find their caches warm again

const Json& MemberOrNull(const Json& object, std::string_view key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

}  // namespace

struct Tokenizer::Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
  std::vector<bool> special;  // by id
  size_t bytes_per_token = 0;

  // Working memory of threads that are not encoding now.
  std::mutex mutex;
  std::vector<std::unique_ptr<BpeScratch>> idle;

  std::unique_ptr<BpeScratch> TakeScratch() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<BpeScratch>();
    auto scratch = std::move(idle.back());
    idle.pop_back();
    return scratch;
  }
  void ReturnScratch(std::unique_ptr<BpeScratch> scratch) {
    scratch->Trim();
    const std::lock_guard lock(mutex);
    if (idle.size() < kKeptScratch) idle.push_back(std::move(scratch));
  }

  std::string_view Token(int32_t id) const {
    const std::string* shown = added.Shown(id);
    return shown != nullptr ? std::string_view(*shown) : model.vocab().Token(id);
  }

  // Text between added tokens; `first` when it begins the whole input.
  void EncodeSegment(std::string_view text, bool first, BpeScratch& scratch,
                     std::vector<int32_t>& ids) const;
  // A part of it between added tokens that are found in normalized text.
  void EncodeNormalized(const Piece& piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;
};

void Tokenizer::Parts::EncodeNormalized(const Piece& piece, BpeScratch& scratch,
                                        std::vector<int32_t>& ids) const {
  if (pre_tokenizer.byte_level()) {
    pre_tokenizer.Split(piece, [&](const Piece& word) {
      scratch.CheckWord(ids.size(), word.text.size(), model.bytes_per_token());
      model.EncodeBytes(word.text, scratch, ids);
    });
  } else {
    pre_tokenizer.Split(piece, [&](const Piece& word) {
      scratch.CheckWord(ids.size(), word.text.size(), model.bytes_per_token());
      model.EncodeText(word.text, scratch, ids);
    });
  }
}

void Tokenizer::Parts::EncodeSegment(std::string_view text, bool first, BpeScratch& scratch,
                                     std::vector<int32_t>& ids) const {
  size_t zero = first ? static_cast<size_t>(DecodeUtf8(text, 0).length) : 0;
  NormalizedText normalized;
  if (!normalizer.empty()) {
    normalized = {std::string(text), zero};
    normalizer.Apply(normalized);
    text = normalized.text;
    zero = normalized.zero;
  }
  added.Split(text, true, {}, [&](std::string_view part, int32_t id) {
    if (id >= 0) {
      if (!part.empty()) ids.push_back(id);
      return;
    }
    const auto begin = static_cast<size_t>(part.data() - text.data());
    EncodeNormalized({part, zero > begin ? zero - begin : 0}, scratch, ids);
  });
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::FromFolder(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "tokenizer.json";
  if (!FileExists(path)) Fail("{} has no tokenizer.json", dir.string());
  const MappedFile file(path, kMaxTokenizerBytes);
  const auto bytes = file.bytes();
  return FromJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

Tokenizer Tokenizer::FromJson(std::string_view json, std::string_view what) {
  const TokenizerJson file = ReadTokenizerJson(json, what);
  if (const auto version = FindString(file.rest, "version", what); version && *version != "1.0") {
    Fail("{}: version is {}, expected 1.0", what, *version);
  }
  auto parts = std::make_unique<Parts>();
  parts->normalizer = Normalizer::FromJson(MemberOrNull(file.rest, "normalizer"), what);
  parts->pre_tokenizer = PreTokenizer::FromJson(MemberOrNull(file.rest, "pre_tokenizer"), what);
  parts->model = BpeModel::FromJson(file, parts->pre_tokenizer.byte_level(), what);
  parts->added = AddedTokens::FromJson(MemberOrNull(file.rest, "added_tokens"),
                                       parts->model.vocab(), parts->normalizer, what);
  parts->post_processor = PostProcessor::FromJson(MemberOrNull(file.rest, "post_processor"), what);
  parts->decoder = Decoder::FromJson(MemberOrNull(file.rest, "decoder"), what);

  if (parts->normalizer.empty() && parts->pre_tokenizer.keeps_all() && !parts->added.strips())
    parts->bytes_per_token = parts->model.bytes_per_token();
  if (parts->bytes_per_token > 0)
    parts->bytes_per_token = std::max(parts->bytes_per_token, parts->added.longest());

  Tokenizer tokenizer(std::move(parts));
  tokenizer.parts_->special.resize(static_cast<size_t>(tokenizer.vocab_size()));
  for (const int32_t id : tokenizer.parts_->added.SpecialIds()) {
    tokenizer.parts_->special[static_cast<size_t>(id)] = true;
  }
  return tokenizer;
}

void Tokenizer::BeginWith(int32_t id) {
  parts_->post_processor = PostProcessor::BeginWith(id);
}

std::vector<size_t> Tokenizer::SpecialPositions(std::string_view text) const {
  if (!IsValidUtf8(text)) return {};
  return parts_->added.SpecialPositions(text);
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                       const EncodeLimits& limits,
                                       std::span<const size_t> text_at) const {
  if (text.size() > kLongestText)
    Fail("the text has {} bytes, expected at most {}", text.size(), kLongestText);
  if (const size_t each = parts_->bytes_per_token; each > 0) {
    const auto least = static_cast<int64_t>((text.size() + each - 1) / each);
    if (least > limits.max_tokens) FailTooManyTokens(least, limits.max_tokens);
  }
  std::string valid;
  if (!IsValidUtf8(text)) {
    LOOPSPEC_CHECK(text_at.empty());
    AppendLossyUtf8(text, valid);
    text = valid;
  }
  std::vector<int32_t> ids;
  ids.reserve(std::min(text.size() / 4, kMostReserved) + 8);
  auto scratch = parts_->TakeScratch();
  scratch->limits = &limits;
  const auto encode = [&](std::string_view part) {
    if (!part.empty()) parts_->EncodeSegment(part, part.data() == text.data(), *scratch, ids);
  };
  parts_->added.Split(text, false, text_at, [&](std::string_view part, int32_t id) {
    if (part.empty()) return;
    if (id >= 0) {
      ids.push_back(id);
    } else if (text_at.empty() || !parts_->added.has_normalized_special()) {
      encode(part);
    } else {
      // Normalization moves positions, so a token that is matched after it is cut in two before.
      const auto begin = static_cast<size_t>(part.data() - text.data());
      size_t done = 0;
      for (const size_t at : text_at) {
        if (at <= begin + done || at >= begin + part.size()) continue;
        encode(part.substr(done, at - begin - done));
        done = at - begin;
      }
      encode(part.substr(done));
    }
  });
  scratch->limits = nullptr;
  parts_->ReturnScratch(std::move(scratch));
  if (const auto count = static_cast<int64_t>(ids.size()); count > limits.max_tokens)
    FailTooManyTokens(count, limits.max_tokens);
  return parts_->post_processor.Apply(std::move(ids), add_special_tokens);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string_view> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::string_view token = IdToToken(id);
    if (token.data() == nullptr || (skip_special_tokens && IsSpecial(id))) continue;
    tokens.push_back(token);
  }
  return parts_->decoder.Decode(tokens);
}

int Tokenizer::vocab_size() const {
  return std::max(parts_->model.vocab().largest_id(), parts_->added.largest_id()) + 1;
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  if (const auto id = parts_->added.Find(token)) return id;
  const int32_t id = parts_->model.vocab().Find(token);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

std::string_view Tokenizer::IdToToken(int32_t id) const {
  return parts_->Token(id);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->special.size() &&
         parts_->special[static_cast<size_t>(id)];
}

size_t Tokenizer::bytes_per_token() const {
  return parts_->bytes_per_token;
}

const Decoder& Tokenizer::decoder() const {
  return parts_->decoder;
}

}  // namespace loopspec
