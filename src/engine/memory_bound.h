// The memory bound: decoding must read weights, keys and values, and memory has a speed.
#pragma once

#include "backends/backend.h"
#include "loopspec/token.h"
#include "model/model.h"

namespace loopspec {

// Bytes that the steps of a run had to read: weights of each pass, keys and values of its rows in
// B, P and C (rows of one depth share).
double BytesRead(const Model& model, const BackendOptions& options, const Statistics& statistics);

}  // namespace loopspec
