#include "experiments/experiment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "decode/depths.h"
#include "experiments/tasks/tasks.h"

namespace loopspec::experiments {
namespace {

template <typename Value, size_t count>
using Names = std::array<std::pair<std::string_view, Value>, count>;

constexpr Names<ExperimentKind, 6> kKinds = {{{"speedup", ExperimentKind::kSpeedup},
                                              {"gate", ExperimentKind::kGate},
                                              {"rows", ExperimentKind::kRows},
                                              {"sources", ExperimentKind::kSources},
                                              {"distance", ExperimentKind::kDistance},
                                              {"depths", ExperimentKind::kDepths}}};
constexpr Names<DecodeSchedule, 4> kSchedules = {{{"paper", DecodeSchedule::kPaper},
                                                  {"rows", DecodeSchedule::kRows},
                                                  {"groups", DecodeSchedule::kGroups},
                                                  {"chosen", DecodeSchedule::kChosen}}};
constexpr Names<LaterProposal, 3> kLater = {{{"gated", LaterProposal::kGatedResidual},
                                             {"residual", LaterProposal::kResidual},
                                             {"non-residual", LaterProposal::kNonResidual}}};

template <typename Value, size_t count>
Value Named(const Names<Value, count>& names, const std::string& name, const std::string& what) {
  std::vector<std::string_view> known;
  for (const auto& [text, value] : names) {
    if (text == name) return value;
    known.push_back(text);
  }
  Fail("{}: found \"{}\", expected one of {}", what, name, fmt::join(known, ", "));
}

// An object whose keys are all known.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string what, std::initializer_list<std::string_view> keys)
      : json_(json), what_(std::move(what)) {
    if (!json.is_object()) Fail("{}: expected an object", what_);
    for (const auto& [key, value] : json.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        Fail("{}: unknown key \"{}\", expected one of {}", what_, key, fmt::join(keys, ", "));
      }
    }
  }

  const std::string& what() const { return what_; }
  bool Has(std::string_view key) const { return json_.contains(key); }
  const Json& Get(const std::string& key) const {
    if (!Has(key)) Fail("{}: no \"{}\"", what_, key);
    return json_[key];
  }
  std::string String(const std::string& key) const {
    Get(key);
    return *FindString(json_, key, what_);
  }
  std::string String(const std::string& key, const std::string& usual) const {
    return FindString(json_, key, what_).value_or(usual);
  }
  int Int(const std::string& key, int low, int high) const {
    Get(key);
    return static_cast<int>(*FindInt(json_, key, what_, low, high));
  }
  double Number(const std::string& key, double usual) const {
    return FindNumber(json_, key, what_).value_or(usual);
  }
  bool Bool(const std::string& key) const { return FindBool(json_, key, what_).value_or(false); }
  const Json& List(const std::string& key) const {
    if (!Get(key).is_array()) Fail("{}: \"{}\" must be a list", what_, key);
    return json_[key];
  }
  std::vector<std::string> Strings(const std::string& key) const {
    std::vector<std::string> values;
    if (!Has(key)) return values;
    for (const Json& value : List(key)) {
      if (!value.is_string()) Fail("{}: \"{}\" must hold strings", what_, key);
      values.push_back(value.get<std::string>());
    }
    return values;
  }
  std::vector<int> Ints(const std::string& key) const {
    std::vector<int> values;
    if (!Has(key)) return values;
    for (const Json& value : List(key)) {
      if (!value.is_number_integer()) Fail("{}: \"{}\" must hold whole numbers", what_, key);
      values.push_back(value.get<int>());
    }
    return values;
  }

 private:
  const Json& json_;
  std::string what_;
};

ExperimentModel ParseModel(const Json& json, const std::string& what) {
  const ObjectReader reader(json, what, {"name", "checkpoint", "recurrence"});
  return {reader.String("name"), reader.String("checkpoint"), reader.Int("recurrence", 1, 1024)};
}

ExperimentTask ParseTask(const Json& json, const std::string& what) {
  const ObjectReader reader(
      json, what,
      {"task", "shots", "chat", "thinking", "max_tokens", "max_length", "stop", "models"});
  ExperimentTask task;
  task.name = reader.String("task");
  const auto names = TaskNames();
  if (std::find(names.begin(), names.end(), task.name) == names.end()) {
    Fail("{}: task \"{}\" is unknown", what, task.name);
  }
  if (reader.Has("shots")) task.shots = reader.Int("shots", 0, 64);
  task.chat = reader.Bool("chat");
  task.thinking = reader.Bool("thinking");
  if (task.thinking && !task.chat) Fail("{}: \"thinking\" needs \"chat\"", what);
  task.max_tokens = reader.Int("max_tokens", 1, 1 << 20);
  task.max_length = reader.Int("max_length", 1, 1 << 20);
  if (task.max_length <= task.max_tokens + 1) {
    Fail("{}: max_length {} leaves no room for a prompt before {} new tokens", what,
         task.max_length, task.max_tokens);
  }
  task.stop = reader.Strings("stop");
  task.models = reader.Strings("models");
  return task;
}

