#include "experiments/experiment_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/device.h"
#include "experiments/experiment_run.h"
#include "experiments/experiment_tables.h"
#include "experiments/record_log.h"

namespace loopspec::experiments {
namespace {

// In the order of the paper: speed, what drafts are made of, what they rest on.
constexpr ExperimentKind kOrder[] = {ExperimentKind::kSpeedup,  ExperimentKind::kSources,
                                     ExperimentKind::kGate,     ExperimentKind::kRows,
                                     ExperimentKind::kDistance, ExperimentKind::kDepths};

ExperimentResult ReadResult(const std::filesystem::path& path) {
  const RecordFile file = ReadRecords(path);
  const std::string what = path.string();
  const Json& settings = file.settings;
  if (!settings.is_object() || !settings.contains("experiment"))
    Fail("{} holds no records of an experiment", what);
  ExperimentResult result;
  result.experiment = ParseExperiment(settings["experiment"], what);
  if (settings.contains("paper") && settings["paper"].is_object())
    result.paper = ParseExperiment(settings["paper"], what);
  const auto text = [&](const char* key) { return FindString(settings, key, what).value_or(""); };
  result.model = text("model");
  result.device = text("device");
  result.chip = text("chip");
  result.precision = NameOfPrecision(text("compute"), text("kv_type"));
  result.version = text("version");
  result.checkpoint = text("checkpoint");
  result.dtype = text("dtype");
  result.weights = text("weights_sha256");
  result.date = text("date");
  result.command = text("command");
  result.parameters = FindInt(settings, "parameters", what, 0, int64_t{1} << 50).value_or(0);
  result.kv_bytes_per_token =
      FindInt(settings, "kv_bytes_per_token", what, 0, int64_t{1} << 40).value_or(0);
  result.earlier_clock = text("clock").empty();
  // A name that the user gave says nothing about what was measured.
  result.label = text("as").empty() || result.checkpoint.empty()
                     ? result.model
                     : fmt::format("{} as {}", result.checkpoint, result.model);
  if (settings.contains("prompt_notes") && settings["prompt_notes"].is_array()) {
    for (const Json& note : settings["prompt_notes"])
      if (note.is_string()) result.notes.push_back(note.get<std::string>());
  }
  result.recurrence = static_cast<int>(FindInt(settings, "recurrence", what, 1, 4096).value_or(1));
  result.threads = static_cast<int>(FindInt(settings, "threads", what, 0, 1 << 20).value_or(0));
  result.max_tokens =
      static_cast<int>(FindInt(settings, "max_tokens", what, 0, INT32_MAX).value_or(0));
  result.bandwidth = FindNumber(settings, "bandwidth", what).value_or(0);
  std::set<std::string> seen;
  for (size_t i = 0; i < file.records.size(); ++i) {
    const Json& json = file.records[i];
    const std::string line = fmt::format("{}, line {}", what, i + 2);
    if (IsDistance(json)) {
      const std::string group = FindString(json, "group", line).value_or("");
      result.distances[group].Add(ParseDistance(json, line));
      continue;
    }
    if (json.is_object() && json.contains(kPeakMemory)) {
      const auto bytes = FindInt(json, kPeakMemory, line, 0, int64_t{1} << 50);
      result.peak_memory = std::max(result.peak_memory, bytes.value_or(0));
      continue;
    }
    RunRecord record = ParseRunRecord(json, line);
    if (result.earlier_clock)
      record.statistics.decode_seconds +=
          std::max(0.0, record.statistics.first_token_seconds - record.statistics.prefill_seconds);
    if (seen.insert(record.Key()).second) result.runs[record.group][record.way].Add(record);
  }
  return result;
}

bool IsRecords(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" && std::filesystem::is_regular_file(path);
}

// Two runs of a model differ in the precision, which their names then say.
void LabelPrecisions(std::vector<ExperimentResult>& results) {
  std::map<std::string, int> count;
  for (const ExperimentResult& result : results) ++count[result.label];
  for (ExperimentResult& result : results) {
    if (count[result.label] > 1) result.label += fmt::format(" ({})", result.precision);
  }
}

std::map<std::string, std::vector<ExperimentResult>> ReadAll(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (IsRecords(entry.path())) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::map<std::string, std::vector<ExperimentResult>> results;
  for (const std::filesystem::path& path : paths) {
    ExperimentResult result = ReadResult(path);
    std::vector<ExperimentResult>& same = results[result.experiment.name];
    if (!same.empty() && same[0].experiment.declaration != result.experiment.declaration)
      Fail("{}: experiment {} is declared otherwise than in another file of {}", path.string(),
           result.experiment.name, folder.string());
    same.push_back(std::move(result));
  }
  for (auto& [name, same] : results) LabelPrecisions(same);
  if (results.empty())
    Fail("{} holds no records, expected files that loopspec experiment run has written",
         folder.string());
  return results;
}

void AddMachines(const std::map<std::string, std::vector<ExperimentResult>>& results,
                 HtmlPage& page) {
  HtmlTable table;
  table.caption = "What was measured";
  table.columns = {
      {"checkpoint", false},   {"parameters"},      {"weights", false},    {"sha256", false},
      {"shown beside", false}, {"chip", false},     {"precision", false},  {"seed"},
      {"date", false},         {"loopspec", false}, {"experiments", false}};
  std::map<std::vector<std::string>, std::set<std::string>> machines;
  std::set<std::string> commands, notes;
  bool earlier = false;
  for (const auto& [name, all] : results) {
    for (const ExperimentResult& r : all) {
      const std::string own = r.checkpoint.empty() ? r.model : r.checkpoint;
      machines[{own,
                r.parameters > 0 ? fmt::format("{:.1f} M", static_cast<double>(r.parameters) / 1e6)
                                 : "–",
                r.dtype.empty() ? "–" : r.dtype, r.weights.empty() ? "–" : r.weights.substr(0, 12),
                own == r.model ? "–" : "the paper's " + r.model,
                r.chip + (r.device == "cpu" ? fmt::format(", {} threads", r.threads) : ""),
                r.precision, std::to_string(r.experiment.seed), r.date.empty() ? "–" : r.date,
                r.version}]
          .insert(name);
      if (!r.command.empty()) commands.insert(r.command);
      notes.insert(r.notes.begin(), r.notes.end());
      earlier = earlier || r.earlier_clock;
    }
  }
  for (const auto& [fields, names] : machines) {
    std::vector<HtmlCell> row(fields.begin(), fields.end());
    row.emplace_back(fmt::format("{}", fmt::join(names, ", ")));
    table.rows.push_back(std::move(row));
  }
  page.AddTable(table);
  for (const std::string& command : commands) page.AddParagraph("Run by: " + command);
  for (const std::string& note : notes) page.AddParagraph(note);
  if (earlier)
    page.AddParagraph(
        "Some of these records are of an earlier version, whose clock started at the first token; "
        "what came before it is recorded too and was added.");
  std::map<int, std::set<std::string>> shortened;  // experiments by the tokens they were cut at
  for (const auto& [name, all] : results) {
    for (const ExperimentResult& r : all) {
      if (r.max_tokens > 0) shortened[r.max_tokens].insert(name);
    }
  }
  for (const auto& [tokens, names] : shortened) {
    page.AddParagraph(fmt::format(
        "Shorter than declared, at most {} new tokens, so that longer answers are cut: {}.", tokens,
        fmt::join(names, ", ")));
  }
}

}  // namespace

std::string ReportExperiments(const std::filesystem::path& folder) {
  const auto results = ReadAll(folder);
  HtmlPage page("LoopSpec: the paper's experiments, repeated");
  page.AddParagraph(
      "A looped transformer runs the same blocks R times for every token. LoopSpec lets an early "
      "recurrence draft the next token, starts on it at once, and lets the last recurrence decide: "
      "the text is exactly the model's own, sooner. This page repeats the measurements of the "
      "paper, with the paper's figures beside them where it has any for the model, or for the one "
      "that --as names, which is another.");
  AddMachines(results, page);
  for (const ExperimentKind kind : kOrder) {
    for (const auto& [name, all] : results) {
      if (all[0].experiment.kind == kind) AddExperiment(all, page);
    }
  }
  return page.Text();
}

}  // namespace loopspec::experiments
