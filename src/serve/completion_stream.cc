#include "serve/completion_stream.h"

#include <algorithm>
#include <random>

#include "base/error.h"

namespace loopspec::serve {
namespace {

constexpr int kDefaultCompletionTokens = 16;  // OpenAI's
constexpr int kDefaultGenerateTokens = 128;   // SGLang's

double Between(std::chrono::steady_clock::time_point from,
               std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

uint64_t RandomSeed() {
  std::random_device device;
  // 53 bits, so that a client that reads numbers as doubles can give it back.
  return (uint64_t{device()} << 21 ^ device()) & ((uint64_t{1} << 53) - 1);
}

}  // namespace

// Passes the engine's events on; one for each prompt.
class CompletionStream::Sink final : public EventSink {
 public:
  Sink(std::shared_ptr<CompletionStream> stream, int prompt)
      : stream_(std::move(stream)), prompt_(prompt) {}

  void OnPrompt(std::vector<TokenEvent> tokens) override { Put(0, PromptDone{std::move(tokens)}); }
  void OnToken(int choice, TokenEvent token) override { Put(choice, std::move(token)); }
  void OnSteps(int choice, std::vector<StepEvent> steps) override {
    Put(choice, StepsDone{std::move(steps)});
  }
  void OnFinish(int choice, FinishEvent finish) override { Put(choice, std::move(finish)); }
  void OnError(std::string message, bool busy) override {
    Put(0, ErrorEvent{std::move(message), busy});
  }

 private:
  template <typename T>
  void Put(int choice, T what) {
    stream_->Push({prompt_, choice, Clock::now(), std::move(what)});
  }

  const std::shared_ptr<CompletionStream> stream_;
  const int prompt_;
};

CompletionStream::CompletionStream(Setup setup)
    : core_(std::move(setup.core)),
      engine_(std::move(setup.engine)),
      writer_(std::move(setup.writer)),
      request_(std::move(setup.request)),
      head_(std::move(setup.head)),
      headers_(std::move(setup.headers)),
      write_options_{request_.logprobs, request_.token_details, request_.trace,
                     request_.include_usage},
      record_(std::move(setup.record)),
      start_(setup.start) {}

// ---- Checks ----

void CompletionStream::CheckIds(const std::vector<int32_t>& ids, const std::string& name) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= engine_->facts().vocab) {
      Refuse(name, "{} has token {}, the vocabulary has {}.", name, id, engine_->facts().vocab);
    }
  }
}

std::vector<int32_t> CompletionStream::PromptIds(const PromptInput& prompt,
                                                 const std::string& name) const {
  std::vector<int32_t> ids = prompt.text ? engine_->Tokenize(*prompt.text, true) : prompt.ids;
  if (ids.empty()) Refuse(name, "{} has no tokens.", name);
  CheckIds(ids, name);
  return ids;
}

// Tokens that an answer may have, checked against the context and the server's limit.
int CompletionStream::MaxTokens(int64_t prompt_tokens, const std::string& name) const {
  const int64_t context = engine_->facts().context;
  const auto refuse = [&](std::string message) {
    ApiError error;
    error.message = std::move(message);
    error.param = name;
    error.code = "context_length_exceeded";
    throw ApiException(std::move(error));
  };
  const int64_t least = request_.max_tokens == 0 ? 0 : 1;
  if (prompt_tokens + least > context) {
    refuse(fmt::format("{} has {} tokens, which leaves no room for an answer: the context has {}.",
                       name, prompt_tokens, context));
  }
  const int64_t room = context - prompt_tokens;
  const int64_t limit = core_->options.max_tokens_limit;
  if (request_.max_tokens) {
    if (limit > 0 && *request_.max_tokens > limit) {
      Refuse("max_tokens", "max_tokens is {}, expected at most {}.", *request_.max_tokens, limit);
    }
    if (*request_.max_tokens > room) {
      refuse(
          fmt::format("{} has {} tokens and max_tokens is {}, together more than the context "
                      "of {}.",
                      name, prompt_tokens, *request_.max_tokens, context));
    }
    return *request_.max_tokens;
  }
  int64_t most = room;
  if (request_.endpoint == kCompletions) most = kDefaultCompletionTokens;
  if (request_.endpoint == kGenerate) most = kDefaultGenerateTokens;
  if (limit > 0) most = std::min(most, limit);
  return static_cast<int>(std::min(most, room));
}