ExperimentSampling ParseSampling(const Json& json, const std::string& what) {
  const ObjectReader reader(json, what, {"name", "temperature", "top_p"});
  ExperimentSampling sampling{reader.String("name"), reader.Number("temperature", 0),
                              reader.Number("top_p", 1)};
  if (sampling.temperature < 0) Fail("{}: temperature {} is below 0", what, sampling.temperature);
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    Fail("{}: top_p {}, expected over 0 and at most 1", what, sampling.top_p);
  }
  return sampling;
}

ExperimentDecode ParseDecode(const Json& json, const std::string& what) {
  const ObjectReader reader(json, what, {"depths", "later", "recurrence", "schedule", "lookup"});
  ExperimentDecode decode;
  reader.List("depths");
  decode.depths = reader.Ints("depths");
  decode.lookup = reader.Bool("lookup");
  if (decode.lookup && !decode.depths.empty()) Fail("{}: \"lookup\" has no depths", what);
  decode.schedule = Named(kSchedules, reader.String("schedule", "chosen"), what);
  decode.later = Named(kLater, reader.String("later", "gated"), what);
  if (reader.Has("recurrence")) decode.recurrence = reader.Int("recurrence", 1, 1024);
  return decode;
}

PaperFigure ParseFigure(const Json& json, const std::string& what) {
  const ObjectReader reader(json, what, {"model", "task", "sampling", "decode", "values"});
  PaperFigure figure{reader.String("model"),
                     reader.String("task", ""),
                     reader.String("sampling", ""),
                     std::nullopt,
                     {}};
  if (reader.Has("decode")) figure.decode = ParseDecode(reader.Get("decode"), what);
  if (!reader.Get("values").is_object()) Fail("{}: \"values\" must be an object", what);
  for (const auto& [key, value] : reader.Get("values").items()) {
    if (!value.is_number()) Fail("{}: \"{}\" must be a number", what, key);
    figure.values[key] = value.get<double>();
  }
  return figure;
}

template <typename Value, typename Parse>
std::vector<Value> ParseAll(const ObjectReader& reader, const std::string& key, Parse parse) {
  std::vector<Value> values;
  for (const Json& entry : reader.List(key)) {
    values.push_back(parse(entry, fmt::format("{}, {} {}", reader.what(), key, values.size() + 1)));
  }
  return values;
}

bool SameDecode(const ExperimentDecode& a, const ExperimentDecode& b) {
  return a.depths == b.depths && a.later == b.later && a.lookup == b.lookup;
}

template <typename Value>
void CheckDistinct(const std::vector<Value>& values, const std::string& what) {
  std::set<std::string> seen;
  for (const Value& value : values) {
    if (!seen.insert(value.name).second) Fail("{}: two of the name \"{}\"", what, value.name);
  }
}

void CheckDeclared(const Experiment& experiment, const PaperFigure& figure,
                   const std::string& what) {
  const ExperimentModel* model = experiment.FindModel(figure.model);
  if (model == nullptr) {
    Fail("{}: a figure of the paper for \"{}\", which is no model of it", what, figure.model);
  }
  const auto has = [&what](const auto& list, const std::string& name, std::string_view kind) {
    if (name.empty()) return;
    const bool found = std::any_of(list.begin(), list.end(),
                                   [&](const auto& value) { return value.name == name; });
    if (!found) Fail("{}: a figure of the paper for {} \"{}\", not declared", what, kind, name);
  };
  has(experiment.tasks, figure.task, "task");
  has(experiment.samplings, figure.sampling, "sampling");
  if (!figure.decode) return;
  const bool declared = std::any_of(
      experiment.decodes.begin(), experiment.decodes.end(), [&](const ExperimentDecode& decode) {
        const bool suits = decode.recurrence == 0 || decode.recurrence == model->recurrence;
        return suits && SameDecode(decode, *figure.decode);
      });
  if (!declared) {
    Fail("{}: a figure of the paper for {} at depths {}, not declared", what, figure.model,
         fmt::join(figure.decode->depths, ","));
  }
}

