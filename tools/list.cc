// loopspec list: the models that are here, installed or in the Hugging Face cache.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "engine/load/model_path.h"
#include "hub/cached_models.h"
#include "model/model_spec.h"
#include "tools/commands.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

// The family of a model that this engine runs; nothing for others.
std::string FamilyIn(const std::filesystem::path& folder) {
  try {
    return ReadModelSpec(folder).family;
  } catch (const Error&) {
    return "";
  }
}
std::string FamilyOf(const hub::CachedSnapshot& snapshot) {
  return snapshot.complete ? FamilyIn(snapshot.folder) : "";
}

uintmax_t FolderBytes(const std::filesystem::path& folder) {
  uintmax_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) bytes += entry.file_size(error);
  }
  return bytes;
}

void PrintJson(const std::vector<hub::CachedModel>& models) {
  OrderedJson out = OrderedJson::array();
  for (const hub::CachedModel& model : models) {
    OrderedJson snapshots = OrderedJson::array();
    for (const hub::CachedSnapshot& snapshot : model.snapshots) {
      const std::string family = FamilyOf(snapshot);
      snapshots.push_back(
          {{"commit", snapshot.commit},
           {"references", snapshot.references},
           {"folder", snapshot.folder.string()},
           {"bytes", snapshot.bytes},
           {"complete", snapshot.complete},
           {"family", family.empty() ? OrderedJson(nullptr) : OrderedJson(family)}});
    }
    out.push_back({{"model", model.name},
                   {"bytes", model.bytes},
                   {"partial_bytes", model.partial},
                   {"snapshots", std::move(snapshots)}});
  }
  fmt::print("{}\n", out.dump(2));
}

// A line per snapshot; those of models that this engine does not run only with `all`.
void PrintTable(const std::vector<hub::CachedModel>& models, bool all) {
  struct Row {
    std::string name, revision, commit, size, family;
  };
  std::vector<Row> rows = {{"model", "revision", "commit", "size", "family"}};
  for (const std::string& name : InstalledModels()) {
    const std::filesystem::path folder = FindInstalledModel(name);
    rows.push_back({Printable(name), "installed", "-",
                    HumanBytes(static_cast<double>(FolderBytes(folder))), FamilyIn(folder)});
  }
  int others = 0;
  for (const hub::CachedModel& model : models) {
    const std::string name = Printable(model.name);
    for (const hub::CachedSnapshot& snapshot : model.snapshots) {
      const std::string family = FamilyOf(snapshot);
      if (family.empty() && snapshot.complete && !all) {
        ++others;
        continue;
      }
      rows.push_back({name, Printable(fmt::format("{}", fmt::join(snapshot.references, ", "))),
                      Printable(snapshot.commit.substr(0, 10)),
                      HumanBytes(static_cast<double>(snapshot.bytes)),
                      snapshot.complete ? family.empty() ? "-" : family : "not complete"});
    }
    if (model.partial > 0)
      rows.push_back(
          {name, "", "", HumanBytes(static_cast<double>(model.partial)), "begun, not finished"});
  }
  if (rows.size() > 1) {
    size_t name = 0, revision = 0;
    for (const Row& row : rows) {
      name = std::max(name, row.name.size());
      revision = std::max(revision, row.revision.size());
    }
    for (const Row& row : rows)
      fmt::print("{:<{}}  {:<{}}  {:<10}  {:>9}  {}\n", row.name, name, row.revision, revision,
                 row.commit, row.size, row.family);
  } else {
    fmt::print(stderr, "no models that loopspec runs in {} (loopspec pull ORG/NAME gets one)\n",
               hub::CacheFolder().string());
  }
  if (others > 0)
    fmt::print(stderr, "and {} that loopspec does not run (loopspec list --all)\n", others);
}

}  // namespace

void AddListCommand(Command app) {
  const Command command =
      app.AddCommand(
             "list",
             "List the models that are here: installed ones and those of the Hugging Face cache")
          .Alias("ls");
  auto all = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command.AddFlag("--all,-a", *all, "Those that loopspec does not run too");
  command.AddFlag("--json", *json, "Print all of them as JSON");
  auto names = std::make_shared<bool>(false);
  command.AddFlag("--names", *names, "Print the names alone, one per line");
  command.SetAction([all, json, names] {
    const std::vector<hub::CachedModel> models = hub::ListCachedModels();
    if (*names) {
      for (const hub::CachedModel& model : models) fmt::print("{}\n", Printable(model.name));
    } else if (*json)
      PrintJson(models);
    else
      PrintTable(models, *all);
  });
}

}  // namespace loopspec::tools
