// The machine's own read bandwidth: the denominator of every floor.
#pragma once

namespace loopspec {

// Bytes per second that `threads` threads (0: all usable cores) read from a buffer far larger than
// the caches; the best of several passes. Takes about a third of a second.
double MeasureReadBandwidth(int threads = 0);

}  // namespace loopspec