void CheckExperiment(const Experiment& experiment, const std::string& what) {
  if (experiment.models.empty()) Fail("{}: no models", what);
  if (experiment.tasks.empty()) Fail("{}: no tasks", what);
  if (experiment.samplings.empty()) Fail("{}: no samplings", what);
  CheckDistinct(experiment.models, what);
  CheckDistinct(experiment.samplings, what);
  for (const ExperimentTask& task : experiment.tasks) {
    for (const std::string& model : task.models) {
      if (experiment.FindModel(model) == nullptr) {
        Fail("{}: task {} names the model \"{}\", which is not declared", what, task.name, model);
      }
    }
  }
  for (const ExperimentModel& model : experiment.models) {
    bool any = experiment.decodes.empty();
    for (const ExperimentDecode& decode : experiment.decodes) {
      if (decode.recurrence != 0 && decode.recurrence != model.recurrence) continue;
      CheckDepths(decode.depths, model.recurrence);
      any = true;
    }
    if (!any) Fail("{}: no decoding spec for {}", what, model.name);
    for (const int depth : experiment.distance_depths) {
      if (depth < 1 || depth > model.recurrence) {
        Fail("{}: distance depth {}, expected 1 to {}", what, depth, model.recurrence);
      }
    }
  }
  for (const PaperFigure& figure : experiment.paper) CheckDeclared(experiment, figure, what);
}

}  // namespace

std::string SpecName(const ExperimentDecode& decode) {
  if (decode.depths.empty()) return decode.lookup ? "lookup" : "ar";
  std::string name = fmt::format("loopspec:{}", fmt::join(decode.depths, ","));
  for (const auto& [text, value] : kLater) {
    if (value == decode.later && value != LaterProposal::kGatedResidual)
      name += fmt::format("/{}", text);
  }
  switch (decode.schedule) {
    case DecodeSchedule::kPaper:
      return name + "/paper";
    case DecodeSchedule::kRows:
      return name + "/g1/noearly";
    case DecodeSchedule::kGroups:
      return name + "/noearly";
    case DecodeSchedule::kChosen:
      return name;
  }
  return name;
}

std::string NameOf(DecodeSchedule schedule) {
  switch (schedule) {
    case DecodeSchedule::kPaper:
      return "the paper's";
    case DecodeSchedule::kRows:
      return "+ rows by cost";
    case DecodeSchedule::kGroups:
      return "+ groups";
    case DecodeSchedule::kChosen:
      return "+ early children";
  }
  return "";
}

const ExperimentModel* Experiment::FindModel(const std::string& model) const {
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&](const ExperimentModel& m) { return m.name == model; });
  return found == models.end() ? nullptr : &*found;
}

bool Experiment::Runs(const ExperimentTask& task, const ExperimentModel& model) {
  return task.models.empty() ||
         std::find(task.models.begin(), task.models.end(), model.name) != task.models.end();
}

Experiment ParseExperiment(const Json& json, const std::string& what) {
  const ObjectReader reader(json, what,
                            {"name", "title", "source", "meaning", "kind", "seed", "models",
                             "tasks", "samplings", "decodes", "distance_depths", "paper"});
  Experiment experiment;
  experiment.declaration = json.dump();
  experiment.name = reader.String("name");
  experiment.title = reader.String("title");
  experiment.source = reader.String("source");
  experiment.meaning = reader.String("meaning");
  experiment.kind = Named(kKinds, reader.String("kind"), what);
  if (reader.Has("seed")) experiment.seed = static_cast<uint64_t>(reader.Int("seed", 0, 1 << 30));
  experiment.models = ParseAll<ExperimentModel>(reader, "models", ParseModel);
  experiment.tasks = ParseAll<ExperimentTask>(reader, "tasks", ParseTask);
  experiment.samplings = ParseAll<ExperimentSampling>(reader, "samplings", ParseSampling);
  if (reader.Has("decodes")) {
    experiment.decodes = ParseAll<ExperimentDecode>(reader, "decodes", ParseDecode);
  }
  experiment.distance_depths = reader.Ints("distance_depths");
  if (reader.Has("paper")) experiment.paper = ParseAll<PaperFigure>(reader, "paper", ParseFigure);
  CheckExperiment(experiment, what);
  return experiment;
}

Experiment ReadExperiment(const std::filesystem::path& path) {
  return ParseExperiment(ReadJsonFile(path), path.string());
}

std::map<std::string, Experiment> ReadExperiments(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) Fail("{}: no such folder", folder.string());
  std::map<std::string, Experiment> experiments;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    Experiment experiment = ReadExperiment(entry.path());
    const std::string name = experiment.name;
    if (!experiments.emplace(name, std::move(experiment)).second) {
      Fail("{}: two experiments of the name \"{}\"", folder.string(), name);
    }
  }
  return experiments;
}

}  // namespace loopspec::experiments
