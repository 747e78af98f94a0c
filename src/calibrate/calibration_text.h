// What `loopspec calibrate` prints.
#pragma once

#include <string>

#include "calibrate/calibration_report.h"

namespace loopspec {

// Agreement and distance by depth, predicted and measured speeds, and how well they agree.
std::string CalibrationTables(const CalibrationReport& report);

}  // namespace loopspec
