// What runs report: statistics as JSON, the floor of a run, numbers for people.
#pragma once

#include <string>

#include "base/json_fwd.h"
#include "engine/generate.h"
#include "model/model.h"

namespace loopspec::tools {

// Bytes that the steps of a run had to read: weights of each pass, keys and values of its rows
// (rows of one depth share).
double BytesRead(const Model& model, const BackendOptions& options,
                 const DecodeStatistics& statistics);

// The `stats` object of --json.
OrderedJson StatsJson(const Model& model, const Backend& backend, std::span<const int> depths,
                      const GenerateResult& result, int64_t prompt_tokens);

// 12.3 tokens/s, 1.2 ms, 27.5 MB ...
std::string HumanBytes(double bytes);
std::string HumanSeconds(double seconds);
std::string HumanCount(double count);

// True when stdout (or stderr) is a terminal and NO_COLOR is not set.
bool ColourOnStdout();
bool ColourOnStderr();

// Colours by source: fallback, first, second, ... proposal.
const char* SourceColour(int source);
inline constexpr const char* kPlain = "\033[0m";

}  // namespace loopspec::tools
