// loopspec rm: takes a model out of the Hugging Face cache.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "hub/cached_models.h"
#include "tools/commands.h"
#include "tools/offer_pull.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

void RunRm(const std::string& model, bool yes) {
  const hub::Name name = hub::ParseName(model);
  hub::CheckName(name);
  if (!yes) {
    if (!CanAsk()) Fail("rm {}: nobody to ask, expected --yes", model);
    if (!Ask(fmt::format("Remove {} from {}?", model, hub::CacheFolder().string()))) {
      fmt::print(stderr, "nothing was removed\n");
      return;
    }
  }
  const int64_t freed = hub::RemoveCachedModel(name);
  fmt::print(stderr, "removed {}, {}\n", model, HumanBytes(static_cast<double>(freed)));
}

}  // namespace

void AddRmCommand(Command app) {
  const Command command =
      app.AddCommand("rm", "Remove a model from the Hugging Face cache").Alias("remove");
  command.SetFooter(
      "\nWith @REVISION (a branch, a tag or the beginning of a commit) that snapshot alone, and "
      "the files that no other one needs.");
  auto model = std::make_shared<std::string>();
  auto yes = std::make_shared<bool>(false);
  command.AddOption("name", *model, "ORG/NAME, or ORG/NAME@REVISION")
      .Required()
      .CompletedBy("list --names");
  command.AddFlag("--yes,-y", *yes, "Do not ask");
  command.SetAction([model, yes] { RunRm(*model, *yes); });
}

}  // namespace loopspec::tools
