// Multiply-adds per second of this machine in float32: the ceiling of the portable kernels.
#pragma once

#include "base/thread_pool.h"

namespace loopspec {

// All threads of the pool, independent chains in registers, nothing from memory.
double MeasureFmaRate(ThreadPool& pool);

}  // namespace loopspec
