#include "engine/session.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "decode/depths.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"

namespace loopspec {
namespace {

// 53 bits: a seed that survives every JSON reader.
uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> 11;
}

}  // namespace

Session::Session(const EngineOptions& options)
    : Session(options, std::make_shared<const LoadedModel>(options)) {
  defaults_ = ReadGenerationDefaults(loaded().folder());
  if (!defaults_.ignored.empty())
    LogWarning("generation_config.json of {} asks for what is not done here: {}",
               loaded().folder().string(), fmt::join(defaults_.ignored, ", "));
}

Session::Session(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded)
    : options_(options), loaded_(std::move(loaded)), depths_(options.depths) {
  ChosenDepths chosen = ChooseDefaultDepths(loaded_->folder(), loaded_->model(), options.device);
  if (depths_.empty()) depths_.push_back(chosen.depths);
  calibration_ = std::move(chosen.calibration);
  std::vector<int> all;
  for (const std::vector<int>& depths : depths_) {
    CheckDepths(depths, spec().recurrence);
    all.insert(all.end(), depths.begin(), depths.end());
  }
  backend_ = MakeBackend(loaded_->model(), options, all);
}

SchedulerOptions Session::scheduler_options() {
  SchedulerOptions scheduler;
  scheduler.max_running = options_.max_running;
  scheduler.max_queued = options_.max_queued;
  scheduler.max_rows = options_.max_rows;
  scheduler.prefill_chunk = options_.prefill_chunk;
  scheduler.cache_bytes = options_.cache_bytes;
  scheduler.cost = LoadStepCost(*backend_);
  return scheduler;
}

double Session::GammaOf(const ChoiceResult& result, const std::vector<int>& depths) const {
  return Gamma(result.statistics.accepted, result.statistics.fallback, depths, spec().recurrence);
}

int64_t Session::longest() const {
  return std::min<int64_t>(spec().max_positions, int64_t{backend_->pages()} * kPageSize);
}

std::vector<int> Session::ChooseDepths(const Request& request) const {
  if (request.decoding != Decoding::kLoopSpec) {
    if (request.depths && !request.depths->empty())
      Fail("depths {} go with LoopSpec decoding alone", fmt::join(*request.depths, ","));
    return {};
  }
  if (!request.depths) return depths_[0];
  if (std::find(depths_.begin(), depths_.end(), *request.depths) == depths_.end()) {
    std::vector<std::string> known;
    for (const std::vector<int>& depths : depths_)
      known.push_back(fmt::format("{}", fmt::join(depths, ",")));
    Fail("depths {} are not loaded, expected {}", fmt::join(*request.depths, ","),
         fmt::join(known, " or "));
  }
  return *request.depths;
}

Submission Session::Prepare(const Request& request) const {
  Submission submission;
  DecodeRequest& decode = submission.request;
  decode.prompt = loaded_->EncodePrompt(request);
  const auto prompt = static_cast<int64_t>(decode.prompt.size());
  decode.sampling = request.sampling.value_or(defaults_.sampling);
  decode.depths = ChooseDepths(request);
  decode.prior = calibration_.Prior(decode.depths, decode.sampling.greedy());
  decode.group = 0;
  if (request.decoding != Decoding::kAutoregressive) decode.early = EarlyChildren::kLookup;
  decode.max_tokens = request.max_tokens.value_or(
      static_cast<int>(std::clamp<int64_t>(longest() - prompt, 1, kDefaultTokens)));
  decode.seed = request.seed ? *request.seed : RandomSeed();
  decode.logprobs = request.logprobs;
  for (const int32_t token : request.stop_tokens) {
    if (token < 0 || token >= spec().vocab)
      Fail("stop token {} is outside the vocabulary of {}", token, spec().vocab);
  }
  decode.stop_tokens = request.stop_tokens;
  if (!request.ignore_eos)
    decode.stop_tokens.insert(decode.stop_tokens.end(), loaded_->special().eos.begin(),
                              loaded_->special().eos.end());
  submission.choices = request.choices;
  submission.prompt_logprobs = request.prompt_logprobs;
  // Stop strings cannot do without: then it says why not.
  if (loaded_->has_tokenizer() || !request.stop.empty())
    submission.tokenizer = &loaded_->tokenizer();
  submission.text.skip_special = !request.show_special;
  submission.text.stop = request.stop;
  return submission;
}

}  // namespace loopspec
