// Records of experiments as one page: the paper's tables with the paper's own figures beside, and
// what each figure means to a reader who has not read it.
#pragma once

#include <filesystem>
#include <string>

namespace loopspec::experiments {

// The page of all records in a folder. Throws Error when there are none.
std::string ReportExperiments(const std::filesystem::path& folder);

}  // namespace loopspec::experiments
