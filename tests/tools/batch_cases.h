// Requests for `loopspec batch`, and what must hold when it is killed.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace loopspec::test {

// Every line, which must be JSON.
std::vector<Json> JsonLines(const std::string& text);
// Without one that has no line break yet.
std::vector<Json> WholeLines(const std::string& text);

std::string BatchRequest(const std::string& id, const std::string& url, const Json& body);
// "r0", "r1", ...: a greedy completion.
std::string Completion(int i, int max_tokens);
std::vector<std::string> BatchArguments(const std::string& input, const std::string& output);

// SIGKILLs runs of one batch at `kills` moments drawn from `seed`, over the whole length of a run,
// and takes it up again each time. No answer may be lost or doubled, and whenever a run gets to its
// end, the file must be that of a run that nobody killed.
void KillAtRandomMoments(int kills, int seed);

}  // namespace loopspec::test
