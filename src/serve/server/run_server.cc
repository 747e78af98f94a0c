#include "serve/server/run_server.h"

#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace loopspec::serve {
namespace {

using namespace std::chrono_literals;

// Every connection is a descriptor; the default limit of 1024 is below our own.
void AllowManyDescriptors(int wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto needed = static_cast<rlim_t>(wanted) + 512;
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(limit.rlim_max, needed);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// SIGTERM and SIGINT, waited for instead of handled.
class EndSignals {
 public:
  EndSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Whether one has come, after at most `limit`.
  bool Wait(std::chrono::milliseconds limit) const {
    const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    return sigtimedwait(&set_, nullptr, &time) > 0;
  }

 private:
  sigset_t set_;
};

}  // namespace

void RunServer(const RunOptions& options, const LoadEngine& load,
               const std::function<void(int port)>& on_listen) {
  AllowManyDescriptors(options.http.max_connections);
  const EndSignals signals;
  Service service(options.service);
  HttpServer server(options.http, service);
  service.SetHttpCounts([&server] { return server.counts(); });
  service.log().Event("info",
                      fmt::format("listening on http://{}:{}", options.http.host, server.port()));
  if (on_listen) on_listen(server.port());

  {
    // Loading cannot be interrupted, and there is nothing to finish: a signal ends the process.
    std::atomic<bool> loaded{false};
    std::thread watcher([&] {
      while (!loaded) {
        if (signals.Wait(100ms)) std::_Exit(EXIT_SUCCESS);
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
  service.log().Event("info", "ready");

  while (!signals.Wait(1s)) {
  }
  service.log().Event("info", fmt::format("draining: {} requests are running", service.running()));
  service.BeginDrain();
  const auto limit = std::chrono::steady_clock::now() + options.drain_limit;
  while (!service.WaitIdle(100ms)) {
    if (std::chrono::steady_clock::now() > limit || signals.Wait(0ms)) break;
  }
  const int64_t cut_off = service.running();
  server.Stop(service.running() == 0 ? std::chrono::milliseconds(2'000) : 0ms);
  service.log().Event("info", fmt::format("stopped, {} requests cut off", cut_off));
  // The engine goes before the service whose log it may write to.
  service.SetEngine(nullptr);
}

}  // namespace loopspec::serve
