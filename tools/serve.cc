// loopspec serve: an OpenAI-compatible server.
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "decode/depths.h"
#include "loopspec/engine.h"
#include "serve/server/run_server.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace loopspec::tools {
namespace {

struct ServeOptions {
  ModelOptions model;
  std::vector<std::string> depths;
  std::string recurrences;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string served_model_name;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> cors_origins, allowed_hosts, trusted_proxies;
  int request_timeout = 600, drain_timeout = 30;  // seconds
  int max_tokens = 0, max_choices = 16, max_connections = 4096, max_address_connections = 0,
      max_queued = 1024, max_running = 0;
  int max_body = 16;  // MiB
  std::string prefix_cache;
  bool trust_special_tokens = false, strict = false, warm_up = false, log_json = false,
       log_prompts = false;
  std::string log_file;
};

void AddOptions(Command command, ServeOptions& options) {
  options.model.AddTo(command);
  const auto add = [&](const char* group, const char* name, auto& value, const char* help) {
    return command.AddOption(name, value, help).Group(group);
  };
  add("Model", "--depths", options.depths,
      "Proposal depths, such as 1,2; given several times, requests may choose")
      .OneValueEach();
  add("Model", "--recurrences", options.recurrences,
      "Fewer recurrences that requests may ask for besides proposal depths, such as 8,12; models "
      "without layers after the loop have them all");
  add("Model", "--served-model-name", options.served_model_name, "The model's name in answers");
  add("Model", "--prefix-cache", options.prefix_cache,
      "Memory for prefixes that nobody uses now, such as 2G; 0 keeps none, default: all that is "
      "free");
  command
      .AddFlag("--trust-special-tokens", options.trust_special_tokens,
               "Special tokens that users and tools write are tokens, not text")
      .Group("Model");
  command.AddFlag("--warmup", options.warm_up, "Answer a short prompt before serving")
      .Group("Model");

  add("HTTP", "--host", options.host, "Address to listen on; 0.0.0.0 is every one").ShowDefault();
  add("HTTP", "--port", options.port, "Port; 0 takes any that is free")
      .Range(0, 65535)
      .ShowDefault();
  add("HTTP", "--api-key", options.api_keys,
      "A key that clients must have; may be given several times (LOOPSPEC_API_KEY works too)")
      .OneValueEach();
  add("HTTP", "--api-key-file", options.api_key_file, "Keys, one per line; SIGHUP reads it again");
  add("HTTP", "--cors-origin", options.cors_origins,
      "Pages of this origin may call the server from a browser; * is any")
      .OneValueEach();
  add("HTTP", "--allowed-host", options.allowed_hosts,
      "A name that clients call the server by, besides localhost and its address; * is any")
      .OneValueEach();
  command.AddFlag("--strict", options.strict, "Refuse requests with unknown fields").Group("HTTP");

  add("Limits", "--request-timeout", options.request_timeout, "Seconds for an answer")
      .Range(1, 1'000'000)
      .ShowDefault();
  add("Limits", "--drain-timeout", options.drain_timeout,
      "Seconds for running answers after SIGTERM")
      .Range(0, 1'000'000)
      .ShowDefault();
  add("Limits", "--max-tokens", options.max_tokens,
      "Maximum tokens to generate for an answer; 0: what the context holds")
      .Range(0, INT32_MAX)
      .ShowDefault();
  add("Limits", "--max-choices", options.max_choices, "Maximum answers per prompt (n)")
      .Range(1, 128)
      .ShowDefault();
  add("Limits", "--max-body", options.max_body, "Maximum size of a request's body in MiB")
      .Range(1, 1024)
      .ShowDefault();
  add("Limits", "--max-address-connections", options.max_address_connections,
      "Maximum connections of one address, or IPv6 /64; 0: a quarter of all, at least 32")
      .Range(0, 1'000'000);
  command
      .AddOption("--trusted-proxy", options.trusted_proxies,
                 "Address of a proxy whose connections are not counted by address; may be given "
                 "several times")
      .OneValueEach()
      .Group("Limits")
      .TypeName("ADDRESS");
  add("Limits", "--max-connections", options.max_connections, "Maximum connections at once")
      .Range(1, 1'000'000)
      .ShowDefault();
  add("Limits", "--max-running", options.max_running,
      "Maximum requests decoded at once; 0: what the engine holds")
      .Range(0, 1'000'000)
      .ShowDefault();
  add("Limits", "--max-queued", options.max_queued,
      "Maximum requests that may wait; more get a 429")
      .Range(1, 1'000'000)
      .ShowDefault();

  add("Log", "--log-file", options.log_file,
      "Where the log goes, opened again on SIGHUP; - is standard output, default: standard error");
  command.AddFlag("--log-json", options.log_json, "Write a JSON object per line").Group("Log");
  command.AddFlag("--log-prompts", options.log_prompts, "Write prompts into the log").Group("Log");
}

EngineOptions ToEngineOptions(const ServeOptions& options) {
  EngineOptions engine = options.model.ToEngineOptions();
  for (const std::string& depths : options.depths) engine.depths.push_back(ParseDepths(depths));
  engine.recurrences = ParseDepths(options.recurrences);
  if (!options.prefix_cache.empty()) {
    engine.cache_bytes =
        options.prefix_cache == "0" ? 0 : ParseBytes(options.prefix_cache, "--prefix-cache");
  }
  engine.trust_special_tokens = options.trust_special_tokens;
  engine.max_running = options.max_running;
  engine.max_queued = options.max_queued;
  return engine;
}

std::shared_ptr<Engine> Load(const EngineOptions& options, bool warm_up) {
  auto engine = std::make_shared<Engine>(options);
  if (warm_up) engine->Generate({.tokens = {0, 0}, .max_tokens = 8, .ignore_eos = true});
  return engine;
}

// A key that is there but empty is an error: it would open the server to everybody.
serve::ApiKeys ReadKeys(const ServeOptions& options) {
  serve::ApiKeys keys;
  for (const std::string& key : options.api_keys) keys.Add(key, "--api-key");
  if (!options.api_key_file.empty()) keys.AddFile(options.api_key_file);
  if (const char* key = std::getenv("LOOPSPEC_API_KEY")) keys.Add(key, "LOOPSPEC_API_KEY");
  return keys;
}

serve::RunOptions ToRunOptions(const ServeOptions& options) {
  serve::RunOptions run;
  run.http.host = options.host;
  run.http.port = options.port;
  run.http.max_connections = options.max_connections;
  run.http.max_per_address = options.max_address_connections;
  run.http.trusted_proxies = options.trusted_proxies;
  run.http.body_limit = static_cast<size_t>(options.max_body) << 20;
  run.http.body_budget = std::max(run.http.body_budget, 2 * run.http.body_limit);
  run.drain_limit = std::chrono::seconds(options.drain_timeout);

  serve::ServiceOptions& service = run.service;
  service.version = LOOPSPEC_VERSION;
  service.served_model_name = options.served_model_name;
  service.limits.max_n = options.max_choices;
  service.limits.strict = options.strict;
  service.max_tokens_limit = options.max_tokens;
  service.request_timeout = std::chrono::seconds(options.request_timeout);
  service.assets = serve::PageAssets();
  service.access = {options.host, options.allowed_hosts, options.cors_origins};
  service.log = {options.log_json, options.log_file, options.log_prompts};
  service.keys = ReadKeys(options);
  run.read_keys = [options] { return ReadKeys(options); };
  return run;
}

}  // namespace

void AddServeCommand(Command app) {
  const Command command = app.AddCommand(
      "serve", "Serve requests over HTTP, as OpenAI's clients send them (see docs/serving.md)");
  const auto options = std::make_shared<ServeOptions>();
  AddOptions(command, *options);
  command.SetAction([options] {
    const EngineOptions engine = ToEngineOptions(*options);
    serve::RunServer(ToRunOptions(*options), [&] { return Load(engine, options->warm_up); });
  });
}

}  // namespace loopspec::tools