// Scores of prompts come all at once and are held until the answer is sent: a hundred long prompts
// would take gigabytes.
void CompletionStream::CheckScores() const {
  if (!request_.echo || request_.logprobs < 0) return;
  const int64_t scores = record_.prompt_tokens * request_.n * (1 + request_.logprobs);
  const int64_t most = core_->options.limits.max_scores;
  if (scores <= most) return;
  Refuse(
      "logprobs",
      "echo asks for {} log-probabilities ({} prompt tokens, n = {}, logprobs = {}), expected at "
      "most {}.",
      scores, record_.prompt_tokens, request_.n, request_.logprobs, most);
}

EngineRequest CompletionStream::ForPrompt(std::vector<int32_t> ids, const std::string& name) const {
  const ModelFacts& facts = engine_->facts();
  const SamplingFields& sampling = request_.sampling;
  EngineRequest out;
  out.id = record_.id;
  out.max_tokens = MaxTokens(static_cast<int64_t>(ids.size()), name);
  out.prompt = std::move(ids);
  out.n = request_.n;
  out.seed = seed_;
  out.temperature = sampling.temperature.value_or(facts.temperature);
  out.top_p = sampling.top_p.value_or(facts.top_p);
  out.min_p = sampling.min_p.value_or(facts.min_p);
  out.top_k = sampling.top_k.value_or(facts.top_k);
  out.repetition_penalty = sampling.repetition_penalty.value_or(facts.repetition_penalty);
  out.presence_penalty = sampling.presence_penalty.value_or(0);
  out.frequency_penalty = sampling.frequency_penalty.value_or(0);
  out.logit_bias = sampling.logit_bias;
  out.coupled = sampling.sampler == "coupled";
  out.speculative = request_.decode != "ar";
  out.depths = request_.depths.value_or(std::vector<int>());
  out.stop = request_.stop;
  out.stop_token_ids = request_.stop_token_ids;
  out.ignore_eos = request_.ignore_eos;
  out.logprobs = request_.logprobs;
  out.trace = request_.trace;
  out.score_prompt = request_.echo && request_.logprobs >= 0;
  return out;
}

std::vector<EngineRequest> CompletionStream::Resolve() {
  const ModelFacts& facts = engine_->facts();
  if (request_.depths) {
    if (request_.decode == "ar") Refuse("depths", "depths goes with decode: loopspec.");
    if (std::find(facts.depths.begin(), facts.depths.end(), *request_.depths) ==
        facts.depths.end()) {
      Refuse("depths",
             "depths is {}, expected auto or one of {}: the server was started with these.",
             Json(*request_.depths).dump(), Json(facts.depths).dump());
    }
  }
  for (const auto& [id, bias] : request_.sampling.logit_bias) CheckIds({id}, "logit_bias");
  CheckIds(request_.stop_token_ids, "stop_token_ids");
  seed_ = request_.seed ? *request_.seed : RandomSeed();

  std::vector<PromptInput> prompts = request_.prompts;
  const char* name = "prompt";
  bool open = false;
  if (request_.endpoint == kChat) {
    name = "messages";
    std::string text;
    try {
      text = engine_->RenderChat(request_.messages, request_.template_arguments);
    } catch (const Error& error) {
      Refuse(name, "{}.", error.what());
    }
    open = EndsInThink(text);
    prompts = {{.text = {}, .ids = engine_->Tokenize(text, false)}};
    if (core_->log.prompts()) record_.prompt = std::move(text);
  } else if (core_->log.prompts()) {
    record_.prompt = PromptText(0);
  }

  std::vector<EngineRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string path = prompts.size() > 1 ? fmt::format("{}[{}]", name, i) : name;
    requests.push_back(ForPrompt(PromptIds(prompts[i], path), path));
    prompt_ids_.push_back(requests.back().prompt);
    record_.prompt_tokens += static_cast<int64_t>(prompt_ids_.back().size());
  }
  CheckScores();
  choices_.resize(requests.size() * static_cast<size_t>(request_.n));
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    choice.part.index = static_cast<int>(i);
    choice.part.first = true;
    choice.part.split_reasoning = request_.reasoning == ReasoningFormat::kReasoningContent;
    choice.splitter = ReasoningSplitter(open);
    if (request_.echo)
      AddText(choice, PromptText(i / static_cast<size_t>(request_.n)), false, nullptr);
  }
  unfinished_ = static_cast<int>(choices_.size());
  record_.choices = unfinished_;
  return requests;
}

