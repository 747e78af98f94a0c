// Routes that tell of the model, the tokenizer and the server: what routers, monitors and clients
// ask besides text.
#include <algorithm>
#include <cctype>
#include <chrono>

#include "serve/openai/resolve.h"
#include "serve/openai/text.h"
#include "serve/openai/write.h"
#include "serve/server/service_call.h"
#include "text/chat_json.h"

namespace loopspec::serve {
namespace {

constexpr int64_t kMostTokenized = 1 << 20;  // tokens that /tokenize lists

// %2F and the like as the bytes they stand for.
std::string Unescaped(std::string_view path) {
  const auto digit = [&](size_t at) {
    if (at >= path.size() || std::isxdigit(static_cast<unsigned char>(path[at])) == 0) return -1;
    const char c = path[at];
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
  };
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
      out += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

}  // namespace

void Service::Models(Call& call) {
  const auto engine = LoadedEngine();
  const OrderedJson model =
      ModelJson(engine->facts(), ServedSampling(engine->facts()), ModelName(), core_->loaded_at);
  if (call.request.path == "/v1/models") {
    return Reply(call, {{"object", "list"}, {"data", OrderedJson::array({model})}});
  }
  const std::string_view asked =
      std::string_view(call.request.path).substr(std::string_view("/v1/models/").size());
  if (asked == ModelName() || Unescaped(asked) == ModelName()) {
    return Reply(call, model);
  }
  ApiError error;
  error.status = 404;
  error.code = "model_not_found";
  error.param = "model";
  error.message =
      fmt::format("There is no {}; the model is {}.", TokenText(call.request.path), ModelName());
  ReplyError(call, error);
}

void Service::Health(Call& call) {
  bool draining, loading;
  {
    const std::lock_guard lock(core_->mutex);
    draining = core_->draining;
    loading = core_->engine == nullptr;
  }
  if (draining) throw ApiException(Unavailable("The server is shutting down.", "draining"));
  if (loading) throw ApiException(Unavailable("The model is being loaded.", "loading"));
  Reply(call, {{"status", "ok"}});
}

void Service::Metrics(Call& call) {
  std::shared_ptr<Engine> engine;
  std::function<HttpServerCounts()> counts;
  {
    const std::lock_guard lock(core_->mutex);
    engine = core_->engine;
    counts = core_->http_counts;
  }
  ServiceMetrics::Snapshot snapshot;
  snapshot.memory = memory();
  EngineMetrics metrics;
  if (engine) {
    metrics = engine->metrics();
    snapshot.engine = &metrics;
    snapshot.model = ModelName();
  }
  if (counts) snapshot.http = counts();
  snapshot.log_lines_lost = core_->log.lost();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = core_->metrics.Text(snapshot);
  ReplyText(call, std::move(response));
}

void Service::OpenApiDocument(Call& call) {
  HttpResponse response;
  response.body = openapi_;
  ReplyText(call, std::move(response));
}

void Service::Tokenize(Call& call) {
  const TokenizeRequest request = core_->parser.Tokenize(call.request.body);
  call.request.body = std::string();  // may be large, and tokenizing may take long
  NoteIgnored(call, request.ignored);
  const auto engine = LoadedEngine();
  const int64_t most = std::max<int64_t>(kMostTokenized, engine->facts().context);
  const EncodeLimits limits{most, call.Cancelled(core_->options.request_timeout)};
  std::vector<int32_t> ids;
  try {
    if (request.prompt) {
      ids = engine->Encode(*request.prompt, request.add_special_tokens.value_or(true), limits);
    } else if (request.add_special_tokens.value_or(false)) {
      // As vLLM has it: what the tokenizer puts around a text, around what the template gives.
      ids = engine->Encode(engine->Render(ChatJson{request.messages, request.template_arguments}),
                           true, limits);
    } else {
      ids = engine->EncodeChat(ChatJson{request.messages, request.template_arguments}, nullptr,
                               limits);
    }
  } catch (const TooManyTokens& error) {
    Refuse(request.prompt ? "prompt" : "messages",
           "The text has at least {} tokens, expected at most {}.", error.at_least(), most);
  }
  OrderedJson body = {{"count", ids.size()},
                      {"max_model_len", engine->facts().context},
                      {"tokens", ids},
                      {"token_strs", nullptr}};
  if (request.return_token_strings) {
    OrderedJson pieces = OrderedJson::array();
    for (const int32_t id : ids) pieces.push_back(TokenText(engine->Piece(id)));
    body["token_strs"] = std::move(pieces);
  }
  Reply(call, body);
}

void Service::Detokenize(Call& call) {
  const DetokenizeRequest request = core_->parser.Detokenize(call.request.body);
  NoteIgnored(call, request.ignored);
  const std::vector<int32_t>& ids = request.tokens;
  const auto engine = LoadedEngine();
  for (const int32_t id : ids) {
    if (id >= engine->facts().vocab) {
      Refuse("tokens", "tokens has {}, the vocabulary has {}.", id, engine->facts().vocab);
    }
  }
  Reply(call, {{"prompt", engine->Decode(ids)}});
}

void Service::TokenizerInfo(Call& call) {
  Reply(call, TokenizerInfoJson(LoadedEngine()->facts()));
}

void Service::Version(Call& call) {
  Reply(call, {{"version", core_->options.version}});
}

void Service::ModelInfo(Call& call) {
  const auto engine = LoadedEngine();
  Reply(call, ModelInfoJson(engine->facts(), ModelName()));
}

void Service::ServerInfo(Call& call) {
  const auto engine = LoadedEngine();
  Reply(call, ServerInfoJson(engine->facts(), ModelName(), core_->options.version));
}

void Service::Loads(Call& call) {
  const auto engine = LoadedEngine();
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Reply(call, LoadsJson(engine->metrics(), core_->options.version, now));
}

}  // namespace loopspec::serve
