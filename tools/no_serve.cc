// In place of serve.cc where the server is not built (LOOPSPEC_SERVER=OFF).
#include "base/error.h"
#include "tools/commands.h"

namespace loopspec::tools {

void AddServeCommand(Command app) {
  app.AddCommand("serve", "Serve requests over HTTP (left out of this build)").SetAction([] {
    Fail("this loopspec was built without its server, expected LOOPSPEC_SERVER=ON");
  });
}

}  // namespace loopspec::tools
