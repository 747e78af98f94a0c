// Reading a tokenizer.json: the two large tables without a document tree, the rest as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace loopspec {

// The file taken apart. Strings of the tables point into the file's text or, when they had escapes,
// into `arena`.
struct TokenizerJson {
  struct VocabItem {
    std::string_view token;
    int64_t id;
  };
  struct Merge {
    std::string_view left, right;
  };

  Json rest;                     // the file, with model.vocab and model.merges emptied
  std::vector<VocabItem> vocab;  // in the file's order
  std::vector<Merge> merges;     // by rank
  bool has_vocab = false;        // whether model.vocab and model.merges were there as tables
  bool has_merges = false;
  std::vector<std::string> arena;  // grows only while reading; each string stays where it is
};

// `text` must outlive the result. Throws Error naming `what` on anything that is not a
// tokenizer.json.
TokenizerJson ReadTokenizerJson(std::string_view text, std::string_view what);

// Members that must be there. `what` names the object in errors.
const Json& RequireMember(const Json& object, std::string_view key, std::string_view what);
const Json& RequireArray(const Json& object, std::string_view key, std::string_view what);
bool RequireBool(const Json& object, std::string_view key, std::string_view what);
std::string RequireString(const Json& object, std::string_view key, std::string_view what);
// The "type" of one part of the pipeline, `part` in errors.
std::string TypeOf(const Json& object, std::string_view what, std::string_view part);

}  // namespace loopspec
