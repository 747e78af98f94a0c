#include "calibrate/calibration_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace loopspec {
namespace {

std::string Shares(const std::vector<double>& shares) {
  std::string text;
  for (const double share : shares)
    text += (text.empty() ? "" : "/") + fmt::format("{:.1f}", 100 * share);
  return text.empty() ? "-" : text;
}

std::string DepthsTable(const CalibrationReport& report) {
  std::string text;
  const DepthProfile& profile = report.profile;
  text += fmt::format("{:>5}{:>22}{:>24}\n", "depth", "same choice, %", "distance (TV)");
  text += fmt::format("{:>5}{:>11}{:>11}{:>12}{:>12}\n", "", "generated", "prompts", "generated",
                      "prompts");
  for (int depth = 1; depth < profile.recurrence; ++depth) {
    const auto i = static_cast<size_t>(depth) - 1;
    text += fmt::format("{:>5}{:>11.2f}{:>11.2f}{:>12.5f}{:>12.5f}\n", depth,
                        100 * profile.generated.agreement[i], 100 * profile.prompts.agreement[i],
                        profile.generated.distance[i], profile.prompts.distance[i]);
  }
  if (!report.envelope) {
    text += fmt::format("no envelope: {}\n", report.no_envelope);
    return text;
  }
  const DepthChoice choice = ChooseDepths(*report.envelope, profile.recurrence);
  text += fmt::format(
      "envelope {:.4f} r^-{:.3f} (within {:.2f}x); closed form ({:.2f}, {:.2f}), whose condition "
      "R > {:.2f} {}\n",
      report.envelope->beta, report.envelope->alpha, report.envelope->worst_ratio, choice.depths.d1,
      choice.depths.d2, choice.smallest_recurrence,
      choice.condition_holds ? "holds" : "does not hold");
  if (report.profile.zeros() > 0)
    text += fmt::format("{} distances of 0 are left out of the envelope\n", report.profile.zeros());
  if (const auto warning = EnvelopeWarning(*report.envelope))
    text += fmt::format("warning: {}\n", *warning);
  return text;
}

std::string SpeedsTable(const CalibrationReport& report) {
  std::string text;
  text += fmt::format("\n{:<16}{:>16}{:>12}{:>10}{:>7}{:>7}{:>6}{:>11}{:>9}{:>8}{:>11}{:>8}\n",
                      "depths", "accepted %", "gate %", "per pass", "rows", "budget", "group",
                      "predicted", "speedup", "bound", "measured", "bound");
  size_t shown = 0;
  const auto print = [&](const Prediction& p) {
    const MeasuredSpeed* m = report.FindMeasured(p.depths);
    if (shown >= 12 && m == nullptr) return;
    ++shown;
    const auto percent = [](double share) {
      return share > 0 ? fmt::format("{:.0f} %", 100 * share) : std::string("-");
    };
    text += fmt::format(
        "{:<16}{:>16}{:>12}{:>10.2f}{:>7.1f}{:>7}{:>6}{:>11.1f}{:>8.2f}x{:>8}{:>11}{:>8}\n",
        DepthsText(p.depths), Shares(p.rates.accepted), Shares(p.rates.gate),
        p.simulation.tokens_per_pass, p.simulation.rows,
        p.max_rows > 0 ? std::to_string(p.max_rows) : "cost", p.simulation.group,
        p.tokens_per_second, p.speedup, percent(p.bound_share),
        m != nullptr ? fmt::format("{:.1f}", m->median()) : "",
        m != nullptr ? percent(m->floor_share) : "");
  };
  print(report.autoregressive);
  for (const Prediction& p : report.predictions) print(p);
  if (shown < report.predictions.size() + 1)
    text += fmt::format("({} sets of depths; all are in the file and on the page)\n",
                        report.predictions.size());
  if (report.triples_thinned)
    text += fmt::format("sets of three depths: over a grid that grows by about a third\n");
  return text;
}

std::string QualityText(const CalibrationReport& report) {
  std::string text;
  const PredictionQuality quality = Judge(report);
  if (!quality.rank_correlation) return text;
  text += fmt::format(
      "predicted against measured over {} sets: rank correlation {:.3f}; the chosen one reaches "
      "{:.1f} % of the measured best, {}\n",
      quality.compared, *quality.rank_correlation, 100 * quality.chosen_over_best,
      DepthsText(quality.best));
  return text;
}

}  // namespace

std::string CalibrationTables(const CalibrationReport& report) {
  return fmt::format("{} decoding: {} positions of {} generated texts, {} of their prompts\n\n",
                     report.view == RatesView::kGreedy ? "greedy" : "sampled",
                     report.profile.generated.positions, report.texts,
                     report.profile.prompts.positions) +
         DepthsTable(report) + SpeedsTable(report) + QualityText(report);
}

}  // namespace loopspec
