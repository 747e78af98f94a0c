#include "engine/generate.h"

#include <algorithm>

#include "base/timer.h"

namespace loopspec {

Generator::Generator(Backend& backend)
    : backend_(backend), ledger_(backend.pages(), backend.options().cells) {
  // Room for the largest step there can be, so that none allocates: every cell a row, every row
  // with a full chain.
  const auto rows = static_cast<size_t>(backend.options().cells);
  const auto chain = std::min<size_t>(64, rows);  // far longer than most
  plan_.sequences.reserve(1);
  plan_.commits.reserve(rows);
  plan_.rows.reserve(rows);
  plan_.readouts.reserve(rows);
  plan_.chains.reserve(rows * chain);
}

GenerateResult Generator::Run(const DecodeRequest& request, const TokenCallback& on_token) {
  GenerateResult result;
  Timer total;
  LoopSpec decoder(request, backend_.spec(), backend_.options(), ledger_);
  const PrefillPlan prefill = decoder.Prefill();
  if (!prefill.tokens.empty()) backend_.Prefill(prefill);
  result.times.prefill = total.Seconds();

  Timer decode;
  size_t reported = 0;
  bool stopped = false;  // by the callback
  while (!decoder.finished()) {
    Timer host;
    plan_.Clear();
    plan_.recurrences = decoder.StepsToReadout();
    decoder.Plan(plan_.recurrences, plan_);
    result.times.host += host.Seconds();
    const StepResult& step = backend_.Wait(backend_.Submit(plan_));
    host.Reset();
    result.times.prelude += step.prelude_seconds;
    result.times.recur += step.recur_seconds;
    result.times.readout += step.readout_seconds;
    if (observer_) observer_(plan_, step);
    decoder.Absorb(step.decisions);
    result.times.host += host.Seconds();
    for (; reported < decoder.output().size(); ++reported) {
      if (reported == 0) {
        result.times.first_token = total.Seconds();
        decode.Reset();
      }
      if (!on_token || on_token(decoder.output()[reported])) continue;
      // What the step has decided beyond this token is not part of the text.
      stopped = true;
      decoder.Stop(FinishReason::kStop);
      ++reported;
      break;
    }
  }
  result.times.decode = reported > 0 ? decode.Seconds() : 0.0;
  result.tokens.assign(decoder.output().begin(),
                       decoder.output().begin() + static_cast<std::ptrdiff_t>(reported));
  result.finish_reason = stopped ? FinishReason::kStop : decoder.finish_reason();
  result.statistics = decoder.statistics();
  result.trace = decoder.trace();
  return result;
}

}  // namespace loopspec
