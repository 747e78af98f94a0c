#include "experiments/experiment_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "decode/depths.h"
#include "experiments/experiment_run.h"
#include "loopspec/engine.h"
#include "report/plot.h"

namespace loopspec::experiments {
namespace {

constexpr int kRowsOfBin = 10;  // as in the paper's histograms

// Keys, values and memory.
void AddMemory(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.caption = "Memory";
  table.columns = {
      {"model", false}, {"precision", false}, {"KV per token"},    {"longest text"},
      {"KV of it"},     {"peak rows"},        {"KV of peak rows"}, {"peak memory of the process"}};
  const auto size = [](double bytes) {
    return bytes >= 1e9   ? fmt::format("{:.2f} GB", bytes / 1e9)
           : bytes >= 1e6 ? fmt::format("{:.1f} MB", bytes / 1e6)
                          : fmt::format("{:.1f} kB", bytes / 1e3);
  };
  for (const ExperimentResult& result : results) {
    if (result.kv_bytes_per_token == 0) continue;
    const auto kv = static_cast<double>(result.kv_bytes_per_token);
    int64_t longest = 0;
    int peak = 0;
    for (const auto& [group, specs] : result.runs) {
      for (const auto& [spec, totals] : specs) {
        longest = std::max(longest, totals.longest);
        peak = std::max(peak, totals.statistics.rows_peak);
      }
    }
    table.rows.push_back(
        {result.label, result.precision, size(kv), fmt::format("{} tokens", longest),
         size(kv * static_cast<double>(longest)), std::to_string(peak), size(kv * peak),
         result.peak_memory > 0 ? size(static_cast<double>(result.peak_memory)) : kNone});
  }
  if (!table.rows.empty()) page.AddTable(table);
}

// ---- Gate, rows, sources

void AddGate(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  const std::vector<std::string> tasks = TasksOf(results);
  HtmlTable table;
  table.caption = "Share of readouts at the second depth whose gate opens";
  table.columns = {{"model", false}, {"proposal depths", false}, {"from", false}};
  for (const std::string& task : tasks) table.columns.push_back({TaskTitle(task)});
  for (const ExperimentResult& result : results) {
    const std::string sampling = result.experiment.samplings[0].name;
    for (const ExperimentDecode& decode : Compared(result)) {
      std::vector<HtmlCell> ours = {result.label, RowName(decode), "here"};
      std::vector<HtmlCell> paper = {"", "", "paper"};
      bool any = false;
      for (const std::string& task : tasks) {
        const RunTotals* t = result.Find(task, sampling, SpecName(decode));
        ours.push_back(HtmlCell(Percent(result.Figures(task, sampling, decode).gate, 2),
                                t != nullptr ? fmt::format("{} texts, {} readouts", t->texts,
                                                           t->statistics.gate_evaluated)
                                             : ""));
        const auto value = PaperValue(result.experiment, result.model, task, sampling, &decode,
                                      "gate_opening_percent");
        paper.push_back(Number(value, 2, value ? " %" : ""));
        any = any || value;
      }
      table.rows.push_back(ours);
      table.strong.push_back(true);
      if (any) table.rows.push_back(paper);
      if (any) table.strong.push_back(false);
    }
  }
  page.AddTable(table);
}

void AddRows(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.columns = {{"model", false},    {"task", false}, {"second proposal", false},
                   {"schedule", false}, {"mean rows"},   {"paper: mean"},
                   {"peak rows"},       {"paper: peak"}, {"bound"}};
  page.BeginRow();
  for (const ExperimentResult& result : results) {
    const std::string sampling = result.experiment.samplings[0].name;
    for (const std::string& task : TasksOf(results)) {
      BarPlot plot;
      plot.title = fmt::format("{}, {}", result.label, TaskTitle(task));
      plot.x_label = "rows of a recurrent pass";
      plot.y.label = "share of passes, %";
      std::vector<Histogram> histograms;
      // A handful of rows needs no bins.
      size_t most = 0;
      for (const ExperimentDecode& decode : Compared(result)) {
        const RunTotals* t = result.Find(task, sampling, SpecName(decode));
        if (t != nullptr) most = std::max(most, static_cast<size_t>(t->statistics.rows_peak));
      }
      const int width = most > 2 * kRowsOfBin ? kRowsOfBin : 1;
      for (const ExperimentDecode& decode : Compared(result)) {
        const RunTotals* t = result.Find(task, sampling, SpecName(decode));
        if (t == nullptr) continue;
        const auto paper = [&](const char* key, int digits) {
          return Number(PaperValue(result.experiment, result.model, task, sampling, &decode, key),
                        digits);
        };
        const bool gated = decode.later == LaterProposal::kGatedResidual;
        const std::vector<int>& d = decode.depths;
        const bool bounded = d.size() == 2 && d[1] % d[0] == 0 && result.recurrence % d[0] == 0;
        table.rows.push_back(
            {result.label, TaskTitle(task), gated ? "gated" : "without the gate",
             NameOf(decode.schedule),
             HtmlCell(Number(t->statistics.rows_mean),
                      fmt::format("{} text{}, {} passes", t->texts, t->texts == 1 ? "" : "s",
                                  t->statistics.recurrences)),
             paper("mean_rows", 2), std::to_string(t->statistics.rows_peak), paper("peak_rows", 0),
             bounded ? std::to_string(BranchBound(d[0], d[1], result.recurrence)) : kNone});
        const Histogram histogram = BinCounts(t->statistics.rows_histogram, width);
        if (histogram.bins.size() > plot.categories.size()) plot.categories = histogram.bins;
        BarSeries series;
        series.name = gated ? "gated" : "without the gate";
        for (const double percent : histogram.percent)
          series.values.push_back(BarValue{percent, {}, {}});
        plot.series.push_back(std::move(series));
      }
      if (width == 1) {
        for (size_t i = 0; i < plot.categories.size(); ++i)
          plot.categories[i] = std::to_string(i + 1);
      }
      page.AddFigure(BarSvg(plot), width > 1
                                       ? fmt::format("How many branches a recurrent pass advances "
                                                     "together, in bins of {} rows.",
                                                     width)
                                       : "How many branches a recurrent pass advances together.");
    }
  }
  page.EndRow();
  table.caption =
      "Rows of a recurrent pass; the bound is the paper's B, of a pipeline in which every gate "
      "opens";
  page.AddTable(table);
}

void AddSources(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.columns = {{"model", false}, {"task", false},  {"proposal depths", false},
                   {"first draft"},  {"second draft"}, {"fallback"},
                   {"equal"}};
  page.BeginRow();
  for (const ExperimentResult& result : results) {
    const std::string sampling = result.experiment.samplings[0].name;
    for (const ExperimentDecode& decode : Compared(result)) {
      BarPlot plot;
      plot.title = fmt::format("{}, depths {}", result.label, RowName(decode));
      plot.y.label = "committed tokens, %";
      plot.stacked = true;
      plot.series = {{"first draft", {}}, {"second draft", {}}, {"fallback", {}}};
      for (const std::string& task : TasksOf(results)) {
        const RunTotals* t = result.Find(task, sampling, SpecName(decode));
        if (t == nullptr) continue;
        const SpecFigures f = result.Figures(task, sampling, decode);
        const double shares[] = {f.accepted.empty() ? 0 : f.accepted[0],
                                 f.accepted.size() < 2 ? 0 : f.accepted[1], f.fallback};
        plot.categories.push_back(TaskTitle(task));
        for (size_t i = 0; i < 3; ++i)
          plot.series[i].values.push_back(BarValue{100 * shares[i], {}, {}});
        table.rows.push_back(
            {result.label, TaskTitle(task), RowName(decode),
             HtmlCell(Percent(shares[0], 2), Counted(f)), Percent(shares[1], 2),
             Percent(shares[2], 2),
             t->compared > 0 ? fmt::format("{} of {}", t->equal, t->compared) : kNone});
      }
      page.AddFigure(BarSvg(plot), "Where the tokens of the text come from.");
      std::vector<HtmlCell> paper = {result.model, "paper, over its benchmarks", RowName(decode)};
      for (const char* part : {"first", "second", "fallback"}) {
        const auto value = [&](const char* end) {
          return PaperValue(result.experiment, result.model, "", sampling, &decode,
                            fmt::format("{}_percent_{}", part, end));
        };
        if (value("low")) paper.push_back(fmt::format("{} to {} %", *value("low"), *value("high")));
      }
      if (paper.size() > 3) table.rows.push_back(paper);
    }
  }
  page.EndRow();
  page.AddTable(table);
}

// ---- The paper's own figures, where the experiment is on other models

void AddPaperFigures(const Experiment& paper, HtmlPage& page) {
  HtmlTable table;
  table.columns = {{"model", false},
                   {"task", false},
                   {"sampling", false},
                   {"depths", false},
                   {"the paper's figures", false}};
  for (const PaperFigure& figure : paper.paper) {
    std::string values;
    for (const auto& [key, value] : figure.values) {
      std::string name = key;
      std::replace(name.begin(), name.end(), '_', ' ');
      values += fmt::format("{}{} {}", values.empty() ? "" : ", ", name, value);
    }
    table.rows.push_back({figure.model, figure.task.empty() ? "all" : TaskTitle(figure.task),
                          figure.sampling, figure.decode ? RowName(*figure.decode) : "", values});
  }
  page.BeginDetails("What the paper found on its models (" + paper.source + ")");
  page.AddTable(table);
  page.EndDetails();
}

// Runs of the same weights in both precisions share their charts.
void AddAllDistancePlots(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  std::vector<std::vector<ExperimentResult>> by_weights;
  for (const ExperimentResult& result : results) {
    const auto same = std::find_if(by_weights.begin(), by_weights.end(), [&](const auto& others) {
      return others[0].checkpoint == result.checkpoint && others[0].weights == result.weights;
    });
    if (same == by_weights.end())
      by_weights.push_back({result});
    else
      same->push_back(result);
  }
  for (const auto& each : by_weights) AddDistancePlots(each, page);
}

void AddEquality(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  int64_t compared = 0, equal = 0;
  for (const ExperimentResult& result : results) {
    for (const auto& [group, specs] : result.runs) {
      for (const auto& [spec, totals] : specs) {
        if (spec == "ar") continue;
        compared += totals.compared;
        equal += totals.equal;
      }
    }
  }
  if (compared == 0) return;
  page.AddParagraph(fmt::format(
      "Greedy texts with exactly the tokens of autoregressive decoding: {} of {}.{}", equal,
      compared, equal == compared ? "" : " NOT ALL ARE EQUAL: this is a fault of the program."));
}

}  // namespace

std::vector<std::string> TasksOf(const std::vector<ExperimentResult>& results) {
  std::vector<std::string> names;
  for (const ExperimentTask& task : results[0].experiment.tasks) names.push_back(task.name);
  return names;
}
std::string Counted(const SpecFigures& f) {
  return fmt::format("{} text{}, {} tokens{}", f.texts, f.texts == 1 ? "" : "s", f.tokens,
                     f.repeats > 1 ? fmt::format(", {} times", f.repeats) : "");
}
std::string Number(std::optional<double> value, int digits, const char* unit) {
  return value ? fmt::format("{:.{}f}{}", *value, digits, unit) : kNone;
}

std::string Percent(std::optional<double> share, int digits) {
  return share ? Number(100 * *share, digits, " %") : kNone;
}

std::vector<ExperimentDecode> Compared(const ExperimentResult& result) {
  std::vector<ExperimentDecode> specs = SpecsOf(result.experiment, result.recurrence);
  std::erase_if(specs, [](const ExperimentDecode& d) { return d.depths.empty() && !d.lookup; });
  return specs;
}

std::string RowName(const ExperimentDecode& decode) {
  if (decode.depths.empty()) return decode.lookup ? "prompt lookup" : "autoregressive";
  std::string name = fmt::format("{}", fmt::join(decode.depths, ", "));
  if (decode.later == LaterProposal::kResidual) name += " residual";
  if (decode.later == LaterProposal::kNonResidual) name += " non-residual";
  return name;
}

std::optional<double> PaperValue(const Experiment& experiment, const std::string& model,
                                 const std::string& task, const std::string& sampling,
                                 const ExperimentDecode* decode, const std::string& key) {
  if (decode != nullptr && decode->schedule != DecodeSchedule::kPaper) {
    ExperimentDecode same = *decode;
    same.schedule = DecodeSchedule::kPaper;
    for (const ExperimentDecode& other : experiment.decodes) {
      if (SpecName(other) == SpecName(same)) return std::nullopt;
    }
  }
  for (const PaperFigure& figure : experiment.paper) {
    const bool same = figure.model == model && (figure.task.empty() || figure.task == task) &&
                      (figure.sampling.empty() || figure.sampling == sampling);
    if (!same || !figure.values.contains(key)) continue;
    const bool decodes = !figure.decode || decode == nullptr ||
                         (figure.decode->depths == decode->depths &&
                          figure.decode->later == decode->later && !decode->lookup);
    if (decodes) return figure.values.at(key);
  }
  return std::nullopt;
}

const RunTotals* ExperimentResult::Find(const std::string& task, const std::string& sampling,
                                        const std::string& spec) const {
  const auto group = runs.find(GroupOf(task, sampling));
  if (group == runs.end()) return nullptr;
  const auto found = group->second.find(spec);
  return found == group->second.end() ? nullptr : &found->second;
}

SpecFigures ExperimentResult::Figures(const std::string& task, const std::string& sampling,
                                      const ExperimentDecode& decode) const {
  const RunTotals* own = Find(task, sampling, SpecName(decode));
  const RunTotals* base = Find(task, sampling, "ar");
  if (own == nullptr) return {};
  SpecFigures figures =
      FiguresOf(*own, base != nullptr ? *base : RunTotals{}, decode.depths, recurrence, bandwidth);
  if (decode.later != LaterProposal::kGatedResidual) figures.gate = std::nullopt;  // has none
  return figures;
}

std::string TaskTitle(const std::string& task) {
  static const std::map<std::string, std::string> titles = {
      {"gsm8k_cot", "GSM8K"},           {"minerva_math500", "MATH-500"},
      {"bbh_cot_fewshot", "BBH"},       {"humaneval", "HumanEval"},
      {"humaneval_plus", "HumanEval+"}, {"mbpp", "MBPP"},
      {"mbpp_plus", "MBPP+"},           {"aime24", "AIME 2024"},
      {"aime25", "AIME 2025"},          {"heldout_problems", "word problems"}};
  const auto found = titles.find(task);
  return found == titles.end() ? task : found->second;
}

namespace {

// Where rows of the paper's schedule differ from Algorithm 1 as it is printed.
void AddPaperScheduleNotes(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  // Of an engine that experiments run on, which takes no other number.
  const int cells = EngineOptions().cells;
  bool any = false;
  std::set<std::string> crowded;
  for (const ExperimentResult& result : results) {
    for (const ExperimentDecode& decode : Compared(result)) {
      if (decode.schedule != DecodeSchedule::kPaper) continue;
      for (const auto& [group, runs] : result.runs) {
        const auto totals = runs.find(SpecName(decode));
        if (totals == runs.end()) continue;
        any = true;
        if (totals->second.statistics.rows_peak >= cells)
          crowded.insert(fmt::format("{}, {} ({})", result.label, RowName(decode), group));
      }
    }
  }
  if (any)
    page.AddNote(
        "The paper's schedule differs from the printed algorithm in one way, which changes no "
        "text: it "
        "begins no branch beyond the last token that is asked for, nor after a token that ends the "
        "text. Short texts have fewer rows for it.");
  if (!crowded.empty())
    page.AddNote(fmt::format(
        "{} branches were alive at once, as many as there is room for, and the least likely were "
        "dropped, so that tokens per pass are lower than the paper's schedule gives: {}. loopspec "
        "bench --cells 1024 has room for more.",
        cells, fmt::join(crowded, "; ")));
}

}  // namespace

void AddExperiment(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  const Experiment& experiment = results[0].experiment;
  page.AddHeading(experiment.title);
  page.AddNote(experiment.meaning);
  switch (experiment.kind) {
    case ExperimentKind::kSpeedup:
      AddSpeed(results, page);
      break;
    case ExperimentKind::kGate:
      AddGate(results, page);
      break;
    case ExperimentKind::kRows:
      AddRows(results, page);
      break;
    case ExperimentKind::kSources:
      AddSources(results, page);
      break;
    case ExperimentKind::kDistance:
      AddAllDistancePlots(results, page);
      AddEnvelopes(results, false, page);
      break;
    case ExperimentKind::kDepths:
      AddEnvelopes(results, true, page);
      AddRestarts(results, page);
      AddSpeed(results, page);
      break;
  }
  AddEquality(results, page);
  AddMemory(results, page);
  AddSpeedDetails(results, page);
  AddPaperScheduleNotes(results, page);
  if (experiment.paper.empty() && results[0].paper) AddPaperFigures(*results[0].paper, page);
  page.AddParagraph(fmt::format("Experiment {}: {}.", experiment.name, experiment.source));
}

}  // namespace loopspec::experiments