std::string CompletionStream::PromptText(size_t index) const {
  const PromptInput& prompt = request_.prompts[index];
  return prompt.text ? *prompt.text : engine_->Detokenize(prompt.ids);
}

void CompletionStream::Run() {
  std::vector<EngineRequest> requests = Resolve();
  const auto self = shared_from_this();
  const auto engine =
      engine_;  // the member goes when the request is over, which may be before long
  writer_->OnGone([self] { self->ClientGone(); });
  writer_->OnDrained([self] { self->Pump(); });
  for (size_t i = 0; i < requests.size(); ++i) {
    std::unique_ptr<EngineTask> task;
    try {
      task =
          engine->Submit(std::move(requests[i]), std::make_shared<Sink>(self, static_cast<int>(i)));
    } catch (...) {
      // The caller answers, unless the client has hung up meanwhile.
      const bool answer = Claim();
      CancelTasks();
      if (!answer) return;
      engine_.reset();
      throw;
    }
    std::unique_lock lock(mutex_);
    if (cancelled_) {
      lock.unlock();
      task->Cancel();
      return;
    }
    if (!done_) tasks_.push_back(std::move(task));
  }
  writer_->After(core_->options.request_timeout, [self] { self->TimeOut(); });
  if (request_.stream) {
    writer_->After(core_->options.begin_stream_after, [self] { self->BeginStream(); });
  }
}

// ---- Events of the engine ----

void CompletionStream::Push(Event event) {
  if (over_) return;
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    if (std::exchange(scheduled_, true)) return;
  }
  writer_->Post([self = shared_from_this()] { self->Pump(); });
}

void CompletionStream::Pump() {
  if (over_) return;
  if (begun_ && writer_->full()) return;  // OnDrained comes back to this
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    scheduled_ = false;
  }
  try {
    for (Event& event : events) {
      if (over_) return;
      Absorb(event);
    }
    if (!over_) Emit();
  } catch (const std::exception& error) {
    FailWith(Internal(error.what()));
  }
}

void CompletionStream::Absorb(Event& event) {
  const size_t first = static_cast<size_t>(event.prompt) * static_cast<size_t>(request_.n);
  if (auto* error = std::get_if<ErrorEvent>(&event.what)) {
    return FailWith(error->busy ? Unavailable(error->message, "no_room")
                                : Internal(error->message));
  }
  if (auto* prompt = std::get_if<PromptDone>(&event.what)) {
    for (TokenEvent& token : prompt->tokens) FillPieces(token);
    for (int i = 0; i < request_.n; ++i) {
      ChoicePart& part = choices_[first + static_cast<size_t>(i)].part;
      part.tokens.insert(part.tokens.begin(), prompt->tokens.begin(), prompt->tokens.end());
    }
    return;
  }
  Choice& choice = choices_.at(first + static_cast<size_t>(event.choice));
  if (choice.statistics) return;  // it had finished
  choice.touched = true;
  if (auto* token = std::get_if<TokenEvent>(&event.what)) {
    return AbsorbToken(choice, *token, event.time);
  }
  if (auto* done = std::get_if<StepsDone>(&event.what)) {
    for (StepEvent& step : done->steps) {
      if (step.token >= 0) step.piece = engine_->TokenPiece(step.token);
      choice.part.steps.push_back(std::move(step));
    }
    return;
  }
  FinishEvent& finish = std::get<FinishEvent>(event.what);
  AddText(choice, finish.text, true, nullptr);
  choice.statistics = finish.statistics;
  choice.part.finish = std::move(finish);
  --unfinished_;
  last_token_ = event.time;
}

void CompletionStream::AbsorbToken(Choice& choice, TokenEvent& token, Clock::time_point time) {
  ++choice.tokens;
  if (choice.last_token) {
    core_->metrics.NextToken(Between(*choice.last_token, time));
  } else {
    core_->metrics.FirstToken(Between(start_, time));
    if (!first_token_) first_token_ = time;
  }
  choice.last_token = last_token_ = time;
  if (request_.endpoint == kGenerate) choice.part.ids.push_back(token.id);
  std::string shown;
  AddText(choice, token.text, false, &shown);
  if (request_.logprobs < 0 && !request_.token_details) return;
  token.text = std::move(shown);
  if (request_.logprobs >= 0) FillPieces(token);
  if (request_.endpoint == kGenerate && request_.logprobs >= 0) {
    choice.part.all_tokens.push_back(token);
  }
  choice.part.tokens.push_back(std::move(token));
}

