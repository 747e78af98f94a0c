// int4 by GPTQ or by rounding: whichever stays nearer to the source on texts of another kind.
#pragma once

#include <filesystem>
#include <functional>

#include "quantize/quantize.h"
#include "quantize/quantize_report.h"

namespace loopspec {

struct FitOrRound {
  QuantizeResult written;
  QuantizeReport fitted, rounded;  // against the source
  bool keeps_fitted = true;        // else the folder holds the rounded weights
};

// GPTQ makes a model better on texts like those it was fitted to, and may make it worse on others.
// So both are made: `request` has 4 bits and texts, and `compare` reads the model of a folder
// against the source, over texts of another kind. The one with the smaller distance stays in
// `request.output`; the rounded one waits in its subfolder `rounded` meanwhile. Throws Error.
FitOrRound FitOrRoundModel(
    const Model& model, const QuantizeRequest& request,
    const std::function<QuantizeReport(const std::filesystem::path& folder)>& compare);

}  // namespace loopspec
