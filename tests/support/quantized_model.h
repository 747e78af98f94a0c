// Demo models in few bits, made once by the tests that want them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "quantize/quantize.h"
#include "tests/support/models.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {

// The folder of models/NAME rounded to `bits`, without texts; made anew by every process, which
// removes it at its end.
inline std::filesystem::path QuantizedFolder(const std::string& name, int bits) {
  static const TemporaryFolder base;
  static std::map<std::pair<std::string, int>, std::filesystem::path> made;
  std::filesystem::path& folder = made[{name, bits}];
  if (!folder.empty()) return folder;
  QuantizeRequest request;
  request.source = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / name;
  request.output = base / (name + "-int" + std::to_string(bits));
  request.bits = bits;
  QuantizeModel(Model::Load(request.source), request);
  return folder = request.output;
}

}  // namespace loopspec
