#include "engine/session.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/field_error.h"
#include "base/log.h"
#include "base/random_seed.h"
#include "decode/depths.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "fields/request_fields.h"

namespace loopspec {

Session::Session(const EngineOptions& options)
    : Session(options, std::make_shared<const LoadedModel>(options)) {}

Session::Session(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded)
    : options_(options), loaded_(std::move(loaded)), depths_(options.depths) {
  defaults_ = ReadGenerationDefaults(loaded_->folder());
  if (!defaults_.ignored.empty())
    LogWarning("generation_config.json of {} asks for what is not done here: {}",
               loaded_->folder().string(), fmt::join(defaults_.ignored, ", "));
  ChosenDepths chosen = ChooseDefaultDepths(loaded_->folder(), loaded_->model(), options);
  if (depths_.empty()) {
    depths_.push_back(chosen.depths);
    // The best depths of greedy and of sampled text may differ.
    if (chosen.sampled_depths != chosen.depths) depths_.push_back(chosen.sampled_depths);
    sampled_default_ = depths_.size() - 1;
  }
  calibration_ = std::move(chosen.calibration);
  std::vector<int> all;
  for (const std::vector<int>& depths : depths_) {
    CheckDepths(depths, spec().recurrence);
    all.insert(all.end(), depths.begin(), depths.end());
  }
  for (const int recurrence : options.recurrences) {
    if (recurrence < 1 || recurrence > spec().recurrence)
      throw FieldError(
          "recurrences", fmt::format("{}", fmt::join(options.recurrences, ",")),
          fmt::format("numbers from 1 to {}, the model's recurrences here", spec().recurrence));
    all.push_back(recurrence);
  }
  // A readout without layers keeps no keys: every depth can be one.
  for (int depth = 1; spec().coda_layers == 0 && depth < spec().recurrence; ++depth)
    all.push_back(depth);
  size_t drafts = 1;
  for (const std::vector<int>& depths : depths_) drafts = std::max(drafts, depths.size());
  backend_ = MakeBackend(loaded_->model(), options, all, static_cast<int>(drafts));
}

Session::Session(const EngineOptions& options, std::shared_ptr<const LoadedModel> loaded,
                 SessionParts parts)
    : options_(options),
      loaded_(std::move(loaded)),
      depths_(options.depths),
      backend_(std::move(parts.backend)),
      cost_(parts.cost) {
  defaults_.sampling = std::move(parts.sampling);
}

SchedulerOptions Session::scheduler_options() {
  SchedulerOptions scheduler;
  scheduler.max_running = options_.max_running;
  scheduler.max_queued = options_.max_queued;
  scheduler.max_rows = options_.max_rows;
  scheduler.prefill_chunk = options_.prefill_chunk;
  scheduler.cache_bytes = options_.cache_bytes;
  scheduler.cost = cost_ ? *cost_ : LoadStepCost(*backend_);
  // Perhaps they were measured beside another program: the next start measures again.
  if (!cost_) scheduler.on_wrong_cost = [this] { ForgetStepCost(*backend_); };
  if (loaded_->has_tokenizer()) scheduler.tokenizer = &loaded_->tokenizer();
  return scheduler;
}

ModelFacts Session::Facts() const {
  ModelFacts facts;
  facts.name = options_.model;
  facts.device = backend_->device();
  facts.compute = backend_->options().compute == ComputeMode::kF32 ? "f32" : "bf16";
  facts.kv_type = NameOfKvType(backend_->options());
  facts.context = longest();
  facts.parameters = loaded_->model().weights.parameters;
  facts.vocab = spec().vocab;
  facts.recurrence = spec().recurrence;
  facts.trained_recurrence = spec().trained_recurrence;
  facts.recurrences = backend_->options().readout_depths;
  facts.depths = depths_;
  facts.sampling = defaults_.sampling;
  facts.sampling_chosen = defaults_.chosen;
  facts.max_queued = options_.max_queued;
  facts.weight_bytes = backend_->weight_bytes();
  facts.kv_bytes = backend_->pages() * backend_->page_bytes();
  facts.device_bytes = backend_->device_bytes();
  const SpecialTokens& special = loaded_->special();
  facts.eos_ids = special.eos;
  if (loaded_->has_chat_template()) facts.chat_template = loaded_->chat_template().source();
  facts.has_tokenizer = loaded_->has_tokenizer();
  if (!facts.has_tokenizer) return facts;
  const auto name = [&](std::optional<int32_t> id) -> std::optional<std::string> {
    if (!id) return std::nullopt;
    return std::string(loaded_->tokenizer().IdToToken(*id));
  };
  facts.bos_token = name(special.bos);
  facts.pad_token = name(special.pad);
  if (!special.eos.empty()) facts.eos_token = name(special.eos[0]);
  return facts;
}

int64_t Session::longest() const {
  const int64_t pages = backend_->pages() - backend_->window_pages();
  return std::min<int64_t>(spec().max_positions, pages * kPageSize);
}

std::vector<int> Session::ChooseDepths(const Request& request, bool greedy) const {
  if (request.decoding != Decoding::kLoopSpec) {
    if (request.depths && !request.depths->empty())
      throw FieldError("depths", fmt::format("{}", fmt::join(*request.depths, ",")),
                       "none, since they go with LoopSpec decoding alone");
    return {};
  }
  if (!request.depths) {
    std::vector<int> depths = depths_[greedy ? 0 : sampled_default_];
    if (request.recurrence)  // drafts come from before the depth that decides
      std::erase_if(depths, [&](int depth) { return depth >= *request.recurrence; });
    return depths;
  }
  if (std::find(depths_.begin(), depths_.end(), *request.depths) == depths_.end()) {
    std::vector<std::string> known;
    for (const std::vector<int>& depths : depths_)
      known.push_back(fmt::format("{}", fmt::join(depths, ",")));
    throw FieldError("depths", fmt::format("{}", fmt::join(*request.depths, ",")),
                     fmt::format("{}, which are loaded", fmt::join(known, " or ")));
  }
  return *request.depths;
}

ResolvedRequest Session::Resolve(const Request& request) const {
  ResolvedRequest out;
  out.prompt = loaded_->EncodePrompt(request);
  const auto prompt = static_cast<int64_t>(out.prompt.size());
  out.sampling = request.sampling.value_or(defaults_.sampling);
  out.depths = ChooseDepths(request, out.sampling.greedy());
  out.recurrence = request.recurrence.value_or(spec().recurrence);
  CheckRecurrence(out.recurrence, spec(), backend_->options().readout_depths);
  // How often a draft is what depth R says; of other depths nothing is known.
  if (out.recurrence == spec().recurrence)
    out.prior = calibration_.Prior(out.depths, out.sampling.greedy());
  if (request.laboratory) out.laboratory = *request.laboratory;
  if (out.laboratory.prior) out.prior = *out.laboratory.prior;
  out.max_rows = request.max_rows;
  out.group = request.group;
  if (request.decoding == Decoding::kLookup && !request.guesses)
    throw FieldError("guesses", "off", "on, since lookup decoding is guesses alone");
  out.guesses = request.decoding != Decoding::kAutoregressive && request.guesses;
  out.max_tokens = request.max_tokens.value_or(
      static_cast<int>(std::clamp<int64_t>(longest() - prompt, 1, kDefaultTokens)));
  out.seed = request.seed ? *request.seed : RandomSeed();
  out.choices = request.choices;
  CheckNumbers(request);
  out.logprobs = request.logprobs;
  out.prompt_logprobs = request.prompt_logprobs;
  out.on_logits = request.on_logits;
  out.progress = request.progress;
  out.trace = request.trace;
  for (const int32_t token : request.stop_tokens) {
    if (token < 0 || token >= spec().vocab)
      throw FieldError("stop_token_ids", fmt::format("{}", token),
                       fmt::format("0 to {}, the last of the vocabulary", spec().vocab - 1));
  }
  out.stop_tokens = request.stop_tokens;
  if (!request.ignore_eos)
    out.stop_tokens.insert(out.stop_tokens.end(), loaded_->special().eos.begin(),
                           loaded_->special().eos.end());
  if (request.ignore_eos && request.grammar.kind != GrammarKind::kNone)
    throw FieldError("ignore_eos", "on", "off, since a grammar says where the text ends");
  const bool chat = !request.messages.empty() || !request.messages_json.empty();
  out.grammar = grammars_->StartAfter(out.prompt, request.grammar, chat);
  if (request.max_thinking_tokens)
    out.thinking = grammars_->LimitThinking(out.prompt, *request.max_thinking_tokens);
  if (out.grammar || out.thinking)
    out.encode = [loaded = loaded_](std::string_view text) {
      return loaded->tokenizer().Encode(text, false);
    };
  if (!request.stop.empty()) loaded_->tokenizer();  // cannot do without: it says why there is none
  out.stop = request.stop;
  if (request.hide_stop_tokens) out.hidden_tokens = request.stop_tokens;
  out.show_special = request.show_special;
  if (!(request.weight > 0))
    Fail("the weight of a tenant is {}, expected more than 0", request.weight);
  out.tenant = request.tenant;
  out.weight = request.weight;
  out.priority = request.priority;
  return out;
}

}  // namespace loopspec
