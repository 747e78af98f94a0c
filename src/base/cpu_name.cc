#include "base/cpu_name.h"

#include <fstream>

namespace loopspec {

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, implementer, part;
  while (std::getline(info, line)) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;
    if (!implementer.empty() && !part.empty()) break;
  }
  if (implementer.empty()) return "unknown";
  if (implementer == "0x41" && part == "0xd40") return "Neoverse V1";
  if (implementer == "0x41" && part == "0xd4f") return "Neoverse V2";
  if (implementer == "0x41" && part == "0xd0c") return "Neoverse N1";
  if (implementer == "0x41" && part == "0xd49") return "Neoverse N2";
  return "Arm " + implementer + " " + part;
}

}  // namespace loopspec
