// The API: routes, limits, keys and the life of a request, over an engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "loopspec/engine.h"
#include "serve/http/message.h"
#include "serve/messages/parse.h"
#include "serve/openai/error.h"
#include "serve/openai/parse.h"
#include "serve/openai/text_call.h"
#include "serve/page/page_assets.h"
#include "serve/responses/parse.h"
#include "serve/server/access.h"
#include "serve/server/api_keys.h"
#include "serve/server/memory_use.h"
#include "serve/server/metrics.h"
#include "serve/server/request_log.h"

namespace loopspec::serve {

struct ServiceOptions {
  std::string version = "0";
  std::string served_model_name;  // empty: the model's own
  WireLimits limits;
  int max_tokens_limit = 0;  // tokens of an answer at most; 0: what the context holds
  std::chrono::milliseconds request_timeout{600'000};
  // A streamed answer begins with its first token, so that an error before it has a status of its
  // own; but nobody waits longer than this for the headers.
  std::chrono::milliseconds begin_stream_after{5'000};
  ApiKeys keys;  // empty: everybody is let in
  AccessPolicy access;
  std::vector<Asset> assets;
  LogOptions log;
};

class TextTransport;

// What outlives the service while requests still hold it.
struct ServiceCore {
  explicit ServiceCore(const ServiceOptions& given)
      : options(given),
        parser(given.limits),
        messages(parser),
        responses(parser),
        log(given.log),
        keys(std::make_shared<const ApiKeys>(given.keys)) {}

  const ServiceOptions options;
  const WireParser parser;
  const MessagesParser messages;
  const ResponsesParser responses;
  RequestLog log;
  ServiceMetrics metrics;

  std::mutex mutex;
  std::condition_variable idle;
  int64_t running = 0;  // requests for text that are not over
  bool draining = false;
  std::shared_ptr<const ApiKeys> keys;
  std::shared_ptr<Engine> engine;  // null while the model loads
  std::string model_name;          // its name in answers
  int64_t loaded_at = 0;           // seconds since 1970
  std::function<HttpServerCounts()> http_counts;
  MemoryCounts memory;

  // Unknown fields that the log has named: each is told once.
  std::mutex ignored_mutex;
  std::set<std::string> ignored;

  // Counts a request in; throws ApiException (503) while loading or draining.
  std::shared_ptr<Engine> Enter();
  void Leave();
  std::shared_ptr<const ApiKeys> Keys();

  // Requests for text that can be cut off.
  std::unordered_map<const TextTransport*, std::weak_ptr<TextTransport>> transports;
  void Track(const std::shared_ptr<TextTransport>& transport);
  void Untrack(const TextTransport* transport);
};

// What holds for a request that does not say so itself.
struct CallDefaults {
  SaidSampling sampling;
  bool models_own = false;       // the rest of sampling is the model's own, not OpenAI's
  std::optional<uint64_t> seed;  // none: a random one
  // The answer's name; its bytes then depend on the request alone: no time stands in it. Empty: a
  // random name.
  std::string id;
};

// How a model is called: the name of its folder, since clients are not told paths, or ORG/NAME.
std::string PublicModelName(const std::string& model);

// The answer to a request that is refused or fails, in the form of the API that `path` belongs to.
HttpResponse ErrorAnswer(std::string_view path, const ApiError& error, HttpHeaders headers = {});

class Service : public HttpHandler {
 public:
  explicit Service(const ServiceOptions& options);
  ~Service();

  // Until then requests are answered with 503 and Retry-After.
  void SetEngine(std::shared_ptr<Engine> engine);
  // From now on these let in; requests that run go on.
  void SetKeys(ApiKeys keys);
  void SetHttpCounts(std::function<HttpServerCounts()> counts);
  // What the process holds, as of now; /metrics tells it.
  void SetMemory(const MemoryCounts& counts);
  MemoryUse memory() const;
  // From now on new requests for text and /health get a 503; those that run go on.
  void BeginDrain();
  // Whether nothing runs any more, after at most `limit`.
  bool WaitIdle(std::chrono::milliseconds limit);
  // Ends requests that still run with an error that says why.
  void CutOff();
  int64_t running() const;
  std::string ModelName() const;           // in answers
  std::shared_ptr<Engine> engine() const;  // null while the model loads
  RequestLog& log() { return core_->log; }

  AdmitRequest Admit(const HttpRequest& head) override;
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer, CallDefaults defaults);
  HttpResponse ErrorResponse(const HttpFailure& failure) override;

 private:
  struct Call;
  using Route = void (Service::*)(Call& call);
  struct RouteEntry {
    const char* method;
    const char* path;
    bool needs_key;
    bool logged;
    bool at_once;  // takes no time, whatever else happens
    Route run;
  };
  static const std::vector<RouteEntry>& Routes();

  Call Begin(const HttpRequest& head) const;
  static const RouteEntry* FindRoute(const HttpRequest& head, std::string* allowed = nullptr);
  void CheckKey(Call& call, const RouteEntry& route) const;
  void Dispatch(Call& call);
  bool ServeAsset(Call& call);
  void Preflight(Call& call);
  std::shared_ptr<const Engine> LoadedEngine() const;

  void Completions(Call& call);
  void Chat(Call& call);
  void Generate(Call& call);
  void AnswerText(Call& call, Endpoint endpoint);
  void Messages(Call& call);
  void CountTokens(Call& call);
  void Responses(Call& call);
  void Answer(Call& call, const ResolveCall& resolve);
  CallContext ContextOf(const Call& call, const std::shared_ptr<const Engine>& engine) const;
  void NoteIgnored(Call& call, const IgnoredFields& ignored);
  void Models(Call& call);
  void Health(Call& call);
  void Metrics(Call& call);
  void OpenApiDocument(Call& call);
  void Tokenize(Call& call);
  void Detokenize(Call& call);
  void TokenizerInfo(Call& call);
  void Version(Call& call);
  void ModelInfo(Call& call);
  void ServerInfo(Call& call);
  void Loads(Call& call);

  void Reply(Call& call, const OrderedJson& body);
  void ReplyText(Call& call, HttpResponse response, std::string error = "");
  // Puts it into log and metrics, and gives it its headers.
  HttpResponse Finished(const Call& call, HttpResponse response, std::string error);
  void ReplyError(Call& call, const ApiError& error);

  const std::shared_ptr<ServiceCore> core_;
  const std::string openapi_;
};

}  // namespace loopspec::serve
