#include "quantize/fit_or_round.h"

#include "base/check.h"
#include "base/error.h"

namespace loopspec {
namespace {

// A folder that is removed whatever happens.
struct TemporaryOutput {
  ~TemporaryOutput() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  std::filesystem::path folder;
};

}  // namespace

FitOrRound FitOrRoundModel(
    const Model& model, const QuantizeRequest& request,
    const std::function<QuantizeReport(const std::filesystem::path& folder)>& compare) {
  LOOPSPEC_CHECK(request.bits == 4 && !request.texts.empty());
  FitOrRound result;
  result.written = QuantizeModel(model, request);
  QuantizeRequest rounding = request;
  rounding.texts.clear();
  rounding.output = request.output / "rounded";
  std::error_code error;
  std::filesystem::remove_all(rounding.output, error);
  const TemporaryOutput temporary{rounding.output};
  QuantizeModel(model, rounding);
  result.fitted = compare(request.output);
  result.rounded = compare(rounding.output);
  result.keeps_fitted = result.fitted.distance <= result.rounded.distance;
  if (!result.keeps_fitted) {
    std::filesystem::rename(rounding.output / "model.safetensors",
                            request.output / "model.safetensors", error);
    if (error)
      Fail("cannot replace {}: {}", (request.output / "model.safetensors").string(),
           error.message());
  }
  return result;
}

}  // namespace loopspec
