// loopspec calibrate --keys: what loops change in keys and values, and which plan of keys follows.
#pragma once

#include <string>
#include <vector>

#include "tools/options.h"

namespace loopspec::tools {

struct CalibrateKeysOptions {
  std::string fit = "built-in", judge = "built-in";  // files, or "built-in"
  std::vector<std::string> plans;                    // to judge too
  int span = 16;
  int positions = 4096;  // of each set of texts at most
  bool json = false;
};

// Measures and prints; stores nothing.
void CalibrateKeys(const ModelOptions& model, const CalibrateKeysOptions& options);

}  // namespace loopspec::tools
