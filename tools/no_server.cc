// In place of serve.cc and batch.cc where the server is not built (LOOPSPEC_SERVER=OFF).
#include <string>

#include "base/error.h"
#include "tools/commands.h"

namespace loopspec::tools {
namespace {

void AddLeftOut(Command app, const std::string& name, const std::string& what) {
  app.AddCommand(name, what + " (left out of this build)").SetAction([name] {
    Fail("this loopspec was built without {}, expected LOOPSPEC_SERVER=ON", name);
  });
}

}  // namespace

void AddServeCommand(Command app) {
  AddLeftOut(app, "serve", "Serve requests over HTTP");
}

void AddBatchCommand(Command app) {
  AddLeftOut(app, "batch", "Answer a file of requests");
}

}  // namespace loopspec::tools
