#include "serve/server/service.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <random>

#include "base/error.h"
#include "serve/openai/openapi.h"
#include "serve/openai/resolve.h"
#include "serve/openai/text.h"
#include "serve/openai/write.h"
#include "serve/server/transport.h"

namespace loopspec::serve {
namespace {

constexpr size_t kMaxRequestId = 64;
// The page talks to this server alone and runs nothing but its own files.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string RandomName() {
  // One generator for each thread: names need to differ, not to be secret.
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

// A client's own name for its request, if it is one that logs and headers can carry.
std::string RequestId(const HttpRequest& request) {
  const std::string_view given = request.Header("X-Request-Id");
  const auto good = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  if (!given.empty() && given.size() <= kMaxRequestId &&
      std::all_of(given.begin(), given.end(), good)) {
    return std::string(given);
  }
  return "req-" + RandomName();
}

// A page of another site can make a browser post text without asking first, but not JSON.
void CheckContentType(const HttpRequest& request) {
  std::string_view type = request.Header("Content-Type");
  if (type.empty()) return;
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  std::string lower(type);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "application/json") return;
  ApiError error;
  error.status = 415;
  error.message = fmt::format("Content-Type is {}, expected application/json.", TokenText(lower));
  throw ApiException(error);
}

void CheckContentEncoding(const HttpRequest& request) {
  const std::string_view encoding = request.Header("Content-Encoding");
  if (encoding.empty() || encoding == "identity") return;
  ApiError error;
  error.status = 415;
  error.message = fmt::format("Content-Encoding is {}, expected none.", TokenText(encoding));
  throw ApiException(error);
}

const char* TypeOf(int status) {
  if (status == 429) return "rate_limit_error";
  if (status == 503) return "service_unavailable_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

HttpResponse ErrorAnswer(const ApiError& error, HttpHeaders headers) {
  HttpResponse response;
  response.status = error.status;
  response.headers = std::move(headers);
  if (error.retry_after > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  }
  response.body = Dump(ErrorJson(error));
  return response;
}

// ---- The core ----

std::shared_ptr<Engine> ServiceCore::Enter() {
  const std::lock_guard lock(mutex);
  if (draining) throw ApiException(Unavailable("The server is shutting down.", "draining"));
  if (!engine) throw ApiException(Unavailable("The model is being loaded.", "loading"));
  ++running;
  return engine;
}

void ServiceCore::Leave() {
  const std::lock_guard lock(mutex);
  if (--running == 0) idle.notify_all();
}

// ---- One call ----

struct Service::Call {
  HttpRequest request;
  std::shared_ptr<ResponseWriter> writer;
  std::string id;
  HttpHeaders headers;  // of every answer to it
  std::chrono::steady_clock::time_point start;
  bool logged = true;

  RequestRecord Record() const {
    RequestRecord record;
    record.id = id;
    record.method = request.method;
    record.path = request.path;
    record.remote = request.remote;
    return record;
  }
};

Service::Service(const ServiceOptions& options)
    : core_(std::make_shared<ServiceCore>(options)),
      openapi_(Dump(OpenApi(core_->parser, options.version))) {}

// The engine ends here and not in its own thread, which may be the last to hold a stream, and by it
// the core.
Service::~Service() {
  SetEngine(nullptr);
}

void Service::SetEngine(std::shared_ptr<Engine> engine) {
  // The one before goes when the lock is no longer held: its thread may want it.
  const std::lock_guard lock(core_->mutex);
  core_->engine.swap(engine);
  core_->loaded_at = std::time(nullptr);
}

void Service::SetHttpCounts(std::function<HttpServerCounts()> counts) {
  const std::lock_guard lock(core_->mutex);
  core_->http_counts = std::move(counts);
}

void Service::BeginDrain() {
  const std::lock_guard lock(core_->mutex);
  core_->draining = true;
}

bool Service::WaitIdle(std::chrono::milliseconds limit) {
  std::unique_lock lock(core_->mutex);
  return core_->idle.wait_for(lock, limit, [&] { return core_->running == 0; });
}

int64_t Service::running() const {
  const std::lock_guard lock(core_->mutex);
  return core_->running;
}

const std::vector<Service::RouteEntry>& Service::Routes() {
  static const std::vector<RouteEntry> routes = {
      {"POST", "/v1/completions", true, true, &Service::Completions},
      {"POST", "/v1/chat/completions", true, true, &Service::Chat},
      {"POST", "/generate", true, true, &Service::Generate},
      {"GET", "/v1/models", true, true, &Service::Models},
      {"POST", "/tokenize", true, true, &Service::Tokenize},
      {"POST", "/detokenize", true, true, &Service::Detokenize},
      {"GET", "/tokenizer_info", true, true, &Service::TokenizerInfo},
      {"GET", "/health", false, false, &Service::Health},
      {"GET", "/metrics", false, false, &Service::Metrics},
      {"GET", "/openapi.json", false, true, &Service::OpenApiDocument},
  };
  return routes;
}

void Service::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  Call call;
  call.start = std::chrono::steady_clock::now();
  call.id = RequestId(request);
  call.request = std::move(request);
  call.writer = std::move(writer);
  call.headers.emplace_back("X-Request-Id", call.id);
  const std::vector<std::string>& origins = core_->options.cors_origins;
  const std::string origin(call.request.Header("Origin"));
  if (!origin.empty() && !origins.empty()) {
    const bool any = std::find(origins.begin(), origins.end(), "*") != origins.end();
    if (any || std::find(origins.begin(), origins.end(), origin) != origins.end()) {
      call.headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : origin);
      call.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
      call.headers.emplace_back("Vary", "Origin");
    }
  }
  try {
    Dispatch(call);
  } catch (const ApiException& error) {
    ReplyError(call, error.error());
  } catch (const Error& error) {
    ReplyError(call, ApiError{.status = 400,
                              .message = error.what(),
                              .type = "invalid_request_error",
                              .param = "",
                              .code = "",
                              .retry_after = 0});
  } catch (const std::exception& error) {
    core_->log.Event("error", fmt::format("request {} failed: {}", call.id, error.what()));
    ReplyError(call, Internal("The server failed to answer this request."));
  }
}

