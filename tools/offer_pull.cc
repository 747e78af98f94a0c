#include "tools/offer_pull.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"
#include "engine/load/model_path.h"
#include "model/model_spec.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

// Of --pull. One command runs in a process, and the model is looked up far below its options.
bool& PullWithoutAsking() {
  static bool value = false;
  return value;
}

bool Agreed() {
  if (PullWithoutAsking()) return true;
  const char* value = std::getenv("LOOPSPEC_PULL");
  return value != nullptr && (std::string_view(value) == "1" || std::string_view(value) == "true");
}

// Ctrl-C as a wish to stop, for as long as the object lives.
class InterruptScope {
 public:
  InterruptScope() {
    sigaction(SIGINT, nullptr, &before_);
    CatchInterrupt();
  }
  ~InterruptScope() { sigaction(SIGINT, &before_, nullptr); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_ {};
};

bool Offer(const std::string& model) {
  if (!hub::CanPull()) return false;
  hub::PullOptions options;
  options.name = hub::ParseName(model);
  if (!Agreed()) {
    if (!CanAsk()) return false;
    options.confirm = [&](int64_t missing) {
      return Ask(fmt::format("{} is not here. Download {} from the Hugging Face Hub?", model,
                             HumanBytes(static_cast<double>(missing))));
    };
  }
  const hub::PullResult result = PullWithProgress(std::move(options));
  if (result.status == hub::PullResult::Status::kCancelled)
    Fail("the download of {} was stopped: what has come is kept, loopspec pull {} goes on", model,
         model);
  return result.status == hub::PullResult::Status::kComplete;
}

}  // namespace

bool CanAsk() {
  return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
}

bool Ask(const std::string& question) {
  fmt::print(stderr, "{} [y/N] ", Printable(question));
  std::fflush(stderr);
  std::string line;
  if (!std::getline(std::cin, line)) fmt::print(stderr, "\n");
  return line == "y" || line == "Y" || line == "yes";
}

void AddPullFlag(Command command) {
  command
      .AddFlag("--pull,--yes", PullWithoutAsking(),
               "Download a model that is not in the Hugging Face cache without asking")
      .Group("Model");
}

void OfferMissingModels() {
  SetModelFetcher(Offer);
}

hub::PullResult PullWithProgress(hub::PullOptions options) {
  const InterruptScope interrupts;
  ProgressLine line(0.5, ProgressLine::Otherwise::kPlainLines);
  const std::string what = Printable("downloading " + options.name.repository);
  options.user_agent = "loopspec/" LOOPSPEC_VERSION;
  options.cancelled = Interrupted;
  options.check_config = [](const std::string& config, const std::string& name) {
    ParseModelSpec(config, name, {}, 0);
  };
  options.progress = [&](int64_t done, int64_t total) {
    const bool small = total < 10'000'000;
    const int64_t unit = small ? 1000 : 1'000'000;
    line.Show(what, done / unit, total / unit, small ? "kB" : "MB");
  };
  options.notice = [](const std::string& sentence) {
    const char* erase = CanErase(STDERR_FILENO) ? "\r\x1b[K" : "";
    fmt::print(stderr, "{}{}\n", erase, Printable(sentence));
  };
  return hub::Pull(options);
}

}  // namespace loopspec::tools
