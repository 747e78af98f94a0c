// Encodes and decodes for compare_tokenizers.py, and times both.
//
// tokenizer_driver compare TOKENIZER.json < strings > results
//   strings: each a 32-bit little-endian length and so many bytes. Results, for each string: the
//   ids with and without special tokens, then the first list decoded with special tokens shown and
//   hidden, then the incremental decoder's text for the same; lists and texts with their 32-bit
//   lengths before them.
// tokenizer_driver time TOKENIZER.json FILE: MB/s of encoding and milliseconds of loading, as JSON.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/incremental_decoder.h"
#include "text/tokenizer.h"

namespace loopspec {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Write(const void* data, size_t count, size_t size) {
  const auto length = static_cast<uint32_t>(count);
  std::fwrite(&length, sizeof(length), 1, stdout);
  std::fwrite(data, size, count, stdout);
}

std::string DecodeStepwise(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                           bool skip_special) {
  IncrementalDecoder::Options options;
  options.skip_special = skip_special;
  options.always_shown.clear();
  IncrementalDecoder decoder(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

int Compare(const Tokenizer& tokenizer) {
  uint32_t length = 0;
  std::string text;
  while (std::fread(&length, sizeof(length), 1, stdin) == 1) {
    text.resize(length);
    if (std::fread(text.data(), 1, length, stdin) != length) return 1;
    const std::vector<int32_t> ids = tokenizer.Encode(text, true);
    const std::vector<int32_t> plain = tokenizer.Encode(text, false);
    Write(ids.data(), ids.size(), sizeof(int32_t));
    Write(plain.data(), plain.size(), sizeof(int32_t));
    for (const bool skip : {false, true}) {
      const std::string decoded = tokenizer.Decode(ids, skip);
      Write(decoded.data(), decoded.size(), 1);
    }
    for (const bool skip : {false, true}) {
      const std::string decoded = DecodeStepwise(tokenizer, ids, skip);
      Write(decoded.data(), decoded.size(), 1);
    }
  }
  return 0;
}

int Time(const std::string& json, const std::string& file) {
  double load = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    const std::string text = ReadFile(json);
    const Tokenizer loaded = Tokenizer::FromJson(text, json);
    load = std::min(load, Seconds(begin));
  }
  const Tokenizer tokenizer = Tokenizer::FromJson(ReadFile(json), json);
  const std::string text = ReadFile(file);
  double best = 1e9;
  size_t tokens = 0;
  for (int i = 0; i < 3; ++i) {
    const auto begin = Clock::now();
    tokens = tokenizer.Encode(text).size();
    best = std::min(best, Seconds(begin));
  }
  std::printf("{\"load_ms\": %.1f, \"mb_per_s\": %.1f, \"tokens\": %zu}\n", load * 1e3,
              static_cast<double>(text.size()) / best / 1e6, tokens);
  return 0;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "compare") {
    return Compare(Tokenizer::FromJson(ReadFile(arguments[1]), arguments[1]));
  }
  if (arguments.size() == 3 && arguments[0] == "time") return Time(arguments[1], arguments[2]);
  std::cerr << "usage: tokenizer_driver compare TOKENIZER.json | time TOKENIZER.json FILE\n";
  return 2;
}

}  // namespace
}  // namespace loopspec

int main(int argc, char** argv) {
  try {
    return loopspec::Main(argc, argv);
  } catch (const loopspec::Error& error) {
    std::cerr << "tokenizer_driver: " << error.what() << "\n";
    return 2;
  }
}