void Service::Dispatch(Call& call) {
  const std::string method = call.request.method == "HEAD" ? "GET" : call.request.method;
  std::string path = call.request.path;
  if (path.rfind("/v1/models/", 0) == 0) path = "/v1/models";
  const RouteEntry* found = nullptr;
  std::string allowed;
  for (const RouteEntry& route : Routes()) {
    if (path != route.path) continue;
    allowed = route.method;
    if (method == route.method) found = &route;
  }
  if (method == "OPTIONS" && !core_->options.cors_origins.empty()) return Preflight(call);
  if (found == nullptr) {
    if (allowed.empty() && method == "GET" && ServeAsset(call)) return;
    ApiError error;
    error.status = allowed.empty() ? 404 : 405;
    error.message = allowed.empty()
                        ? fmt::format("There is no {}.", TokenText(call.request.path))
                        : fmt::format("The method is {}, expected {}.", TokenText(method), allowed);
    if (!allowed.empty()) call.headers.emplace_back("Allow", allowed);
    return ReplyError(call, error);
  }
  call.logged = found->logged;
  if (found->needs_key && !core_->options.keys.empty() &&
      !core_->options.keys.Allows(call.request.Header("Authorization"))) {
    ApiError error;
    error.status = 401;
    error.code = "invalid_api_key";
    error.message = "The request has no valid key; expected the header Authorization: Bearer KEY.";
    call.headers.emplace_back("WWW-Authenticate", "Bearer");
    return ReplyError(call, error);
  }
  if (method == "POST") {
    CheckContentType(call.request);
    CheckContentEncoding(call.request);
  }
  (this->*found->run)(call);
}

bool Service::ServeAsset(Call& call) {
  for (const Asset& asset : core_->options.assets) {
    if (asset.path != call.request.path) continue;
    HttpResponse response;
    response.content_type = asset.content_type;
    response.body = asset.body;
    response.headers = {{"X-Content-Type-Options", "nosniff"},
                        {"Content-Security-Policy", kPagePolicy},
                        {"Referrer-Policy", "no-referrer"},
                        {"Cache-Control", "no-cache"}};
    ReplyText(call, std::move(response));
    return true;
  }
  return false;
}

