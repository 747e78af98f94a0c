#include "serve/loaded_engine.h"

#include <charconv>
#include <ctime>
#include <mutex>

#include "base/error.h"
#include "base/json.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/token_stream.h"
#include "engine/session.h"
#include "serve/api_error.h"
#include "text/bpe.h"
#include "text/unicode.h"

namespace loopspec::serve {
namespace {

// Passes the events of a TokenStream on to a sink as they come.
class Reader : public std::enable_shared_from_this<Reader> {
 public:
  Reader(std::shared_ptr<TokenStream> tokens, std::shared_ptr<EventSink> sink,
         EngineRequest request, std::vector<int> depths, const Session& session)
      : tokens_(std::move(tokens)),
        sink_(std::move(sink)),
        request_(std::move(request)),
        depths_(std::move(depths)),
        session_(session) {}

  void Start() {
    tokens_->OnReady([self = shared_from_this()] { self->Drain(); });
  }

 private:
  // The engine's thread, or at first the one that submitted.
  void Drain() {
    const std::lock_guard lock(mutex_);
    StreamEvent event;
    for (;;) {
      const TokenStream::Status status = tokens_->Next(event, std::chrono::milliseconds(0));
      if (status == TokenStream::Status::kTimeout) return;
      if (status == TokenStream::Status::kDone) break;
      if (sink_) Pass(event);
    }
    sink_.reset();
    tokens_->OnReady({});  // which holds this
  }

  void Pass(StreamEvent& event) {
    switch (event.kind) {
      case StreamEvent::Kind::kPrompt:
        if (request_.score_prompt) sink_->OnPrompt(Prompt());
        return;
      case StreamEvent::Kind::kToken: {
        TokenEvent token;
        token.id = event.token.token;
        token.text = std::move(event.text);
        token.source = event.token.source;
        token.early = event.token.early;
        if (request_.logprobs >= 0) {
          token.logprob = event.token.logprob;
          for (const auto& entry : event.token.top) {
            token.top.push_back({entry.token, entry.logprob});
          }
        }
        return sink_->OnToken(event.choice, std::move(token));
      }
      case StreamEvent::Kind::kPrefilled:  // not asked for
        return;
      case StreamEvent::Kind::kSteps:
        return sink_->OnSteps(event.choice, Steps(event.steps));
      case StreamEvent::Kind::kEnd:
        return End(event.choice);
    }
  }

  std::vector<TokenEvent> Prompt() const {
    std::vector<TokenEvent> list(1);
    list[0].id = request_.prompt[0];
    for (const PromptLogprob& score : tokens_->prompt_logprobs()) {
      TokenEvent& token = list.emplace_back();
      token.id = score.token;
      token.logprob = score.logprob;
      for (const auto& entry : score.top) token.top.push_back({entry.token, entry.logprob});
    }
    return list;
  }

  static std::vector<StepEvent> Steps(const std::vector<TraceEvent>& trace) {
    std::vector<StepEvent> steps;
    steps.reserve(trace.size());
    for (const TraceEvent& event : trace) {
      steps.push_back({NameOf(event.kind), event.step, event.branch, event.parent, event.token,
                       event.position, event.depth, event.proposal});
    }
    return steps;
  }

  void End(int choice) {
    const ChoiceResult result = tokens_->result(choice);
    if (result.finish_reason == FinishReason::kError) return sink_->OnError(result.error, false);
    if (result.finish_reason == FinishReason::kCancelled) {
      return sink_->OnError("The request was cancelled.", true);
    }
    FinishEvent finish;
    finish.reason = NameOf(result.finish_reason);
    EngineStatistics& statistics = finish.statistics;
    statistics.completion_tokens = result.decoded_tokens;
    statistics.cached_tokens = result.cached_tokens;
    statistics.accepted = result.statistics.accepted;
    statistics.fallback = result.statistics.fallback;
    statistics.early = result.statistics.early;
    statistics.gamma = session_.GammaOf(result, depths_);
    statistics.queue_seconds = result.queue_seconds;
    statistics.prefill_seconds = result.times.prefill;
    statistics.decode_seconds = result.times.decode;
    sink_->OnFinish(choice, std::move(finish));
  }

