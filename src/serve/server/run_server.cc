#include "serve/server/run_server.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "serve/server/access.h"
#include "serve/server/memory_use.h"

namespace loopspec::serve {
namespace {

using namespace std::chrono_literals;

// Every connection is a descriptor; the usual limit of 1024 is below our own. Raises it as far as
// the system lets, and returns how many of the `wanted` connections it allows, with a part left for
// the model's files, the device and the log.
int AllowedConnections(int wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto needed = static_cast<rlim_t>(wanted) + 512;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(limit.rlim_max, needed);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  const auto files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
  const int64_t left = files - std::min<int64_t>(160, files / 2);
  // The server keeps a reserve of an eighth above the connections that it takes.
  return static_cast<int>(std::clamp<int64_t>(left * 8 / 9, 1, wanted));
}

// The C library keeps what is freed for later, in a pool for each thread: after a wave of large
// requests that may be gigabytes. They go back when more is held than was at the best of times; and
// seldom where that gains nothing, since requests are held up for milliseconds.
class MemoryWatch {
 public:
  MemoryWatch() {
    // Left to itself the C library takes blocks as large as those freed before from its pools, and
    // the end of a pool is given back by neither free nor malloc_trim.
    constexpr int kLarge = 1 << 20;
    mallopt(M_MMAP_THRESHOLD, kLarge);
    mallopt(M_TRIM_THRESHOLD, kLarge);
  }
  // Returns what is held afterwards.
  MemoryCounts GiveBack() {
    constexpr int64_t kSlack = int64_t{8} << 20;
    const auto now = std::chrono::steady_clock::now();
    const MemoryCounts before = MemoryCounts::Now();
    if (before.anonymous <= least_ + least_ / 10 + kSlack || now < next_) return before;
    malloc_trim(0);
    const MemoryCounts after = MemoryCounts::Now();
    least_ = least_ == 0 ? after.anonymous : std::min(least_, after.anonymous);
    pause_ = before.anonymous > after.anonymous + after.anonymous / 50
                 ? kOften
                 : std::min(2 * pause_, kSeldom);
    next_ = now + pause_;
    return after;
  }

 private:
  static constexpr std::chrono::seconds kOften{2}, kSeldom{60};
  int64_t least_ = 0;  // bytes that were ever resident afterwards
  std::chrono::seconds pause_ = kOften;
  std::chrono::steady_clock::time_point next_;
};

// Signals that are waited for instead of handled.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    // By default they would end the process, and some tools send them to ask for something.
    for (const int signal : {SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
  }
  // Whether one has come that ends the server, after at most `limit`; `on_hangup` is called for a
  // SIGHUP.
  template <typename F>
  bool Wait(std::chrono::milliseconds limit, F on_hangup) const {
    const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &time);
    if (signal == SIGHUP) on_hangup();
    return signal == SIGTERM || signal == SIGINT;
  }

 private:
  sigset_t set_;
};

void Reload(const RunOptions& options, Service& service) {
  if (!options.service.log.file.empty()) {
    service.log().Reopen();
    service.log().Event("info", "SIGHUP: the log goes on here");
  }
  if (!options.read_keys) return;
  try {
    ApiKeys keys = options.read_keys();
    const size_t count = keys.size();
    service.SetKeys(std::move(keys));
    service.log().Event("info", fmt::format("SIGHUP: {} API keys", count));
  } catch (const Error& error) {
    service.log().Event("error",
                        fmt::format("SIGHUP: the API keys stay as they are: {}", error.what()));
  }
}

// What a person looks for first; also on the terminal when the log goes elsewhere.
void Say(Service& service, const RunOptions& options, const char* level, const std::string& text) {
  service.log().Event(level, text);
  if (!options.service.log.file.empty()) fmt::print(stderr, "loopspec: {}\n", text);
}

std::string HostAndPort(const std::string& host, int port) {
  return host.find(':') == host.npos ? fmt::format("http://{}:{}", host, port)
                                     : fmt::format("http://[{}]:{}", host, port);
}

}  // namespace

std::string OpenWarning(const std::string& host, int port, const ApiKeys& keys) {
  if (!keys.empty() || IsLoopbackHost(host)) return {};
  return fmt::format(
      "whoever can reach {} may use this server: it asks for no key (--api-key-file, --api-key)",
      HostAndPort(host, port));
}

void RunServer(const RunOptions& options, const LoadEngine& load,
               const std::function<void(int port)>& on_listen) {
  HttpServerOptions http = options.http;
  http.max_connections = AllowedConnections(http.max_connections);
  const Signals signals;
  Service service(options.service);
  HttpServer server(http, service);
  service.SetHttpCounts([&server] { return server.counts(); });
  const auto ended = [&](std::chrono::milliseconds limit) {
    return signals.Wait(limit, [&] { Reload(options, service); });
  };
  const std::string address = HostAndPort(options.http.host, server.port());
  service.log().Event("info", "listening on " + address);
  const std::string open = OpenWarning(options.http.host, server.port(), options.service.keys);
  if (!open.empty()) Say(service, options, "warning", open);
  if (http.max_connections < options.http.max_connections)
    Say(service, options, "warning",
        fmt::format("{} connections at once, not {}: the limit of open files allows no more "
                    "(ulimit -n)",
                    http.max_connections, options.http.max_connections));
  if (on_listen) on_listen(server.port());

  {
    // Loading cannot be interrupted, and there is nothing to finish: a signal ends the process.
    std::atomic<bool> loaded{false};
    std::thread watcher([&] {
      while (!loaded) {
        if (ended(100ms)) std::_Exit(EXIT_SUCCESS);
      }
    });
    try {
      service.SetEngine(load());
    } catch (...) {
      loaded = true;
      watcher.join();
      throw;
    }
    loaded = true;
    watcher.join();
  }
  {
    const auto engine = service.engine();
    const ModelFacts& facts = engine->facts();
    Say(service, options, "info",
        fmt::format("ready: loopspec {}, model {}, {} ({}), weights {:.2f}, keys and values {:.2f} "
                    "of {:.2f} GB{}, context {}, {}",
                    options.service.version, service.ModelName(), facts.device, facts.compute,
                    static_cast<double>(facts.weight_bytes) * 1e-9,
                    static_cast<double>(facts.kv_bytes) * 1e-9,
                    static_cast<double>(facts.device_bytes) * 1e-9,
                    facts.kv_type == facts.compute ? "" : " as " + facts.kv_type, facts.context,
                    address));
  }

  MemoryWatch memory;
  do {
    service.SetMemory(memory.GiveBack());
  } while (!ended(1s));
  service.SetMemory(MemoryCounts::Now());
  service.log().Event("info", fmt::format("draining: {} requests are running; {}",
                                          service.running(), service.memory().Text()));
  service.BeginDrain();
  const auto limit = std::chrono::steady_clock::now() + options.drain_limit;
  while (!service.WaitIdle(100ms)) {
    if (std::chrono::steady_clock::now() > limit || ended(0ms)) break;
  }
  const int64_t cut_off = service.running();
  service.CutOff();  // with a word to each client
  server.Stop(2s);
  service.log().Event("info", fmt::format("stopped, {} requests cut off", cut_off));
  // The engine goes before the service whose log it may write to.
  service.SetEngine(nullptr);
}

}  // namespace loopspec::serve
