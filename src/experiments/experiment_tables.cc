#include "experiments/experiment_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "calibrate/envelope.h"
#include "experiments/experiment_run.h"
#include "report/plot.h"

namespace loopspec::measure {
namespace {

constexpr const char* kNone = "–";

std::string Number(std::optional<double> value, int digits = 2, const char* unit = "") {
  return value ? fmt::format("{:.{}f}{}", *value, digits, unit) : kNone;
}

std::string Percent(std::optional<double> share, int digits = 1) {
  return share ? Number(100 * *share, digits, " %") : kNone;
}

// The ways of decoding of a result without the one that all others are compared with.
std::vector<ExperimentDecode> Compared(const ExperimentResult& result) {
  std::vector<ExperimentDecode> ways = WaysOf(result.experiment, result.recurrence);
  std::erase_if(ways, [](const ExperimentDecode& d) { return d.depths.empty() && !d.lookup; });
  return ways;
}

// "1, 2", "2, 8 residual": as the paper's tables name a row.
std::string RowName(const ExperimentDecode& decode) {
  if (decode.depths.empty()) return decode.lookup ? "prompt lookup" : "autoregressive";
  std::string name = fmt::format("{}", fmt::join(decode.depths, ", "));
  if (decode.later == LaterProposal::kResidual) name += " residual";
  if (decode.later == LaterProposal::kNonResidual) name += " non-residual";
  return name;
}

// The paper's figure for a cell; nothing where it has none.
std::optional<double> PaperValue(const Experiment& experiment, const std::string& model,
                                 const std::string& task, const std::string& sampling,
                                 const ExperimentDecode* decode, const std::string& key) {
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

// Tasks that any model ran, in the order in which they are declared.
std::vector<std::string> TasksOf(const std::vector<ExperimentResult>& results) {
  std::vector<std::string> names;
  for (const ExperimentTask& task : results[0].experiment.tasks) names.push_back(task.name);
  return names;
}

// ---- Speed

// The paper's table: models and depths down, benchmarks across, ours above the paper's.
void AddSpeedTable(const std::vector<ExperimentResult>& results, const ExperimentSampling& sampling,
                   HtmlPage& page) {
  const std::vector<std::string> tasks = TasksOf(results);
  HtmlTable table;
  table.caption = fmt::format(
      "{} (temperature {}, top-p {}): speedup over autoregressive decoding "
      "and gamma, measured here and in the paper",
      sampling.name, sampling.temperature, sampling.top_p);
  table.columns = {{"model", false}, {"proposal depths", false}, {"from", false}};
  for (const std::string& task : tasks) {
    table.columns.push_back({TaskTitle(task) + " speedup"});
    table.columns.push_back({"gamma"});
  }
  for (const ExperimentResult& result : results) {
    for (const ExperimentDecode& decode : Compared(result)) {
      std::vector<std::string> ours = {result.model, RowName(decode), "here"};
      std::vector<std::string> paper = {"", "", "paper"};
      bool any = false;
      for (const std::string& task : tasks) {
        const bool ran = result.Find(task, sampling.name, WayName(decode)) != nullptr;
        const WayFigures f = result.Figures(task, sampling.name, decode);
        ours.push_back(ran ? Number(f.speedup, 2, "x") : kNone);
        ours.push_back(ran ? Number(decode.lookup ? f.tokens_per_pass : f.gamma) : kNone);
        for (const char* key : {"speedup", "gamma"}) {
          const auto value =
              PaperValue(result.experiment, result.model, task, sampling.name, &decode, key);
          paper.push_back(Number(value, 2, std::string_view(key) == "speedup" && value ? "x" : ""));
          any = any || value;
        }
      }
      table.rows.push_back(ours);
      table.strong.push_back(true);
      if (!any) continue;
      table.rows.push_back(paper);
      table.strong.push_back(false);
    }
  }
  page.AddTable(table);
}

void AddSpeedBars(const ExperimentResult& result, const ExperimentSampling& sampling,
                  HtmlPage& page) {
  BarPlot plot;
  plot.title = fmt::format("{}, {}", result.model, sampling.name);
  plot.y.label = "speedup over autoregressive decoding";
  const std::vector<std::string> tasks = TasksOf({result});
  for (const std::string& task : tasks) plot.categories.push_back(TaskTitle(task));
  for (const ExperimentDecode& decode : Compared(result)) {
    BarSeries series;
    series.name = RowName(decode);
    for (const std::string& task : tasks) {
      const bool ran = result.Find(task, sampling.name, WayName(decode)) != nullptr;
      series.values.push_back(
          ran ? std::optional(BarValue{result.Figures(task, sampling.name, decode).speedup, {}, {}})
              : std::nullopt);
    }
    plot.series.push_back(std::move(series));
  }
  page.AddFigure(BarSvg(plot),
                 "How many times as many tokens per second as the same model "
                 "without drafts; 1 is no gain.");
}

// Everything else that the records say about speed.
void AddSpeedDetails(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.columns = {
      {"model", false}, {"task", false}, {"sampling", false}, {"decoding", false}, {"texts"},
      {"tokens"},       {"tokens/s"},    {"gamma"},           {"tokens/pass"},     {"1st"},
      {"2nd"},          {"fallback"},    {"gate opens"},      {"early"},           {"adopted"},
      {"rows"},         {"peak"},        {"memory bound"},    {"memory allows"},   {"equal"},
      {"right"}};
  for (const ExperimentResult& result : results) {
    for (const std::string& task : TasksOf(results)) {
      for (const ExperimentSampling& sampling : result.experiment.samplings) {
        for (const ExperimentDecode& decode : WaysOf(result.experiment, result.recurrence)) {
          const RunTotals* t = result.Find(task, sampling.name, WayName(decode));
          if (t == nullptr) continue;
          const WayFigures f = result.Figures(task, sampling.name, decode);
          const auto source = [&](size_t i) {
            return i < f.accepted.size() ? Percent(f.accepted[i]) : std::string(kNone);
          };
          table.rows.push_back(
              {result.model,
               TaskTitle(task),
               sampling.name,
               RowName(decode),
               std::to_string(t->runs),
               std::to_string(t->tokens),
               Number(f.rate, 1),
               Number(f.gamma),
               Number(f.tokens_per_pass),
               source(0),
               source(1),
               Percent(f.fallback),
               Percent(f.gate),
               Percent(f.early),
               Percent(f.adopted),
               Number(f.rows_mean),
               std::to_string(f.rows_peak),
               Percent(f.floor_share, 0),
               f.memory_allows > 0 ? Number(f.memory_allows, 2, "x") : kNone,
               t->compared > 0 ? fmt::format("{} of {}", t->equal, t->compared) : kNone,
               t->answered > 0 ? fmt::format("{} of {}", t->correct, t->answered) : kNone});
        }
      }
    }
  }
  if (table.rows.empty()) return;
  page.BeginDetails("All figures of these runs");
  page.AddTable(table);
  page.AddNote(
      "tokens/pass: tokens for every R recurrences, as they happened; gamma is the paper's "
      "formula, "
      "from accepted drafts alone. early: tokens whose computation had begun on a guess; adopted: "
      "guesses that the draft confirmed. memory bound: the time that reading weights, keys and "
      "values alone takes, over the time of the steps; over 100 % where caches are faster than "
      "memory. memory allows: the speedup if reading were all that takes time. equal: texts with "
      "the same tokens as autoregressive decoding, asserted for greedy decoding. right: answers "
      "judged right.");
  page.EndDetails();
}

void AddSpeed(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  for (const ExperimentSampling& sampling : results[0].experiment.samplings) {
    AddSpeedTable(results, sampling, page);
    page.BeginRow();
    for (const ExperimentResult& result : results) AddSpeedBars(result, sampling, page);
    page.EndRow();
  }
  page.AddNote(
      "Speedup: tokens per second over those of autoregressive decoding, first tokens not counted. "
      "Gamma: tokens for every full run of the model, at most R / d1; for prompt lookup, which "
      "drafts without the model, the tokens per run as they happened. Proposal depths: the "
      "recurrences at which drafts are made. Prompt lookup guesses from what followed the same "
      "words before; it stands where the paper has a trained drafter, and needs no training.");
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
      std::vector<std::string> ours = {result.model, RowName(decode), "here"};
      std::vector<std::string> paper = {"", "", "paper"};
      bool any = false;
      for (const std::string& task : tasks) {
        ours.push_back(Percent(result.Figures(task, sampling, decode).gate, 2));
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
  table.columns = {{"model", false}, {"task", false}, {"second proposal", false},
                   {"mean rows"},    {"paper: mean"}, {"peak rows"},
                   {"paper: peak"}};
  page.BeginRow();
  for (const ExperimentResult& result : results) {
    const std::string sampling = result.experiment.samplings[0].name;
    for (const std::string& task : TasksOf(results)) {
      Plot plot;
      plot.title = fmt::format("{}, {}", result.model, TaskTitle(task));
      plot.x.label = "rows of a pass";
      plot.y.label = "share of passes, %";
      for (const ExperimentDecode& decode : Compared(result)) {
        const RunTotals* t = result.Find(task, sampling, WayName(decode));
        if (t == nullptr) continue;
        const auto paper = [&](const char* key, int digits) {
          return Number(PaperValue(result.experiment, result.model, task, sampling, &decode, key),
                        digits);
        };
        const bool gated = decode.later == LaterProposal::kGatedResidual;
        table.rows.push_back({result.model, TaskTitle(task), gated ? "gated" : "without the gate",
                              Number(t->statistics.rows_mean()), paper("mean_rows", 2),
                              std::to_string(t->statistics.rows_peak), paper("peak_rows", 0)});
        PlotSeries series;
        series.name = gated ? "gated" : "without the gate";
        series.mark = PlotMark::kLine;
        for (size_t rows = 1; rows < t->statistics.rows_histogram.size(); ++rows) {
          series.points.push_back(
              {static_cast<double>(rows),
               100.0 * static_cast<double>(t->statistics.rows_histogram[rows]) /
                   static_cast<double>(std::max<int64_t>(1, t->statistics.steps)),
               ""});
        }
        plot.series.push_back(std::move(series));
      }
      page.AddFigure(PlotSvg(plot), "How many branches a recurrent pass advances together.");
    }
  }
  page.EndRow();
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
      plot.title = fmt::format("{}, depths {}", result.model, RowName(decode));
      plot.y.label = "committed tokens, %";
      plot.stacked = true;
      plot.series = {{"first draft", {}}, {"second draft", {}}, {"fallback", {}}};
      for (const std::string& task : TasksOf(results)) {
        const RunTotals* t = result.Find(task, sampling, WayName(decode));
        if (t == nullptr) continue;
        const WayFigures f = result.Figures(task, sampling, decode);
        const double shares[] = {f.accepted.empty() ? 0 : f.accepted[0],
                                 f.accepted.size() < 2 ? 0 : f.accepted[1], f.fallback};
        plot.categories.push_back(TaskTitle(task));
        for (size_t i = 0; i < 3; ++i)
          plot.series[i].values.push_back(BarValue{100 * shares[i], {}, {}});
        table.rows.push_back(
            {result.model, TaskTitle(task), RowName(decode), Percent(shares[0], 2),
             Percent(shares[1], 2), Percent(shares[2], 2),
             t->compared > 0 ? fmt::format("{} of {}", t->equal, t->compared) : kNone});
      }
      page.AddFigure(BarSvg(plot), "Where the tokens of the text come from.");
      std::vector<std::string> paper = {result.model, "paper, over its benchmarks",
                                        RowName(decode)};
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

// ---- Distances and the depths that follow from them

std::vector<DepthDistance> Points(const ExperimentResult& result) {
  std::vector<DepthDistance> points;
  for (const auto& [group, sums] : result.distances) {
    for (size_t i = 0; i < sums.depths.size(); ++i) {
      if (sums.positions > 0)
        points.push_back({sums.depths[i], sums.distance[i] / static_cast<double>(sums.positions)});
    }
  }
  return points;
}

// Nothing where the distances do not fall as a power law must.
std::optional<PowerLawEnvelope> Envelope(const ExperimentResult& result) {
  try {
    return FitEnvelope(Points(result));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void AddDistancePlots(const ExperimentResult& result, HtmlPage& page) {
  const std::optional<PowerLawEnvelope> envelope = Envelope(result);
  Plot distance, agreement;
  distance.title = result.model + ": distance to the last depth";
  distance.x = {"depth (recurrences)", true, {}, {}};
  distance.y = {"total variation distance", true, {}, {}};
  agreement.title = result.model + ": agreement with the last depth";
  agreement.x = {"depth (recurrences)", true, {}, {}};
  agreement.y = {"same likeliest token, %", false, {}, {}};
  for (const auto& [group, sums] : result.distances) {
    PlotSeries far{TaskTitle(group.substr(0, group.find('/'))), PlotMark::kLineAndPoints, {}, -1};
    PlotSeries same = far;
    for (size_t i = 0; i < sums.depths.size() && sums.positions > 0; ++i) {
      const auto n = static_cast<double>(sums.positions);
      far.points.push_back({static_cast<double>(sums.depths[i]), sums.distance[i] / n, ""});
      same.points.push_back({static_cast<double>(sums.depths[i]), 100 * sums.agreed[i] / n, ""});
    }
    distance.series.push_back(far);
    agreement.series.push_back(same);
  }
  if (envelope) {
    PlotSeries line{"envelope", PlotMark::kDashes, {}, -1};
    for (int depth = 1; depth < result.recurrence; ++depth)
      line.points.push_back({static_cast<double>(depth), envelope->At(depth), ""});
    distance.series.push_back(line);
  }
  page.BeginRow();
  page.AddFigure(PlotSvg(agreement),
                 "How often an early depth's likeliest token is the last depth's.");
  page.AddFigure(PlotSvg(distance),
                 envelope ? fmt::format("0 is the same distribution. The dashes are the smallest "
                                        "power law above all points: {:.3f} r^-{:.2f}.",
                                        envelope->beta, envelope->alpha)
                          : "0 is the same distribution. These distances do not fall as a power "
                            "law does, so that there is no envelope.");
  page.EndRow();
}

// The depth set that decoded fastest over all tasks, by the sum of tokens over the sum of seconds.
std::string BestMeasured(const ExperimentResult& result) {
  double best = 0;
  std::string name = kNone;
  for (const ExperimentDecode& decode : Compared(result)) {
    if (decode.lookup) continue;
    double tokens = 0, seconds = 0;
    for (const auto& [group, ways] : result.runs) {
      const auto found = ways.find(WayName(decode));
      if (found == ways.end()) continue;
      for (const auto& [repeat, time] : found->second.seconds) seconds += time;
      for (const auto& [repeat, count] : found->second.counted) tokens += count;
    }
    if (seconds <= 0 || tokens / seconds <= best) continue;
    best = tokens / seconds;
    name = fmt::format("{} ({:.1f} tokens/s)", RowName(decode), best);
  }
  return name;
}

void AddEnvelopes(const std::vector<ExperimentResult>& results, bool depths, HtmlPage& page) {
  HtmlTable table;
  table.columns = {{"model", false}, {"R"},    {"positions"},  {"alpha"},
                   {"paper: alpha"}, {"beta"}, {"paper: beta"}};
  if (depths) {
    table.columns = {{"model", false},
                     {"R"},
                     {"alpha"},
                     {"beta"},
                     {"best d1 by the closed form"},
                     {"best d2"},
                     {"paper: d1"},
                     {"paper: d2"},
                     {"R large enough for it", false},
                     {"best measured", false},
                     {"paper: best", false}};
  }
  for (const ExperimentResult& result : results) {
    const std::optional<PowerLawEnvelope> e = Envelope(result);
    const auto paper = [&](const char* key) {
      return PaperValue(result.experiment, result.model, "", "", nullptr, key);
    };
    const auto sampling = result.experiment.samplings[0].name;
    const auto fitted = [&](const char* key) {
      return PaperValue(result.experiment, result.model, "", sampling, nullptr, key);
    };
    const std::string alpha = e ? Number(e->alpha, 3) : kNone,
                      beta = e ? Number(e->beta, 3) : kNone;
    int64_t positions = 0;
    for (const auto& [group, sums] : result.distances) positions += sums.positions;
    if (!depths) {
      table.rows.push_back({result.model, std::to_string(result.recurrence),
                            std::to_string(positions), alpha, Number(fitted("alpha")), beta,
                            Number(fitted("beta"), 3)});
      continue;
    }
    std::string d1 = kNone, d2 = kNone, enough = kNone;
    if (e) {
      const DepthChoice choice = ChooseDepths(*e, result.recurrence);
      d1 = Number(choice.depths.d1);
      d2 = Number(choice.depths.d2);
      enough = fmt::format("{} (must exceed {:.1f})", choice.condition_holds ? "yes" : "no",
                           choice.smallest_recurrence);
    }
    const auto best = paper("best_d1");
    table.rows.push_back(
        {result.model, std::to_string(result.recurrence), alpha, beta, d1, d2, Number(paper("d1")),
         Number(paper("d2")), enough, BestMeasured(result),
         best ? fmt::format("{}, {}", *best, paper("best_d2").value_or(0)) : kNone});
  }
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

void AddEquality(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  int64_t compared = 0, equal = 0;
  for (const ExperimentResult& result : results) {
    for (const auto& [group, ways] : result.runs) {
      for (const auto& [way, totals] : ways) {
        if (way == "ar") continue;
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

const RunTotals* ExperimentResult::Find(const std::string& task, const std::string& sampling,
                                        const std::string& way) const {
  const auto group = runs.find(GroupOf(task, sampling));
  if (group == runs.end()) return nullptr;
  const auto found = group->second.find(way);
  return found == group->second.end() ? nullptr : &found->second;
}

WayFigures ExperimentResult::Figures(const std::string& task, const std::string& sampling,
                                     const ExperimentDecode& decode) const {
  const RunTotals* own = Find(task, sampling, WayName(decode));
  const RunTotals* base = Find(task, sampling, "ar");
  if (own == nullptr) return {};
  return FiguresOf(*own, base != nullptr ? *base : RunTotals{}, decode.depths, recurrence,
                   bandwidth);
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
      for (const ExperimentResult& result : results) AddDistancePlots(result, page);
      AddEnvelopes(results, false, page);
      break;
    case ExperimentKind::kDepths:
      AddEnvelopes(results, true, page);
      AddSpeed(results, page);
      break;
  }
  AddEquality(results, page);
  AddSpeedDetails(results, page);
  if (experiment.paper.empty() && results[0].paper) AddPaperFigures(*results[0].paper, page);
  page.AddParagraph(fmt::format("Experiment {}: {}.", experiment.name, experiment.source));
}

}  // namespace loopspec::measure