  std::mutex mutex_;
  const std::shared_ptr<TokenStream> tokens_;
  std::shared_ptr<EventSink> sink_;
  const EngineRequest request_;
  const std::vector<int> depths_;
  const Session& session_;
};

class StreamTask final : public EngineTask {
 public:
  explicit StreamTask(std::shared_ptr<TokenStream> tokens) : tokens_(std::move(tokens)) {}
  void Cancel() override { tokens_->Cancel(); }

 private:
  const std::shared_ptr<TokenStream> tokens_;
};

// A token's own bytes. Decoded by itself a token that is part of a character becomes U+FFFD; then
// its name in the vocabulary says which bytes it stands for.
std::string Piece(const Tokenizer& tokenizer, int32_t id) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  const std::string text = tokenizer.Decode(std::span(&id, 1), false);
  if (text.find(kReplacement) == std::string::npos) return text;
  const std::string_view name = tokenizer.IdToToken(id);
  std::string bytes;
  if (name.size() == 6 && name.substr(0, 3) == "<0x") {
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(name.data() + 3, name.data() + 5, byte, 16);
    if (error == std::errc() && end == name.data() + 5)
      return std::string(1, static_cast<char>(byte));
  }
  for (size_t at = 0; at < name.size();) {
    const CodePoint c = DecodeUtf8(name, at);
    const int byte = ByteAlphabet::Get().Byte(c.value);
    if (byte < 0) return text;
    bytes.push_back(static_cast<char>(byte));
    at += static_cast<size_t>(c.length);
  }
  return bytes;
}

class LoadedEngine final : public CompletionEngine {
 public:
  explicit LoadedEngine(const LoadOptions& options)
      : session_(options.engine), scheduler_(session_.backend(), session_.scheduler_options()) {
    ReadFacts(options);
    scheduler_.Start();
    if (options.warm_up) WarmUp();
  }

  const ModelFacts& facts() const override { return facts_; }

  std::unique_ptr<EngineTask> Submit(EngineRequest request,
                                     std::shared_ptr<EventSink> sink) override {
    std::shared_ptr<TokenStream> tokens;
    std::vector<int> depths;
    try {
      Submission submission = session_.Prepare(ToRequest(request));
      submission.request.trace = request.trace;
      depths = submission.request.depths;
      tokens = scheduler_.Submit(submission);
    } catch (const QueueFull& full) {
      throw ApiException(Busy(full.what()));
    } catch (const Error& error) {
      Refuse("", "{}", error.what());
    }
    std::make_shared<Reader>(tokens, std::move(sink), std::move(request), std::move(depths),
                             session_)
        ->Start();
    return std::make_unique<StreamTask>(std::move(tokens));
  }

  EngineMetrics metrics() const override {
    const SchedulerState state = scheduler_.state();
    EngineMetrics metrics;
    metrics.running = state.prefilling + state.decoding;
    metrics.waiting = state.waiting + state.preempted;
    if (state.pages > 0)
      metrics.kv_usage = 1.0 - static_cast<double>(state.pages_free) / state.pages;
    if (state.cells > 0)
      metrics.cells_usage = 1.0 - static_cast<double>(state.cells_free) / state.cells;
    metrics.preemptions = state.preemptions;
    metrics.prefix_queries = state.prompt_tokens;
    metrics.prefix_hits = state.cached_tokens;
    metrics.accepted = state.accepted;
    metrics.fallback = state.fallback;
    metrics.verified = state.fallback;
    for (const int64_t tokens : state.accepted) metrics.verified += tokens;
    metrics.steps = state.steps;
    metrics.rows = state.rows;
    return metrics;
  }