void CompletionStream::FillPieces(TokenEvent& token) const {
  token.piece = engine_->TokenPiece(token.id);
  for (TokenCandidate& candidate : token.top) candidate.piece = engine_->TokenPiece(candidate.id);
}

// `shown`: where the part that can be shown goes besides.
void CompletionStream::AddText(Choice& choice, std::string_view bytes, bool last,
                               std::string* shown) {
  std::string text = choice.gate.Push(bytes);
  if (last) text += choice.gate.Finish();
  if (choice.part.split_reasoning) {
    const auto add = [&](const ReasoningSplitter::Parts& parts) {
      choice.part.reasoning += parts.reasoning;
      choice.part.text += parts.content;
    };
    add(choice.splitter.Push(text));
    if (last) add(choice.splitter.Finish());
  } else {
    choice.part.text += text;
  }
  if (request_.endpoint == kGenerate) choice.part.whole_text += text;
  if (shown != nullptr) *shown = std::move(text);
}

// ---- The answer ----

void CompletionStream::Emit() {
  if (request_.stream) {
    WriteStreamEvents();
  } else if (unfinished_ == 0) {
    SendWhole();
  }
}

void CompletionStream::BeginStream() {
  if (begun_ || over_) return;
  begun_ = true;
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = headers_;
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx passes events on as they come
  writer_->Begin(std::move(head), std::string(kStreamKeepAlive));
}

void CompletionStream::WriteStreamEvents() {
  // The last choice to end carries the summary.
  const Choice* last = nullptr;
  for (const Choice& choice : choices_) {
    if (choice.touched && choice.part.finish) last = &choice;
  }
  std::string out;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    ChoicePart& part = choice.part;
    if (!std::exchange(choice.touched, false)) continue;
    if (part.text.empty() && part.reasoning.empty() && part.tokens.empty() && part.steps.empty() &&
        !part.finish)
      continue;
    RunSummary summary;
    const bool ends = unfinished_ == 0 && &choice == last;
    if (ends) summary = Summary();
    part.text_offset = choice.offset;
    if (request_.endpoint == kGenerate) {
      OrderedJson event = GenerateJson(head_, part, ChoiceUsage(choice, i),
                                       ends ? &summary : nullptr, Seconds(), write_options_);
      if (choices_.size() > 1) event["index"] = part.index;
      out += ServerSentEvent(event);
    } else {
      out +=
          ServerSentEvent(CompletionEvent(head_, part, ends ? &summary : nullptr, write_options_));
    }
    for (const TokenEvent& token : part.tokens) choice.offset += CountStarts(token.piece);
    part.first = false;
    part.text.clear();
    part.reasoning.clear();
    part.tokens.clear();
    part.steps.clear();
  }
  if (out.empty()) return;
  BeginStream();
  if (unfinished_ > 0) {
    writer_->Write(out);
    return;
  }
  if (request_.include_usage) out += ServerSentEvent(UsageEvent(head_, TotalUsage()));
  out += kStreamDone;
  if (!Claim()) return;
  Record(200, "", "");
  DropTasks();
  writer_->Write(out);
  writer_->End();
}

void CompletionStream::SendWhole() {
  HttpResponse response;
  response.headers = headers_;
  const RunSummary summary = Summary();
  if (request_.endpoint == kGenerate) {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      list.push_back(GenerateJson(head_, choices_[i].part, ChoiceUsage(choices_[i], i), &summary,
                                  Seconds(), write_options_));
    }
    response.body = Dump(request_.batch || request_.n > 1 ? list : list[0]);
  } else {
    std::vector<ChoicePart> parts;
    for (Choice& choice : choices_) parts.push_back(std::move(choice.part));
    response.body = Dump(CompletionBody(head_, parts, TotalUsage(), summary, write_options_));
    for (size_t i = 0; i < parts.size(); ++i) choices_[i].part.finish = std::move(parts[i].finish);
  }
  if (!Claim()) return;
  Record(200, "", "");
  DropTasks();
  writer_->Send(std::move(response));
}

