#include "serve/server/service.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>

#include "base/field_error.h"
#include "serve/openai/openapi.h"
#include "serve/openai/resolve.h"
#include "serve/openai/text.h"
#include "serve/openai/write.h"
#include "serve/server/transport.h"
#include "text/chat_json.h"

namespace loopspec::serve {
namespace {

constexpr size_t kMaxRequestId = 64;
constexpr size_t kIgnoredNames = 64;         // that the log may have
constexpr int64_t kMostTokenized = 1 << 20;  // tokens that /tokenize lists
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

std::shared_ptr<const ApiKeys> ServiceCore::Keys() {
  const std::lock_guard lock(mutex);
  return keys;
}

std::string PublicModelName(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return model;
  // Without links: a name is what the caller sees. "models/x/" and "." have names too.
  std::filesystem::path path = std::filesystem::absolute(model, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  // models--ORG--NAME/snapshots/COMMIT of the Hugging Face cache.
  const std::string repository = path.parent_path().parent_path().filename().string();
  const size_t dashes = repository.find("--", 8);
  if (path.parent_path().filename() == "snapshots" && repository.rfind("models--", 0) == 0 &&
      dashes != repository.npos) {
    return repository.substr(8, dashes - 8) + "/" + repository.substr(dashes + 2);
  }
  return path.has_filename() ? path.filename().string() : "model";
}

void ServiceCore::Track(const std::shared_ptr<TextTransport>& transport) {
  const std::lock_guard lock(mutex);
  transports.emplace(transport.get(), transport);
}

void ServiceCore::Untrack(const TextTransport* transport) {
  const std::lock_guard lock(mutex);
  transports.erase(transport);
}

// ---- One call ----

struct Service::Call {
  HttpRequest request;
  std::shared_ptr<ResponseWriter> writer;
  std::string id;
  HttpHeaders headers;  // of every answer to it
  std::chrono::steady_clock::time_point start;
  bool logged = true;
  double weight = 1;  // of its share
  CallDefaults defaults;

  RequestRecord Record() const {
    RequestRecord record;
    record.id = id;
    record.method = request.method;
    record.path = request.path;
    record.remote = request.remote;
    return record;
  }
  // Tells whether anybody still waits for the answer, while the request is being read, and lets
  // others pass where that takes long.
  std::function<bool()> Cancelled(std::chrono::milliseconds limit) const {
    auto gone = std::make_shared<std::atomic<bool>>(false);
    writer->OnGone([gone] { *gone = true; });
    return [gone = std::move(gone), end = start + limit, yield = request.yield] {
      if (yield) yield();
      return *gone || std::chrono::steady_clock::now() > end;
    };
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
  const std::string& given = core_->options.served_model_name;
  std::string name = engine && given.empty() ? PublicModelName(engine->facts().name) : given;
  // The one before goes when the lock is no longer held: its thread may want it.
  const std::lock_guard lock(core_->mutex);
  core_->engine.swap(engine);
  core_->model_name.swap(name);
  core_->loaded_at = std::time(nullptr);
}

void Service::SetKeys(ApiKeys keys) {
  auto shared = std::make_shared<const ApiKeys>(std::move(keys));
  const std::lock_guard lock(core_->mutex);
  core_->keys.swap(shared);
}

void Service::SetHttpCounts(std::function<HttpServerCounts()> counts) {
  const std::lock_guard lock(core_->mutex);
  core_->http_counts = std::move(counts);
}

void Service::SetMemory(const MemoryCounts& counts) {
  const std::lock_guard lock(core_->mutex);
  core_->memory = counts;
}

MemoryUse Service::memory() const {
  MemoryUse use;
  std::shared_ptr<Engine> engine;
  std::function<HttpServerCounts()> http;
  {
    const std::lock_guard lock(core_->mutex);
    use.process = core_->memory;
    engine = core_->engine;
    http = core_->http_counts;
  }
  if (http) use.request_bodies = http().body_bytes;
  if (!engine) return use;
  const EngineMetrics metrics = engine->metrics();
  use.AddEngine(metrics);
  return use;
}

void Service::BeginDrain() {
  const std::lock_guard lock(core_->mutex);
  core_->draining = true;
}

bool Service::WaitIdle(std::chrono::milliseconds limit) {
  std::unique_lock lock(core_->mutex);
  return core_->idle.wait_for(lock, limit, [&] { return core_->running == 0; });
}

void Service::CutOff() {
  std::vector<std::shared_ptr<TextTransport>> running;
  {
    const std::lock_guard lock(core_->mutex);
    for (const auto& [key, transport] : core_->transports) {
      if (auto held = transport.lock()) running.push_back(std::move(held));
    }
  }
  for (const auto& transport : running) transport->CutOff();
}

int64_t Service::running() const {
  const std::lock_guard lock(core_->mutex);
  return core_->running;
}

const std::vector<Service::RouteEntry>& Service::Routes() {
  static const std::vector<RouteEntry> routes = {
      {"POST", "/v1/completions", true, true, false, &Service::Completions},
      {"POST", "/v1/chat/completions", true, true, false, &Service::Chat},
      {"POST", "/generate", true, true, false, &Service::Generate},
      {"GET", "/v1/models", true, true, false, &Service::Models},
      {"POST", "/tokenize", true, true, false, &Service::Tokenize},
      {"POST", "/detokenize", true, true, false, &Service::Detokenize},
      {"GET", "/tokenizer_info", true, true, false, &Service::TokenizerInfo},
      // What routers ask.
      {"GET", "/version", false, false, false, &Service::Version},
      {"GET", "/model_info", true, false, false, &Service::ModelInfo},
      {"GET", "/get_model_info", true, false, false, &Service::ModelInfo},
      {"GET", "/server_info", true, false, false, &Service::ServerInfo},
      {"GET", "/get_server_info", true, false, false, &Service::ServerInfo},
      {"GET", "/v1/loads", true, false, false, &Service::Loads},
      {"GET", "/health", false, false, true, &Service::Health},
      {"GET", "/metrics", false, false, true, &Service::Metrics},
      {"GET", "/openapi.json", false, true, false, &Service::OpenApiDocument},
  };
  return routes;
}

// What can be said of a request before its body: a stranger's body is not even read.
AdmitRequest Service::Admit(const HttpRequest& head) {
  AdmitRequest admitted;
  admitted.share = head.share;
  const RouteEntry* route = FindRoute(head);
  if (route == nullptr) return admitted;  // Dispatch says what is wrong
  admitted.at_once = route->at_once;
  Call call = Begin(head);
  admitted.share = call.request.share;
  admitted.weight = call.weight;
  admitted.keyed = call.request.share != head.share;  // a key's share stands for an address's
  try {
    CheckKey(call, *route);
  } catch (const ApiException& error) {
    admitted.refusal = Finished(call, ErrorAnswer(error.error()), error.error().message);
  }
  return admitted;
}

Service::Call Service::Begin(const HttpRequest& head) const {
  Call call;
  call.start = std::chrono::steady_clock::now();
  call.id = RequestId(head);
  call.request = head;
  if (const auto holder = core_->Keys()->Find(head.Header("Authorization"))) {
    call.request.share = fmt::format("key {:016x}", holder->share);
    call.weight = holder->weight;
  }
  call.headers.emplace_back("X-Request-Id", call.id);
  for (auto& header : CorsHeaders(core_->options.doors, call.request)) {
    call.headers.push_back(std::move(header));
  }
  return call;
}

void Service::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  Handle(std::move(request), std::move(writer), {});
}

void Service::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer,
                     CallDefaults defaults) {
  std::string body = std::move(request.body);
  Call call = Begin(request);
  call.defaults = std::move(defaults);
  call.request.body = std::move(body);
  call.writer = std::move(writer);
  try {
    Dispatch(call);
  } catch (const ApiException& error) {
    ReplyError(call, error.error());
  } catch (const EncodeCancelled&) {
    ReplyError(call, ApiError{.status = 499,
                              .message = "The client hung up, or the request's time was over.",
                              .type = "invalid_request_error",
                              .param = "",
                              .code = "",
                              .retry_after = 0});
  } catch (const FieldError& error) {
    ReplyError(
        call, ApiError{.status = 400,
                       .message = fmt::format("{}.", error.what()),
                       .type = "invalid_request_error",
                       .param = error.field(),
                       .code = error.kind() == ErrorKind::kTooLong ? "context_length_exceeded" : "",
                       .retry_after = 0,
                       .log = ""});
  } catch (const Error& error) {
    ReplyError(call, ApiError{.status = 400,
                              .message = error.what(),
                              .type = "invalid_request_error",
                              .param = "",
                              .code = "",
                              .retry_after = 0,
                              .log = ""});
  } catch (const std::exception& error) {
    core_->log.Event("error", fmt::format("request {} failed: {}", call.id, error.what()));
    ReplyError(call, Internal("The server failed to answer this request."));
  }
}

// Null when there is none; `allowed`: the method with which there would be.
const Service::RouteEntry* Service::FindRoute(const HttpRequest& head, std::string* allowed) {
  std::string_view method = head.method;
  if (method == "HEAD") method = "GET";
  std::string_view path = head.path;
  if (path.starts_with("/v1/models/")) path = "/v1/models";
  const RouteEntry* found = nullptr;
  for (const RouteEntry& route : Routes()) {
    if (path != route.path) continue;
    if (allowed != nullptr) *allowed = route.method;
    if (method == route.method) found = &route;
  }
  return found;
}

void Service::CheckKey(Call& call, const RouteEntry& route) const {
  const auto keys = core_->Keys();
  if (!route.needs_key || keys->empty() || keys->Allows(call.request.Header("Authorization")))
    return;
  ApiError error;
  error.status = 401;
  error.code = "invalid_api_key";
  error.message = "The request has no valid key; expected the header Authorization: Bearer KEY.";
  call.headers.emplace_back("WWW-Authenticate", "Bearer");
  throw ApiException(std::move(error));
}

void Service::Dispatch(Call& call) {
  const std::string method = call.request.method == "HEAD" ? "GET" : call.request.method;
  std::string allowed;
  const RouteEntry* found = FindRoute(call.request, &allowed);
  const Doors& doors = core_->options.doors;
  // Probes call a server by whatever name they know, and learn nothing from this one.
  if (call.request.path != "/health") CheckHost(doors, call.request);
  CheckSite(doors, call.request, allowed.empty() && method == "GET");
  if (method == "OPTIONS" && !doors.origins.empty()) return Preflight(call);
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
  CheckKey(call, *found);
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
  response.headers = PreflightHeaders(call.request);
  ReplyText(call, std::move(response));
}

std::shared_ptr<Engine> Service::engine() const {
  const std::lock_guard lock(core_->mutex);
  return core_->engine;
}

std::shared_ptr<const Engine> Service::LoadedEngine() const {
  const std::lock_guard lock(core_->mutex);
  if (!core_->engine) throw ApiException(Unavailable("The model is being loaded.", "loading"));
  return core_->engine;
}

std::string Service::ModelName() const {
  const std::lock_guard lock(core_->mutex);
  return core_->model_name;
}

// ---- Routes ----

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
    core_->log.Event("warning", fmt::format("requests have fields that nobody knows: {} is ignored "
                                            "(--strict refuses it){}",
                                            untold, last ? "; further names are not told" : ""));
  }
  call.headers.emplace_back("X-Loopspec-Ignored", std::move(list));
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
    context.model = ModelName();
    const ModelFacts& facts = setup.engine->facts();
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
    setup.call = resolve(context);
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

// ---- Answers ----

void Service::Reply(Call& call, const OrderedJson& body) {
  HttpResponse response;
  response.body = Dump(body);
  ReplyText(call, std::move(response));
}

void Service::ReplyError(Call& call, const ApiError& error) {
  ReplyText(call, ErrorAnswer(error), WithoutQuotes(error));
}

void Service::ReplyText(Call& call, HttpResponse response, std::string error) {
  call.writer->Send(Finished(call, std::move(response), std::move(error)));
}

HttpResponse Service::Finished(const Call& call, HttpResponse response, std::string error) {
  response.headers.insert(response.headers.end(), call.headers.begin(), call.headers.end());
  RequestRecord record = call.Record();
  record.status = response.status;
  record.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - call.start).count();
  record.error = std::move(error);
  core_->metrics.Finished(record);
  if (call.logged) core_->log.Request(record);
  return response;
}

HttpResponse Service::ErrorResponse(const HttpFailure& failure) {
  ApiError error;
  error.status = failure.status;
  error.message = std::string(failure.message);
  error.type = TypeOf(failure.status);
  RequestRecord record;
  record.id = "req-" + RandomName();
  record.method = failure.method;
  record.path = failure.path;
  record.remote = failure.remote;
  record.status = failure.status;
  record.error = error.message;
  core_->metrics.Finished(record);
  core_->log.Request(record);
  HttpResponse response;
  response.status = failure.status;
  response.headers.emplace_back("X-Request-Id", record.id);
  if (failure.status == 503) response.headers.emplace_back("Retry-After", "1");
  response.body = Dump(ErrorJson(error));
  return response;
}

}  // namespace loopspec::serve