  std::vector<int32_t> Tokenize(std::string_view text, bool add_special) const override {
    return session_.loaded().tokenizer().Encode(text, add_special);
  }
  std::string Detokenize(std::span<const int32_t> ids) const override {
    return session_.loaded().tokenizer().Decode(ids, true);
  }
  std::string TokenPiece(int32_t id) const override {
    const auto index = static_cast<size_t>(id);
    return index < pieces_.size() ? pieces_[index] : std::string();
  }
  std::string RenderChat(const OrderedJson& messages, const OrderedJson& arguments) const override {
    ChatTemplate::Options how;
    how.arguments = arguments;
    return session_.loaded().chat_template().Render(messages, how);
  }

 private:
  void ReadFacts(const LoadOptions& options) {
    facts_.name = options.engine.model;
    facts_.created = std::time(nullptr);
    facts_.context = session_.longest();
    facts_.vocab = session_.spec().vocab;
    facts_.recurrence = session_.spec().recurrence;
    facts_.depths = session_.depths();
    const SamplingParams& defaults = session_.defaults().sampling;
    facts_.temperature = defaults.temperature;
    facts_.top_p = defaults.top_p;
    facts_.min_p = defaults.min_p;
    facts_.top_k = defaults.top_k;
    facts_.repetition_penalty = defaults.repetition_penalty;
    const SpecialTokens& special = session_.loaded().special();
    facts_.eos_ids = special.eos;
    if (session_.loaded().has_chat_template())
      facts_.chat_template = session_.loaded().chat_template().source();
    if (!session_.loaded().has_tokenizer()) return;
    const Tokenizer& tokenizer = session_.loaded().tokenizer();
    const auto name = [&](std::optional<int32_t> id) -> std::optional<std::string> {
      if (!id) return std::nullopt;
      return std::string(tokenizer.IdToToken(*id));
    };
    facts_.bos_token = name(special.bos);
    facts_.pad_token = name(special.pad);
    if (!special.eos.empty()) facts_.eos_token = name(special.eos[0]);
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) pieces_.push_back(Piece(tokenizer, id));
  }

  static Request ToRequest(const EngineRequest& from) {
    Request to;
    to.tokens = from.prompt;
    SamplingParams& sampling = to.sampling.emplace();
    sampling.temperature = static_cast<float>(from.temperature);
    sampling.top_k = from.top_k;
    sampling.top_p = static_cast<float>(from.top_p);
    sampling.min_p = static_cast<float>(from.min_p);
    sampling.repetition_penalty = static_cast<float>(from.repetition_penalty);
    sampling.presence_penalty = static_cast<float>(from.presence_penalty);
    sampling.frequency_penalty = static_cast<float>(from.frequency_penalty);
    for (const auto& [id, bias] : from.logit_bias) {
      sampling.bias.push_back({id, static_cast<float>(bias)});
    }
    sampling.sampler = from.coupled ? Sampler::kCoupled : Sampler::kCascade;
    to.seed = from.seed;
    to.choices = from.n;
    to.max_tokens = from.max_tokens;
    to.stop = from.stop;
    to.stop_tokens = from.stop_token_ids;
    to.ignore_eos = from.ignore_eos;
    to.logprobs = from.logprobs;
    if (from.score_prompt) to.prompt_logprobs = from.logprobs;
    to.decoding = from.speculative ? Decoding::kLoopSpec : Decoding::kAutoregressive;
    if (!from.depths.empty()) to.depths = from.depths;
    return to;
  }

  void WarmUp() {
    Request request;
    request.tokens = {0, 0};
    request.max_tokens = 8;
    request.ignore_eos = true;
    const std::shared_ptr<TokenStream> tokens = scheduler_.Submit(session_.Prepare(request));
    StreamEvent event;
    while (tokens->Next(event) != TokenStream::Status::kDone) {
    }
  }

  Session session_;
  ModelFacts facts_;
  std::vector<std::string> pieces_;  // bytes of each token
  Scheduler scheduler_;              // the last: its thread uses the rest
};

}  // namespace

std::shared_ptr<CompletionEngine> LoadCompletionEngine(const LoadOptions& options) {
  return std::make_shared<LoadedEngine>(options);
}

}  // namespace loopspec::serve