Usage CompletionStream::TotalUsage() const {
  Usage usage;
  for (const auto& ids : prompt_ids_) usage.prompt_tokens += static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    usage.completion_tokens +=
        choice.statistics ? choice.statistics->completion_tokens : choice.tokens;
    // The choices of a prompt share it.
    if (choice.statistics && i % static_cast<size_t>(request_.n) == 0) {
      usage.cached_tokens += choice.statistics->cached_tokens;
    }
  }
  return usage;
}

Usage CompletionStream::ChoiceUsage(const Choice& choice, size_t index) const {
  Usage usage;
  usage.prompt_tokens =
      static_cast<int64_t>(prompt_ids_[index / static_cast<size_t>(request_.n)].size());
  usage.completion_tokens =
      choice.statistics ? choice.statistics->completion_tokens : choice.tokens;
  if (choice.statistics) usage.cached_tokens = choice.statistics->cached_tokens;
  return usage;
}

RunSummary CompletionStream::Summary() const {
  RunSummary summary;
  summary.seed = seed_;
  double tokens = 0,
         passes = 0;  // full passes through the model that autoregressive decoding needs
  for (const Choice& choice : choices_) {
    if (!choice.statistics) continue;
    const EngineStatistics& statistics = *choice.statistics;
    summary.accepted.resize(std::max(summary.accepted.size(), statistics.accepted.size()));
    for (size_t i = 0; i < statistics.accepted.size(); ++i) {
      summary.accepted[i] += statistics.accepted[i];
    }
    summary.fallback += statistics.fallback;
    summary.early += statistics.early;
    const auto count = static_cast<double>(statistics.completion_tokens);
    tokens += count;
    if (statistics.gamma > 0) passes += count / statistics.gamma;
  }
  summary.gamma = passes > 0 ? tokens / passes : 0;
  summary.cached_tokens = TotalUsage().cached_tokens;
  if (first_token_ && last_token_ && *last_token_ > *first_token_) {
    summary.tokens_per_second = (tokens - 1) / Between(*first_token_, *last_token_);
  }
  return summary;
}

double CompletionStream::Seconds() const {
  return Between(start_, Clock::now());
}

// ---- Ends ----

void CompletionStream::ClientGone() {
  if (!Claim()) return;
  Record(499, "cancelled", "the client hung up");
  CancelTasks();
}

void CompletionStream::TimeOut() {
  if (over_) return;
  ApiError error;
  error.status = 504;
  error.type = "timeout_error";
  error.code = "request_timeout";
  error.message = fmt::format("The answer was not complete after {} ms.",
                              core_->options.request_timeout.count());
  FailWith(error);
}

void CompletionStream::FailWith(const ApiError& error) {
  if (!Claim()) return;
  Record(error.status, "error", error.message);
  CancelTasks();
  if (begun_) {
    writer_->Write(ServerSentEvent(ErrorJson(error)) + std::string(kStreamDone));
    return writer_->End();
  }
  HttpResponse response;
  response.status = error.status;
  response.headers = headers_;
  if (error.retry_after > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  }
  response.body = Dump(ErrorJson(error));
  writer_->Send(std::move(response));
}

// When all are done. A task may know its sink, which holds this stream.
void CompletionStream::DropTasks() {
  std::vector<std::unique_ptr<EngineTask>> tasks;
  const std::lock_guard lock(mutex_);
  done_ = true;
  tasks.swap(tasks_);
}

void CompletionStream::CancelTasks() {
  std::vector<std::unique_ptr<EngineTask>> tasks;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    tasks.swap(tasks_);
    events_.clear();
  }
  for (const auto& task : tasks) task->Cancel();
}

// An empty outcome: what ended the first choice.
void CompletionStream::Record(int status, std::string outcome, std::string error) {
  const Usage usage = TotalUsage();
  record_.status = status;
  record_.seconds = Seconds();
  record_.outcome = std::move(outcome);
  if (record_.outcome.empty() && choices_[0].part.finish) {
    record_.outcome = choices_[0].part.finish->reason;
  }
  record_.error = std::move(error);
  record_.completion_tokens = usage.completion_tokens;
  record_.cached_tokens = usage.cached_tokens;
  if (first_token_) record_.first_token_seconds = Between(start_, *first_token_);
  record_.gamma = Summary().gamma;
  core_->metrics.Finished(record_);
  core_->log.Request(record_);
  core_->Leave();
  engine_.reset();
}

}  // namespace loopspec::serve
