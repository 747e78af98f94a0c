// A calibration as a page: the paper's Figure 2 for this model, and predicted against measured
// speed.
#pragma once

#include <span>
#include <string>

#include "calibrate/calibration_report.h"

namespace loopspec {

// One view after the other.
std::string CalibrationPage(std::span<const CalibrationReport> reports);

}  // namespace loopspec
