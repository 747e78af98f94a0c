// Fields that OpenAI, vLLM, SGLang and llama.cpp know and that have nothing to answer to here, with
// the values at which they ask for nothing: one table, to be read as data. Routers and clients send
// them with every request, at their defaults.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace loopspec::serve {

struct KnownField {
  const char* name;
  unsigned where;  // a set of Endpoint and FieldPlace
  // A JSON list of the values that ask for nothing: those are taken, any other is refused by name.
  // Null, which always means absent, is not listed. "any": no value changes an answer of this
  // server.
  const char* nothing;
  // The field that does here what this one asks for; null: none does.
  const char* instead = nullptr;

  bool any() const { return std::string_view(nothing) == "any"; }
  Json values() const { return any() ? Json() : Json::parse(nothing); }
};

// Places in a body besides its top; bits of a set with Endpoint.
enum FieldPlace : unsigned {
  kSamplingParams = 1u << 8,  // sampling_params of /generate
  kStreamOptions = 1u << 9,   // stream_options
  kMessage = 1u << 10,        // an element of messages
};

std::span<const KnownField> KnownFields();
// Null where the table has no such name for the place.
const KnownField* FindKnownField(std::string_view name, unsigned where);
// Throws an ApiException that names `path` when the value asks for something.
void CheckAsksForNothing(const KnownField& field, const Json& value, const std::string& path);

}  // namespace loopspec::serve
