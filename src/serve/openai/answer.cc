#include "serve/openai/answer.h"

#include <algorithm>
#include <utility>

namespace loopspec::serve {

CompletionAnswer::Form::Form(const CompletionRequest& request, const CallContext& context)
    : head{request.endpoint, context.id, context.model, context.created}, batch(request.batch) {
  if (request.endpoint == kChat) head.id = "chatcmpl-" + context.id;
  if (request.endpoint == kCompletions) head.id = "cmpl-" + context.id;
  if (!request.id.empty()) head.id = request.id;
  call_id = context.id;
  write.pieces = [engine = context.engine](int32_t id) { return engine->Piece(id); };
  write.logprobs = request.asked.logprobs;
  write.token_details = request.token_details;
  write.trace = request.asked.trace;
  write.reproducible = context.reproducible;
  write.usage_in_stream = request.include_usage;
  write.usage_in_every_event = request.include_usage && request.usage_in_every_event;
  if (!request.asked.ignore_eos) own_ends = context.engine->facts().eos_ids;
}

CompletionAnswer::CompletionAnswer(Form form, AnswerSetup setup)
    : form_(std::move(form)), setup_(std::move(setup)) {
  const auto n = static_cast<size_t>(setup_.n);
  for (size_t i = 0; i < setup_.prompts.size() * n; ++i) {
    Choice& choice = choices_.emplace_back(setup_.split);
    choice.part.index = static_cast<int>(i);
    choice.part.first = true;
    choice.part.split_reasoning = setup_.split.split_reasoning;
    AddText(choice, setup_.prompts[i / n].echo, false);
  }
  unfinished_ = static_cast<int>(choices_.size());
}

CompletionAnswer::Choice& CompletionAnswer::At(size_t prompt, int choice) {
  return choices_.at(prompt * static_cast<size_t>(setup_.n) + static_cast<size_t>(choice));
}

// ---- Events in ----

void CompletionAnswer::AddPrompt(size_t prompt, std::vector<Token> scores) {
  // The first has no prefix to be likely on.
  Token first;
  first.id = setup_.prompts[prompt].first_token;
  scores.insert(scores.begin(), std::move(first));
  for (int i = 0; i < setup_.n; ++i) {
    std::vector<Token>& tokens = At(prompt, i).part.tokens;
    tokens.insert(tokens.begin(), scores.begin(), scores.end());
  }
}

void CompletionAnswer::AddToken(size_t prompt, Token token) {
  Choice& choice = At(prompt, token.choice);
  choice.touched = true;
  ++choice.tokens;
  if (!first_token_) first_token_ = token.time;
  last_token_ = token.time;
  AddText(choice, token.text, false);
  ChoicePart& part = choice.part;
  if (generate()) part.ids.push_back(token.id);
  if (generate() && form_.write.logprobs) part.all_tokens.push_back(token);
  if (form_.write.logprobs || form_.write.token_details) part.tokens.push_back(std::move(token));
}

void CompletionAnswer::AddTrace(size_t prompt, int index, const std::vector<TraceEvent>& trace) {
  Choice& choice = At(prompt, index);
  choice.touched = true;
  choice.part.steps.insert(choice.part.steps.end(), trace.begin(), trace.end());
}

void CompletionAnswer::AddEnd(size_t prompt, const Token& last, Statistics statistics) {
  Choice& choice = At(prompt, last.choice);
  choice.touched = true;
  AddText(choice, last.text, true);
  if (statistics.stop_token && std::find(form_.own_ends.begin(), form_.own_ends.end(),
                                         *statistics.stop_token) != form_.own_ends.end())
    statistics.stop_token.reset();
  // A stop string may stand in a call's arguments.
  choice.part.call_cut = choice.part.called && !Json::accept(choice.arguments);
  choice.part.finish = std::move(statistics);
  last_token_ = last.time;
  --unfinished_;
}

void CompletionAnswer::AddPart(ChoicePart& part, const AnswerPart& told) const {
  switch (told.kind) {
    case AnswerPart::Kind::kReasoning:
      part.reasoning += told.text;
      break;
    case AnswerPart::Kind::kText:
      part.text += told.text;
      break;
    case AnswerPart::Kind::kCall:
      part.called = true;
      part.calls.push_back(
          {told.call, ToolCallId(form_.call_id, part.index, told.call), told.text, ""});
      break;
    case AnswerPart::Kind::kArguments:
      if (part.calls.empty() || part.calls.back().index != told.call)
        part.calls.push_back({told.call, "", "", ""});
      part.calls.back().arguments += told.text;
      break;
  }
}

void CompletionAnswer::AddText(Choice& choice, const std::string& text, bool last) {
  ChoicePart& part = choice.part;
  const auto add = [&](const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& told : parts) {
      if (told.kind == AnswerPart::Kind::kCall) choice.arguments.clear();
      if (told.kind == AnswerPart::Kind::kArguments) choice.arguments += told.text;
      AddPart(part, told);
    }
  };
  add(choice.splitter.Push(text));
  if (last) add(choice.splitter.Finish());
  if (generate()) part.whole_text += text;
}

// ---- Bytes out ----

// SGLang's events carry the whole answer so far, log-probabilities and all: one for every token
// makes a long answer quadratic. So when much has been sent an event waits until the answer has
// grown by a quarter, and all of them together are a few times the answer.
bool CompletionAnswer::Waits(const Choice& choice) const {
  constexpr size_t kSentFreely = 4 << 20;
  return generate() && !choice.part.finish && sent_ > kSentFreely &&
         choice.tokens < choice.told + choice.told / 4;
}

