// Distances by depth: charts, envelopes, the depths that follow from them, and Theorem 1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "calibrate/envelope.h"
#include "experiments/experiment_run.h"
#include "experiments/experiment_tables.h"
#include "report/plot.h"

namespace loopspec::experiments {
namespace {

// Only positions whose next token the model wrote itself are in the sums.
std::vector<DepthDistance> Points(const DistanceSums& sums) {
  std::vector<DepthDistance> points;
  for (size_t i = 0; i < sums.depths.size() && sums.positions > 0; ++i)
    points.push_back({sums.depths[i], sums.distance[i] / static_cast<double>(sums.positions)});
  return points;
}

std::vector<DepthDistance> AllPoints(const ExperimentResult& result) {
  std::vector<DepthDistance> points;
  for (const auto& [group, sums] : result.distances) {
    const std::vector<DepthDistance> more = Points(sums);
    points.insert(points.end(), more.begin(), more.end());
  }
  return points;
}

// Nothing where the distances do not fall as a power law must.
std::optional<PowerLawEnvelope> Fit(const std::vector<DepthDistance>& points) {
  try {
    return FitEnvelope(points);
  } catch (const Error&) {
    return std::nullopt;
  }
}

int64_t Zeros(const std::vector<DepthDistance>& points) {
  return std::count_if(points.begin(), points.end(),
                       [](const DepthDistance& p) { return p.distance == 0; });
}

std::string TaskOf(const std::string& group) {
  return TaskTitle(group.substr(0, group.find('/')));
}

// A model that ran in one precision alone needs no word about it.
std::string SeriesName(const ExperimentResult& result, const std::string& group, bool several) {
  return TaskOf(group) + (several ? ", " + result.precision : "");
}

// The depth set that decoded fastest over all tasks, by the sum of tokens over the sum of seconds.
std::string BestMeasured(const ExperimentResult& result) {
  double best = 0;
  std::string name = "–";
  for (const ExperimentDecode& decode : Compared(result)) {
    if (decode.lookup) continue;
    TextTime sum;
    for (const auto& [group, specs] : result.runs) {
      const auto found = specs.find(SpecName(decode));
      if (found == specs.end()) continue;
      for (const auto& [text, repeats] : found->second.times_of_texts) {
        for (const auto& [repeat, time] : repeats) {
          sum.tokens += time.tokens;
          sum.seconds += time.seconds;
        }
      }
    }
    if (sum.seconds <= 0 || sum.tokens / sum.seconds <= best) continue;
    best = sum.tokens / sum.seconds;
    name = fmt::format("{} ({:.1f} tokens/s)", RowName(decode), best);
  }
  return name;
}

// Mean distance at a depth over all tasks, weighted by positions.
std::optional<double> DistanceAt(const ExperimentResult& result, const std::string& group,
                                 int depth) {
  const auto found = result.distances.find(group);
  if (found == result.distances.end()) return std::nullopt;
  for (const DepthDistance& point : Points(found->second)) {
    if (point.depth == depth) return point.distance;
  }
  return std::nullopt;
}

}  // namespace

void AddDistancePlots(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  const bool several = results.size() > 1;
  Plot distance, agreement;
  distance.title = results[0].checkpoint + ": distance to the last depth";
  distance.x = {"depth (recurrences)", true, {}, {}};
  distance.y = {"total variation distance", true, {}, {}};
  agreement.title = results[0].checkpoint + ": agreement with the last depth";
  agreement.x = {"depth (recurrences)", true, {}, {}};
  agreement.y = {"same likeliest token, %", false, {}, {}};
  std::string laws;
  int64_t zeros = 0;
  for (const ExperimentResult& result : results) {
    for (const auto& [group, sums] : result.distances) {
      PlotSeries far{SeriesName(result, group, several), PlotMark::kLineAndPoints, {}, -1};
      PlotSeries same = far;
      for (size_t i = 0; i < sums.depths.size() && sums.positions > 0; ++i) {
        const auto n = static_cast<double>(sums.positions);
        far.points.push_back({static_cast<double>(sums.depths[i]), sums.distance[i] / n, ""});
        same.points.push_back({static_cast<double>(sums.depths[i]), 100 * sums.agreed[i] / n, ""});
      }
      distance.series.push_back(far);
      agreement.series.push_back(same);
    }
    const std::vector<DepthDistance> points = AllPoints(result);
    zeros += Zeros(points);
    if (const auto law = Fit(points)) {
      PlotSeries line{
          "envelope" + (several ? ", " + result.precision : ""), PlotMark::kDashes, {}, -1};
      for (int depth = 1; depth < result.recurrence; ++depth)
        line.points.push_back({static_cast<double>(depth), law->At(depth), ""});
      distance.series.push_back(line);
      laws += fmt::format("{}{}{:.3f} r^-{:.2f}, up to {:.2f} times a measured distance",
                          laws.empty() ? "" : "; ", several ? result.precision + ": " : "",
                          law->beta, law->alpha, law->worst_ratio);
    }
  }
  std::string caption = "0 is the same distribution. ";
  caption +=
      laws.empty()
          ? "These distances do not fall as a power law does, so there is no envelope."
          : fmt::format(
                "The dashes are the power law above all points whose largest ratio to one of "
                "them is as small as it can be: {}.",
                laws);
  if (zeros > 0)
    caption += fmt::format(" {} distances of 0 have no place on this axis or in the fit.", zeros);
  if (several) caption += " The precision of the activations may decide the tail: both are drawn.";
  page.BeginRow();
  page.AddFigure(PlotSvg(agreement),
                 "How often an early depth's likeliest token is the last depth's.");
  page.AddFigure(PlotSvg(distance), caption);
  page.EndRow();
}

void AddEnvelopes(const std::vector<ExperimentResult>& results, bool depths, HtmlPage& page) {
  HtmlTable table;
  table.caption =
      "Envelopes beta r^-alpha over generated positions, for each task and over all of them: above "
      "every measured distance, with the smallest possible worst ratio to one of them";
  table.columns = {{"model", false},   {"precision", false},
                   {"task", false},    {"R"},
                   {"positions"},      {"alpha"},
                   {"beta"},           {"worst ratio"},
                   {"zeros left out"}, {"paper: alpha"},
                   {"paper: beta"}};
  HtmlTable best;
  best.columns = {{"model", false},
                  {"R"},
                  {"best d1 by the closed form"},
                  {"best d2"},
                  {"paper: d1"},
                  {"paper: d2"},
                  {"R large enough for it", false},
                  {"best measured", false},
                  {"paper: best", false}};
  std::vector<std::string> warnings;
  for (const ExperimentResult& result : results) {
    const auto sampling = result.experiment.samplings[0].name;
    const auto fitted = [&](const char* key, int digits) {
      return Number(
          PaperValue(result.experiment, result.model, "", depths ? "" : sampling, nullptr, key),
          digits);
    };
    const auto add = [&](const std::string& task, const std::vector<DepthDistance>& points,
                         int64_t positions, bool all) {
      const auto law = Fit(points);
      const auto part = [&](double value, int digits) {
        return law ? Number(value, digits) : std::string("–");
      };
      table.rows.push_back({result.label, result.precision, task, std::to_string(result.recurrence),
                            std::to_string(positions), part(law ? law->alpha : 0, 3),
                            part(law ? law->beta : 0, 3), part(law ? law->worst_ratio : 0, 2),
                            std::to_string(Zeros(points)), all ? fitted("alpha", 2) : "–",
                            all ? fitted("beta", 3) : "–"});
      table.strong.push_back(all);
      if (law && EnvelopeWarning(*law))
        warnings.push_back(fmt::format("{}, {}, {}: {}", result.label, result.precision, task,
                                       *EnvelopeWarning(*law)));
    };
    int64_t positions = 0;
    for (const auto& [group, sums] : result.distances) {
      positions += sums.positions;
      add(TaskOf(group), Points(sums), sums.positions, false);
    }
    add("all", AllPoints(result), positions, true);
    if (!depths) continue;
    const auto law = Fit(AllPoints(result));
    std::string d1 = "–", d2 = "–", enough = "–";
    if (law) {
      const DepthChoice choice = ChooseDepths(*law, result.recurrence);
      d1 = Number(choice.depths.d1);
      d2 = Number(choice.depths.d2);
      enough = fmt::format("{} (must exceed {:.1f})", choice.condition_holds ? "yes" : "no",
                           choice.smallest_recurrence);
    }
    const auto paper = [&](const char* key) {
      return PaperValue(result.experiment, result.model, "", "", nullptr, key);
    };
    const auto paper_best = paper("best_d1");
    best.rows.push_back(
        {result.label, std::to_string(result.recurrence), d1, d2, Number(paper("d1")),
         Number(paper("d2")), enough, BestMeasured(result),
         paper_best ? fmt::format("{}, {}", *paper_best, paper("best_d2").value_or(0)) : "–"});
  }
  page.AddTable(table);
  for (const std::string& warning : warnings) page.AddParagraph("Warning: " + warning + ".");
  if (depths) page.AddTable(best);
}

void AddRestarts(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.caption =
      "Theorem 1: with the gate the pipeline restarts with a probability of at most 2 epsilon, "
      "where "
      "epsilon is the mean distance at the second depth. Greedy text is outside the theorem";
  table.columns = {{"model", false},  {"task", false},      {"sampling", false},
                   {"depths", false}, {"tokens"},           {"restarts"},
                   {"2 epsilon"},     {"restarts / bound"}, {"bound holds", false}};
  Plot plot;
  plot.title = "Restarts against the bound of Theorem 1";
  plot.diagonal = true;
  double high = 0;
  for (const ExperimentResult& result : results) {
    PlotSeries series{result.label, PlotMark::kPoints, {}, -1};
    for (const ExperimentTask& task : result.experiment.tasks) {
      for (const ExperimentSampling& sampling : result.experiment.samplings) {
        if (sampling.temperature == 0) continue;
        for (const ExperimentDecode& decode : Compared(result)) {
          const RunTotals* t = result.Find(task.name, sampling.name, SpecName(decode));
          if (t == nullptr || decode.depths.size() != 2) continue;
          if (decode.later != LaterProposal::kGatedResidual) continue;
          const auto epsilon =
              DistanceAt(result, GroupOf(task.name, sampling.name), decode.depths[1]);
          if (!epsilon) continue;
          const double restarts = result.Figures(task.name, sampling.name, decode).fallback;
          const double bound = 2 * *epsilon;
          // A rate over n tokens is off by chance: three standard deviations.
          const double chance =
              3 * std::sqrt(bound / static_cast<double>(std::max<int64_t>(1, t->tokens)));
          table.rows.push_back({result.label, TaskTitle(task.name), sampling.name, RowName(decode),
                                std::to_string(t->tokens), Percent(restarts, 2), Percent(bound, 2),
                                bound > 0 ? Number(restarts / bound) : "–",
                                restarts <= bound            ? "yes"
                                : restarts <= bound + chance ? "within chance"
                                                             : "NO"});
          series.points.push_back(
              {100 * bound, 100 * restarts,
               fmt::format("{}, {}, depths {}: {:.2f} % restarts, bound {:.2f} %", result.label,
                           TaskTitle(task.name), RowName(decode), 100 * restarts, 100 * bound)});
          high = std::max({high, 100 * bound, 100 * restarts});
        }
      }
    }
    plot.series.push_back(std::move(series));
  }
  if (table.rows.empty()) return;
  plot.x = {"2 epsilon at the second depth, %", false, 0.0, 1.05 * high};
  plot.y = {"committed tokens that restart, %", false, 0.0, 1.05 * high};
  page.AddFigure(
      PlotSvg(plot),
      "Each point is a task decoded at one pair of depths; below the dashed line the bound "
      "holds. loopspec calibrate draws the same for every pair of depths.");
  page.BeginDetails("Restarts, pair by pair");
  page.AddTable(table);
  page.EndDetails();
}

}  // namespace loopspec::experiments
