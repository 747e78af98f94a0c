// loopspec pull: a model from the Hugging Face Hub.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/json.h"
#include "base/timer.h"
#include "hub/pull.h"
#include "tools/commands.h"
#include "tools/offer_pull.h"
#include "tools/progress.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct PullArguments {
  std::string model;
  int jobs = 8;
  bool verify = false;
  bool json = false;
};

void RunPull(const PullArguments& arguments) {
  hub::PullOptions options;
  options.name = hub::ParseName(arguments.model);
  options.jobs = arguments.jobs;
  options.verify = arguments.verify;
  const Timer timer;
  const hub::PullResult result = PullWithProgress(std::move(options));
  if (result.status == hub::PullResult::Status::kCancelled) {
    fmt::print(stderr, "stopped: what has come is kept, the same command goes on from there\n");
    return;
  }
  if (arguments.json) {
    const OrderedJson out = {
        {"model", arguments.model}, {"commit", result.commit}, {"folder", result.folder.string()},
        {"files", result.files},    {"bytes", result.bytes},   {"received", result.received}};
    fmt::print("{}\n", out.dump(2));
    return;
  }
  if (result.status == hub::PullResult::Status::kOffline) {
    fmt::print(stderr, "HF_HUB_OFFLINE is set: this is what the cache has\n");
  } else if (result.received == 0) {
    fmt::print(stderr, "{}: all {} files are here\n", arguments.model, result.files);
  } else {
    fmt::print(stderr, "{}: {} files, {}, of which {} came in {}\n", arguments.model, result.files,
               HumanBytes(static_cast<double>(result.bytes)),
               HumanBytes(static_cast<double>(result.received)), HumanSeconds(timer.Seconds()));
  }
  fmt::print("{}\n", result.folder.string());
}

}  // namespace

void AddPullCommand(Command app) {
  const Command command =
      app.AddCommand("pull", "Download a model from the Hugging Face Hub into its cache")
          .Alias("download");
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec pull ByteDance/Ouro-1.4B\n"
      "  loopspec pull ByteDance/Ouro-1.4B@main --verify\n"
      "\n"
      "Only the files that the engine reads are downloaded; hf download and transformers find them "
      "in the same cache.\n"
      "What has come before a break is kept. HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN and "
      "HF_HUB_OFFLINE are heeded.");
  auto arguments = std::make_shared<PullArguments>();
  command.AddOption("name", arguments->model, "ORG/NAME, or ORG/NAME@REVISION").Required();
  command.AddOption("--jobs,-j", arguments->jobs, "Files at a time").Range(1, 64).ShowDefault();
  command.AddFlag("--verify", arguments->verify,
                  "Read the files that are here already too, and download again what is damaged");
  command.AddFlag("--json", arguments->json, "Print JSON");
  command.SetAction([arguments] { RunPull(*arguments); });
}

}  // namespace loopspec::tools