// What a browser asks before it lets a page of another site send JSON.
void Service::Preflight(Call& call) {
  HttpResponse response;
  response.status = 204;
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                      {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id"},
                      {"Access-Control-Max-Age", "600"}};
  ReplyText(call, std::move(response));
}

std::shared_ptr<const Engine> Service::LoadedEngine() const {
  const std::lock_guard lock(core_->mutex);
  if (!core_->engine) throw ApiException(Unavailable("The model is being loaded.", "loading"));
  return core_->engine;
}

std::string Service::ModelName(const Engine& engine) const {
  const std::string& given = core_->options.served_model_name;
  return given.empty() ? engine.facts().name : given;
}

// ---- Routes ----

void Service::Completions(Call& call) {
  Answer(call, ReadTextCall(kCompletions, call.request.body, core_->parser));
}
void Service::Chat(Call& call) {
  Answer(call, ReadTextCall(kChat, call.request.body, core_->parser));
}
void Service::Generate(Call& call) {
  Answer(call, ReadTextCall(kGenerate, call.request.body, core_->parser));
}

// The same for every wire format.
void Service::Answer(Call& call, const ResolveCall& resolve) {
  call.request.body = std::string();  // may be large, and the answer may take long
  TextTransport::Setup setup;
  setup.engine = core_->Enter();
  setup.core = core_;
  try {
    CallContext context;
    context.engine = setup.engine;
    context.model = ModelName(*setup.engine);
    context.id = RandomName();
    context.created = std::time(nullptr);
    context.max_tokens_limit = core_->options.max_tokens_limit;
    context.max_scores = core_->options.limits.max_scores;
    context.keep_prompt = core_->log.prompts();
    setup.call = resolve(context);
    setup.writer = call.writer;
    setup.headers = call.headers;
    setup.record = call.Record();
    setup.start = call.start;
    std::make_shared<TextTransport>(std::move(setup))->Run();
  } catch (...) {
    core_->Leave();
    throw;
  }
}

void Service::Models(Call& call) {
  const auto engine = LoadedEngine();
  const OrderedJson model = ModelJson(engine->facts(), ModelName(*engine), core_->loaded_at);
  if (call.request.path == "/v1/models") {
    return Reply(call, {{"object", "list"}, {"data", OrderedJson::array({model})}});
  }
  if (call.request.path.substr(std::string_view("/v1/models/").size()) == ModelName(*engine)) {
    return Reply(call, model);
  }
  ApiError error;
  error.status = 404;
  error.code = "model_not_found";
  error.param = "model";
  error.message = fmt::format("There is no {}; the model is {}.", TokenText(call.request.path),
                              ModelName(*engine));
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
  EngineMetrics metrics;
  if (engine) {
    metrics = engine->metrics();
    snapshot.engine = &metrics;
    snapshot.model = ModelName(*engine);
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
  const auto engine = LoadedEngine();
  const std::string text =
      request.prompt ? *request.prompt
                     : engine->Render(request.messages.dump(), request.template_arguments.dump());
  const bool special = request.add_special_tokens.value_or(request.prompt.has_value());
  const std::vector<int32_t> ids = engine->Encode(text, special);
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
  const std::vector<int32_t> ids = core_->parser.Detokenize(call.request.body);
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

// ---- Answers ----

void Service::Reply(Call& call, const OrderedJson& body) {
  HttpResponse response;
  response.body = Dump(body);
  ReplyText(call, std::move(response));
}

void Service::ReplyError(Call& call, const ApiError& error) {
  ReplyText(call, ErrorAnswer(error), error.message);
}

void Service::ReplyText(Call& call, HttpResponse response, std::string error) {
  response.headers.insert(response.headers.end(), call.headers.begin(), call.headers.end());
  RequestRecord record = call.Record();
  record.status = response.status;
  record.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - call.start).count();
  record.error = std::move(error);
  core_->metrics.Finished(record);
  if (call.logged) core_->log.Request(record);
  call.writer->Send(std::move(response));
}

HttpResponse Service::ErrorResponse(int status, std::string_view message) {
  ApiError error;
  error.status = status;
  error.message = std::string(message);
  error.type = TypeOf(status);
  HttpResponse response;
  response.status = status;
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  response.body = Dump(ErrorJson(error));
  return response;
}

}  // namespace loopspec::serve