std::string CompletionAnswer::Events(double seconds) {
  // The last choice to end carries the summary.
  const Choice* last = nullptr;
  for (const Choice& choice : choices_) {
    if (choice.touched && choice.part.finish) last = &choice;
  }
  std::string out;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    ChoicePart& part = choice.part;
    if (Waits(choice) || !std::exchange(choice.touched, false)) continue;
    choice.told = choice.tokens;
    if (part.text.empty() && part.reasoning.empty() && part.calls.empty() && part.tokens.empty() &&
        part.steps.empty() && !part.finish)
      continue;
    RunSummary summary;
    const bool ends = complete() && &choice == last;
    if (ends) summary = Summary();
    const RunSummary* told = ends ? &summary : nullptr;
    part.text_offset = choice.offset;
    if (generate()) {
      OrderedJson event =
          GenerateJson(form_.head, part, ChoiceUsage(i), told, seconds, form_.write);
      if (choices_.size() > 1) event["index"] = part.index;
      out += ServerSentEvent(event);
    } else {
      std::optional<Usage> so_far;
      if (form_.write.usage_in_every_event) so_far = TotalUsage();
      out += ServerSentEvent(
          CompletionEvent(form_.head, part, told, form_.write, so_far ? &*so_far : nullptr));
    }
    if (form_.write.logprobs) {
      for (const Token& token : part.tokens)
        choice.offset += CountStarts(form_.write.pieces(token.id));
    }
    part.first = false;
    part.text.clear();
    part.reasoning.clear();
    part.calls.clear();
    part.tokens.clear();
    part.steps.clear();
  }
  sent_ += out.size();
  if (out.empty() || !complete()) return out;
  if (form_.write.usage_in_stream) out += ServerSentEvent(UsageEvent(form_.head, TotalUsage()));
  out += kStreamDone;
  return out;
}

std::string CompletionAnswer::Body(double seconds) {
  const RunSummary summary = Summary();
  if (generate()) {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      list.push_back(GenerateJson(form_.head, choices_[i].part, ChoiceUsage(i), &summary, seconds,
                                  form_.write));
    }
    return Dump(form_.batch || setup_.n > 1 ? list : list[0]);
  }
  std::vector<const ChoicePart*> parts;
  for (const Choice& choice : choices_) parts.push_back(&choice.part);
  return Dump(CompletionBody(form_.head, parts, TotalUsage(), summary, form_.write));
}

std::string CompletionAnswer::ErrorEvents(const ApiError& error) const {
  return ServerSentEvent(ErrorJson(error)) + std::string(kStreamDone);
}

// ---- Counts ----

Usage CompletionAnswer::ChoiceUsage(size_t index) const {
  const Choice& choice = choices_[index];
  Usage usage;
  usage.prompt_tokens = setup_.prompts[index / static_cast<size_t>(setup_.n)].tokens;
  usage.completion_tokens = choice.tokens;
  if (choice.part.finish) {
    usage.completion_tokens = choice.part.finish->decoded_tokens;
    usage.cached_tokens = choice.part.finish->cached_tokens;
  }
  return usage;
}

// The choices of a prompt share it.
Usage CompletionAnswer::TotalUsage() const {
  Usage total;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Usage usage = ChoiceUsage(i);
    total.completion_tokens += usage.completion_tokens;
    if (i % static_cast<size_t>(setup_.n) != 0) continue;
    total.prompt_tokens += usage.prompt_tokens;
    total.cached_tokens += usage.cached_tokens;
  }
  return total;
}

RunSummary CompletionAnswer::Summary() const {
  RunSummary summary;
  summary.seed = setup_.seed;
  double tokens = 0;
  double full_passes = 0;  // that the accepted drafts leave to do, by the paper's formula
  double passes = 0;       // of R recurrences, as they were made
  for (const Choice& choice : choices_) {
    if (!choice.part.finish) continue;
    const Statistics& statistics = *choice.part.finish;
    summary.accepted.resize(std::max(summary.accepted.size(), statistics.accepted.size()));
    for (size_t i = 0; i < statistics.accepted.size(); ++i) {
      summary.accepted[i] += statistics.accepted[i];
    }
    summary.fallback += statistics.fallback;
    summary.early += statistics.early;
    const auto count = static_cast<double>(statistics.decoded_tokens);
    tokens += count;
    if (statistics.gamma > 0) full_passes += count / statistics.gamma;
    if (statistics.tokens_per_pass > 0) passes += count / statistics.tokens_per_pass;
  }
  summary.gamma = full_passes > 0 ? tokens / full_passes : 0;
  summary.tokens_per_pass = passes > 0 ? tokens / passes : 0;
  summary.cached_tokens = TotalUsage().cached_tokens;
  if (first_token_ && *last_token_ > *first_token_) {
    summary.tokens_per_second =
        (tokens - 1) / std::chrono::duration<double>(*last_token_ - *first_token_).count();
  }
  return summary;
}

AnswerCounts CompletionAnswer::counts() const {
  const Usage usage = TotalUsage();
  AnswerCounts counts;
  counts.completion_tokens = usage.completion_tokens;
  counts.cached_tokens = usage.cached_tokens;
  counts.gamma = Summary().gamma;
  const std::optional<Statistics>& first = choices_[0].part.finish;
  if (first) counts.outcome = NameOf(first->finish_reason);
  return counts;
}

}  // namespace loopspec::serve
