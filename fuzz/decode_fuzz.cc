// Random tokens through the incremental decoder: together the same text as decoding at once, valid
// UTF-8 in every piece, cut where a stop string is first complete.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/incremental_decoder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

#define MODEL                                                                                                             \
  R"("added_tokens": [{"content": "<s>", "special": true, "normalized": false}, {"content": "<think>", "special": true,)" \
  R"( "normalized": false}, {"content": "xy", "special": false, "normalized": false}], "model": {"vocab": {"<s>": 0,)"    \
  R"( "<think>": 1, "a": 2, "b": 3, " ": 4, "\u2581": 5, "\u2581a": 6, "\u2581\u2581": 7, "\u00e2": 8, "\u0124": 9,)"     \
  R"( "\u00ac": 10, "<0xE2>": 11, "<0x82>": 12, "<0xAC>": 13, "<0x61>": 14, "<0xFF>": 15, "ab": 16, "aab": 17, "": 18,)"  \
  R"( "\u00e9": 19, "\u4f60": 20, "<0x6": 21, "1>": 22, "\u00c3": 23, "\u00a9": 24, "\u0120": 25}, "merges": []}})"

constexpr std::array<std::string_view, 8> kTokenizers = {
    "{" MODEL,
    R"({"decoder": {"type": "ByteLevel"}, )" MODEL,
    R"({"decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}, )" MODEL,
    R"({"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},)"
    R"( {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, )" MODEL,
    R"({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "aab"},)"
    R"( "content": "<"}, {"type": "Strip", "content": "a", "start": 2, "stop": 2}]}, )" MODEL,
    R"({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Metaspace", "replacement": "a"},)"
    R"( {"type": "ByteFallback"}]}, )" MODEL,
    R"({"decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 1, "stop": 1}, {"type": "Fuse"},)"
    R"( {"type": "ByteFallback"}, {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "A"}]}, )" MODEL,
    R"({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "ByteLevel"}, {"type": "Replace",)"
    R"( "pattern": {"String": "ab"}, "content": ""}]}, )" MODEL,
};

// Where the first stop string to be complete begins.
std::string CutAtStop(const std::string& text, const std::vector<std::string>& stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stop) {
      if (!s.empty() && std::string_view(text).substr(0, end).ends_with(s))
        longest = std::max(longest, s.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

void Check(bool holds) {
  if (!holds) std::abort();
}

void Run(const uint8_t* data, size_t size) {
  static const std::vector<Tokenizer> tokenizers = [] {
    std::vector<Tokenizer> list;
    for (const std::string_view json : kTokenizers)
      list.push_back(Tokenizer::FromJson(json, "fuzz"));
    return list;
  }();
  if (size < 2) return;
  const Tokenizer& tokenizer = tokenizers[data[0] % tokenizers.size()];
  const bool skip = (data[1] & 1) != 0;
  IncrementalDecoder::Options options;
  options.skip_special = skip;
  if ((data[1] & 2) != 0) options.stop = {"aab", "ab ", "\u00e9"};
  if ((data[1] & 4) != 0) options.stop.push_back("b aab\uFFFD");
  if ((data[1] & 8) != 0) options.always_shown.clear();
  IncrementalDecoder decoder(tokenizer, options);
  std::string text;
  std::vector<int32_t> shown;
  for (size_t i = 2; i < size; ++i) {
    const int32_t id = data[i] % 28;  // a few of them unknown
    const std::string piece = decoder.Push(id);
    Check(IsValidUtf8(piece));
    text += piece;
    const bool kept = id == 1 && !options.always_shown.empty();
    if (!skip || !tokenizer.IsSpecial(id) || kept) shown.push_back(id);
  }
  text += decoder.Finish();
  const std::string whole = tokenizer.Decode(shown, false);
  const std::string cut = CutAtStop(whole, options.stop);
  Check(text == cut);
  Check(decoder.stopped() == (cut.size() < whole.size()));
}

}  // namespace
}  // namespace loopspec

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  loopspec::Run(data, size);
  return 0;
}
