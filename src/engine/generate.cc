#include "engine/generate.h"

#include <algorithm>

#include "base/error.h"
#include "base/timer.h"

namespace loopspec {

Generator::Generator(Backend& backend, const StepCost& cost)
    : backend_(backend), ledger_(backend.pages(), backend.options().cells), cost_(cost) {
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

// A prompt in parts, so that the callback can say how far it is and give up. They double until one
// takes a tenth of a second; how a prompt is cut changes no bit.
bool Generator::Prefill(const PrefillPlan& prompt, const PrefillCallback& on_prefill) {
  const size_t total = prompt.tokens.size();
  size_t part = on_prefill ? kPageSize : std::max<size_t>(total, 1);
  for (size_t done = 0; done < total;) {
    if (on_prefill && !on_prefill(static_cast<int64_t>(done), static_cast<int64_t>(total)))
      return false;
    const size_t count = std::min(part, total - done);
    Timer timer;
    backend_.Prefill({prompt.sequence, prompt.start + static_cast<int32_t>(done),
                      prompt.tokens.subspan(done, count)});
    done += count;
    if (timer.Seconds() < 0.1) part *= 2;
  }
  return true;
}

GenerateResult Generator::Run(const DecodeRequest& request, const TokenCallback& on_token,
                              const PrefillCallback& on_prefill) {
  GenerateResult result;
  Timer total;
  CheckLimits(request, backend_.limits());
  LoopSpec decoder(request, backend_.spec(), backend_.options(), ledger_, cost_.cost());
  if (!Prefill(decoder.Prefill(), on_prefill)) decoder.Stop(FinishReason::kCancelled);
  result.times.prefill = total.Seconds();

  Timer decode;
  size_t reported = 0;
  bool stopped = false;  // by the callback
  while (!decoder.finished()) {
    Timer host;
    if (override_) override_(decoder);
    plan_.Clear();
    plan_.recurrences = decoder.StepsToReadout();
    const int64_t planes_before = decoder.statistics().planes;
    decoder.Plan(plan_.recurrences, plan_);
    result.times.host += host.Seconds();
    const StepResult& step = backend_.Wait(backend_.Submit(plan_));
    host.Reset();
    result.times.prelude += step.prelude_seconds;
    result.times.recur += step.recur_seconds;
    result.times.readout += step.readout_seconds;
    if (observer_) observer_(plan_, step);
    if (!plan_.rows.empty()) {
      const int planes = static_cast<int>(decoder.statistics().planes - planes_before);
      const RowPlan& first = plan_.rows.front();
      cost_.Observe(static_cast<int>(plan_.rows.size()), planes / plan_.recurrences,
                    first.position - first.chain_length, step.recur_seconds / plan_.recurrences);
    }
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
  if (decoder.finish_reason() == FinishReason::kError) throw Error(decoder.error());
  result.times.decode = reported > 0 ? decode.Seconds() : 0.0;
  result.tokens.assign(decoder.output().begin(),
                       decoder.output().begin() + static_cast<std::ptrdiff_t>(reported));
  result.finish_reason = stopped ? FinishReason::kStop : decoder.finish_reason();
  result.statistics = decoder.statistics();
  result.trace = decoder.trace();
  return result;
}

}  // namespace loopspec
