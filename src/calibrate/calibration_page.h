// A calibration as a page: the paper's Figure 2 for this model, and predicted against measured
// speed.
#pragma once

#include <string>

#include "calibrate/calibration_report.h"

namespace loopspec {

std::string CalibrationPage(const CalibrationReport& report);

}  // namespace loopspec
