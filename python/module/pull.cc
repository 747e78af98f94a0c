// Downloads from the Hugging Face Hub, for Engine(..., pull=True).
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "engine/load/model_path.h"
#include "hub/pull.h"
#include "in_call.h"
#include "model/model_spec.h"
#include "signals.h"

namespace loopspec::python {
namespace nb = nanobind;
using namespace nb::literals;

namespace {

using OnProgress = std::function<void(int64_t done, int64_t total)>;
using OnNotice = std::function<void(const std::string& sentence)>;

// Returns the bytes of the model's files when they are in the cache. A signal's handler that raises
// ends it; what has come stays, and the next call goes on from there.
int64_t Pull(const std::string& model, const OnProgress& progress, const OnNotice& notice) {
  const InCall call;
  if (!hub::CanPull())
    Fail(
        "{} cannot be downloaded: this build of loopspec has no libcurl (download it with: hf "
        "download {}, from pip install huggingface_hub)",
        model, model);
  std::atomic<bool> raised{false};
  hub::PullOptions options;
  options.name = hub::ParseName(model);
  options.user_agent = "loopspec/" LOOPSPEC_VERSION " python";
  options.check_config = [](const std::string& config, const std::string& name) {
    ParseModelSpec(config, name, {}, 0);
  };
  options.cancelled = [&] { return raised.load(); };
  // In this thread, a few times a second: what a handler or the callback raises stays the thread's
  // current error until the download has stopped.
  options.progress = [&](int64_t done, int64_t total) {
    if (raised) return;
    const nb::gil_scoped_acquire lock;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      progress(done, total);
    } catch (nb::python_error& error) {
      error.restore();
      raised = true;
    }
  };
  options.notice = [&](const std::string& sentence) {
    const nb::gil_scoped_acquire lock;
    notice(sentence);
  };
  hub::PullResult result;
  {
    const nb::gil_scoped_release without;
    result = hub::Pull(options);
  }
  if (raised) throw nb::python_error();
  return result.bytes;
}

}  // namespace

void BindPull(nb::module_& module) {
  SetPullCommand([](const std::string& model) { return "Engine(\"" + model + "\", pull=True)"; });
  module.def("pull", &Pull, "model"_a, "progress"_a, "notice"_a);
}

}  // namespace loopspec::python
