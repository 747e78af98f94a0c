#include "serve/server/service.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>

#include "base/field_error.h"
#include "serve/messages/answer.h"
#include "serve/openai/text.h"
#include "serve/openai/write.h"
#include "serve/server/api_document.h"
#include "serve/server/service_call.h"
#include "serve/server/transport.h"

namespace loopspec::serve {
namespace {

constexpr size_t kMaxRequestId = 64;
// The page talks to this server alone and runs nothing but its own files.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

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

OrderedJson ErrorOf(std::string_view path, const ApiError& error) {
  return path.starts_with("/v1/messages") ? MessagesErrorJson(error) : ErrorJson(error);
}

// A key comes as OpenAI's clients send it, or as Anthropic's do.
std::optional<ApiKeys::Holder> HolderOf(const ApiKeys& keys, const HttpRequest& request) {
  if (auto holder = keys.Find(request.Header("Authorization"))) return holder;
  return keys.FindKey(request.Header("X-Api-Key"));
}

}  // namespace

std::string RandomName() {
  // One generator for each thread: names need to differ, not to be secret.
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

HttpResponse ErrorAnswer(std::string_view path, const ApiError& error, HttpHeaders headers) {
  HttpResponse response;
  response.status = error.status;
  response.headers = std::move(headers);
  if (error.retry_after > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  }
  response.body = Dump(ErrorOf(path, error));
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

Service::Service(const ServiceOptions& options)
    : core_(std::make_shared<ServiceCore>(options)), openapi_(Dump(ApiDocument(*core_))) {}

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
      {"POST", "/v1/responses", true, true, false, &Service::Responses},
      {"POST", "/v1/messages", true, true, false, &Service::Messages},
      {"POST", "/v1/messages/count_tokens", true, true, false, &Service::CountTokens},
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
    admitted.refusal = Finished(call, ErrorAnswer(head.path, error.error()), error.error().message);
  }
  return admitted;
}

Service::Call Service::Begin(const HttpRequest& head) const {
  Call call;
  call.start = std::chrono::steady_clock::now();
  call.id = RequestId(head);
  call.request = head;
  if (const auto holder = HolderOf(*core_->Keys(), head)) {
    call.request.share = fmt::format("key {:016x}", holder->share);
    call.weight = holder->weight;
  }
  call.headers.emplace_back("X-Request-Id", call.id);
  for (auto& header : CorsHeaders(core_->options.access, call.request)) {
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

// Null when no route has the path with this method; `allowed`: the method that the path has.
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
  if (!route.needs_key || keys->empty() || HolderOf(*keys, call.request)) return;
  ApiError error;
  error.status = 401;
  error.code = "invalid_api_key";
  error.message =
      "The request has no valid key; expected the header Authorization: Bearer KEY, or x-api-key: "
      "KEY.";
  call.headers.emplace_back("WWW-Authenticate", "Bearer");
  throw ApiException(std::move(error));
}

void Service::Dispatch(Call& call) {
  const std::string method = call.request.method == "HEAD" ? "GET" : call.request.method;
  std::string allowed;
  const RouteEntry* found = FindRoute(call.request, &allowed);
  const AccessPolicy& policy = core_->options.access;
  // Probes call a server by whatever name they know, and learn nothing from this one.
  if (call.request.path != "/health") CheckHost(policy, call.request);
  CheckSite(policy, call.request, allowed.empty() && method == "GET");
  if (method == "OPTIONS" && !policy.origins.empty()) return Preflight(call);
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

// ---- Answers ----

void Service::Reply(Call& call, const OrderedJson& body) {
  HttpResponse response;
  response.body = Dump(body);
  ReplyText(call, std::move(response));
}

void Service::ReplyError(Call& call, const ApiError& error) {
  ReplyText(call, ErrorAnswer(call.request.path, error), WithoutQuotes(error));
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
  response.body = Dump(ErrorOf(failure.path, error));
  return response;
}

}  // namespace loopspec::serve
