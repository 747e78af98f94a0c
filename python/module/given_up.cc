#include "given_up.h"

#include <mutex>
#include <vector>

#include "home_process.h"

namespace loopspec::python {
namespace {

using Ended = std::function<bool(std::chrono::milliseconds most)>;

struct GivenUp {
  HomeProcess process;  // a forked child has no thread that would end any of it
  std::mutex mutex;
  std::vector<Ended> work;
};
GivenUp& TheGivenUp() {
  static GivenUp* given_up = new GivenUp;  // never destroyed: a child could not wait for its work
  return *given_up;
}

}  // namespace

void KeepGivenUp(Ended ended) {
  GivenUp& given_up = TheGivenUp();
  if (!given_up.process.here()) return;
  const std::lock_guard lock(given_up.mutex);
  std::erase_if(given_up.work, [](const Ended& old) { return old(std::chrono::milliseconds(0)); });
  given_up.work.push_back(std::move(ended));
}

void FinishGivenUp() {
  GivenUp& given_up = TheGivenUp();
  if (!given_up.process.here()) return;
  std::vector<Ended> work;
  {
    const std::lock_guard lock(given_up.mutex);
    work.swap(given_up.work);
  }
  for (const Ended& ended : work) {
    while (!ended(std::chrono::milliseconds(1000))) {
    }
  }
}

}  // namespace loopspec::python
