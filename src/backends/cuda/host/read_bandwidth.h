// The ceiling that step times are held against.
#pragma once

namespace loopspec::cuda {

// Bytes per second at which the current device reads a large buffer, the best of several rounds.
// Throws Error.
double MeasureReadBandwidth();

}  // namespace loopspec::cuda
