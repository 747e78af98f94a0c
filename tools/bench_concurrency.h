// loopspec bench --concurrency: several requests at a time through an engine, without a server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "engine/load/loaded_model.h"
#include "loopspec/request.h"
#include "tools/decode_spec.h"

namespace loopspec::tools {

// "1,2,4": numbers of requests. Throws Error.
std::vector<int> ParseConcurrency(const std::string& text);

// `count` prompts of `tokens` ids each that mean nothing, no two alike, the same every time.
std::vector<std::vector<int32_t>> MadePrompts(int count, int tokens, int vocab);

struct ConcurrencyBench {
  std::string model;                          // its name, for the heading
  std::shared_ptr<const LoadedModel> loaded;  // that the backend has
  std::vector<int> concurrency;               // numbers of requests to try
  std::vector<std::vector<int32_t>> prompts;  // taken one after the other, again and again
  std::vector<DecodeSpec> specs;              // the first is the baseline
  std::vector<Request> requests;              // of each way, all but the prompt
  int max_tokens = 0;                         // of an answer
  bool comparable = true;                     // all ways must write the same texts
  bool assumed = false;                       // outcomes are drawn, not decided
  int repeat = 1;
  bool json = false;
};

// Positions of key/value memory that it needs with a model of this context.
int64_t PositionsFor(const ConcurrencyBench& bench, int64_t context);

// Keeps n requests under way, for every n: when one ends the next is submitted, as n clients would.
// Tokens per second are of the steps in which all n decode, from the n-th's first token until
// nobody is left to take an ended one's place. The ways run in turn. Prints a table, or JSON.
void RunConcurrencyBench(const ConcurrencyBench& bench, const std::shared_ptr<Backend>& backend);

}  // namespace loopspec::tools
