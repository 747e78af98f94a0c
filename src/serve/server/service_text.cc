// Routes that answer with text that the model makes.
#include <fmt/ranges.h>

#include <ctime>
#include <functional>

#include "serve/messages/call.h"
#include "serve/openai/resolve.h"
#include "serve/responses/call.h"
#include "serve/server/service_call.h"
#include "serve/server/transport.h"

namespace loopspec::serve {
namespace {

constexpr size_t kIgnoredNames = 64;  // that the log may have

}  // namespace

void Service::Completions(Call& call) {
  AnswerText(call, kCompletions);
}
void Service::Chat(Call& call) {
  AnswerText(call, kChat);
}
void Service::Generate(Call& call) {
  AnswerText(call, kGenerate);
}

void Service::AnswerText(Call& call, Endpoint endpoint) {
  IgnoredFields ignored;
  const ResolveCall resolve = ReadTextCall(endpoint, call.request.body, core_->parser, &ignored);
  NoteIgnored(call, ignored);
  Answer(call, resolve);
}

// The client reads of it in a header, the operator in the log: each name once, those of a request
// in one line, and only the first kIgnoredNames, since clients make names up.
void Service::NoteIgnored(Call& call, const IgnoredFields& ignored) {
  if (ignored.names().empty()) return;
  std::string list, untold;
  bool last = false;
  {
    const std::lock_guard lock(core_->ignored_mutex);
    for (const std::string& name : ignored.names()) {
      list += (list.empty() ? "" : ", ") + name;
      if (core_->ignored.size() >= kIgnoredNames || !core_->ignored.insert(name).second) continue;
      untold += (untold.empty() ? "" : ", ") + name;
      last = core_->ignored.size() == kIgnoredNames;
    }
  }
  if (!untold.empty()) {
    core_->log.Event("warning", fmt::format("requests have unknown fields: {} is ignored "
                                            "(--strict refuses it){}",
                                            untold, last ? "; further names are not told" : ""));
  }
  call.headers.emplace_back("X-Loopspec-Ignored", std::move(list));
}

// Anthropic's.
void Service::Messages(Call& call) {
  IgnoredFields ignored;
  const ResolveCall resolve =
      ReadMessagesCall(kMessages, call.request.body, core_->messages, ignored);
  NoteIgnored(call, ignored);
  Answer(call, resolve);
}

// The prompt is made as it would be for an answer.
void Service::CountTokens(Call& call) {
  IgnoredFields ignored;
  const ResolveCall resolve =
      ReadMessagesCall(kCountTokens, call.request.body, core_->messages, ignored);
  NoteIgnored(call, ignored);
  call.request.body = std::string();  // may be large, and tokenizing may take long
  Reply(call, {{"input_tokens", resolve(ContextOf(call, LoadedEngine())).prompt_tokens}});
}

// OpenAI's newer form of a chat.
void Service::Responses(Call& call) {
  IgnoredFields ignored;
  const ResolveCall resolve = ReadResponsesCall(call.request.body, core_->responses, ignored);
  NoteIgnored(call, ignored);
  Answer(call, resolve);
}

CallContext Service::ContextOf(const Call& call,
                               const std::shared_ptr<const Engine>& engine) const {
  CallContext context;
  context.engine = engine;
  context.model = ModelName();
  const ModelFacts& facts = engine->facts();
  const CallDefaults& defaults = call.defaults;
  context.sampling =
      defaults.sampling.Over(defaults.models_own ? facts.sampling : ServedSampling(facts));
  context.seed = defaults.seed;
  context.reproducible = !defaults.id.empty();
  context.id = context.reproducible ? defaults.id : RandomName();
  context.created = context.reproducible ? 0 : std::time(nullptr);
  context.max_tokens_limit = core_->options.max_tokens_limit;
  context.max_scores = core_->options.limits.max_scores;
  context.keep_prompt = core_->log.prompts();
  context.cancelled = call.Cancelled(core_->options.request_timeout);
  return context;
}

// The same for every wire format.
void Service::Answer(Call& call, const ResolveCall& resolve) {
  call.request.body = std::string();  // may be large, and the answer may take long
  TextTransport::Setup setup;
  setup.engine = core_->Enter();
  setup.core = core_;
  try {
    setup.call = resolve(ContextOf(call, setup.engine));
    for (Request& request : setup.call.requests) {
      request.tenant = std::hash<std::string>{}(call.request.share);
      request.weight = call.weight;
    }
    setup.writer = call.writer;
    setup.headers = call.headers;
    if (const std::vector<std::string>& keywords = setup.call.ignored_keywords.names();
        !keywords.empty())
      setup.headers.emplace_back("X-Loopspec-Ignored-Keywords",
                                 fmt::format("{}", fmt::join(keywords, ", ")));
    if (setup.call.clamped)
      setup.headers.emplace_back("X-Loopspec-Max-Tokens", std::to_string(*setup.call.clamped));
    setup.record = call.Record();
    setup.start = call.start;
    std::make_shared<TextTransport>(std::move(setup))->Run();
  } catch (...) {
    core_->Leave();
    throw;
  }
}

}  // namespace loopspec::serve
