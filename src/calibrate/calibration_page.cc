#include "calibrate/calibration_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "fields/sampling_fields.h"
#include "report/html_page.h"
#include "report/plot.h"

namespace loopspec {
namespace {

std::string ShareAsPercent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

PlotSeries Curve(const std::string& name, const std::vector<double>& values) {
  PlotSeries series;
  series.name = name;
  for (size_t i = 0; i + 1 < values.size(); ++i)
    series.points.push_back({static_cast<double>(i + 1), values[i],
                             fmt::format("{}, depth {}: {:.4g}", name, i + 1, values[i])});
  return series;
}

std::string AgreementPlot(const DepthProfile& profile) {
  Plot plot;
  plot.title = "Top-1 agreement with the last depth";
  plot.x = {"recurrences r", true, {}, {}};
  plot.y = {"positions with the same choice (%)", false, {}, {}};
  for (const auto& [name, curve] :
       {std::pair{"generated text", &profile.generated}, std::pair{"prompts", &profile.prompts}}) {
    if (curve->positions == 0) continue;
    std::vector<double> percent = curve->agreement;
    for (double& value : percent) value *= 100;
    plot.series.push_back(Curve(name, percent));
  }
  return PlotSvg(plot);
}

std::string DistancePlot(const CalibrationReport& report) {
  const DepthProfile& profile = report.profile;
  Plot plot;
  plot.title = "Total variation distance to the last depth";
  plot.x = {"recurrences r", true, {}, {}};
  plot.y = {"mean distance", true, {}, {}};
  plot.series.push_back(Curve("generated text", profile.generated.distance));
  if (profile.prompts.positions > 0)
    plot.series.push_back(Curve("prompts", profile.prompts.distance));
  if (report.envelope) {
    PlotSeries line;
    line.name = fmt::format("{:.3f} r^-{:.2f}", report.envelope->beta, report.envelope->alpha);
    line.mark = PlotMark::kDashes;
    line.colour = 4;
    for (int r = 1; r < profile.recurrence; ++r)
      line.points.push_back({static_cast<double>(r), report.envelope->At(r), ""});
    plot.series.push_back(line);
  }
  return PlotSvg(plot);
}

void AddDepthsPart(const CalibrationReport& report, HtmlPage& page) {
  const DepthProfile& profile = report.profile;
  page.AddHeading("How near the early depths are");
  page.AddNote(
      "A looped model runs the same blocks R times for each token and reads out its answer at the "
      "end. LoopSpec also reads it out early: the left chart shows how often an early depth would "
      "already choose the token that the last one chooses, the right one how far its probabilities "
      "are from the final ones (0: the same, 1: nothing in common). The dashed line is the power "
      "law above all distances of generated text whose largest ratio to one of them is as small as "
      "it can be.");
  page.BeginRow();
  page.AddFigure(AgreementPlot(profile),
                 fmt::format("Greedy view, {} positions of generated text and {} of prompts.",
                             profile.generated.positions, profile.prompts.positions));
  page.AddFigure(DistancePlot(report), fmt::format("Sampled view: {}. Both axes are logarithmic.",
                                                   Described(report.sampling)));
  page.EndRow();
  if (!report.envelope) {
    page.AddParagraph("No envelope: " + report.no_envelope + ".");
    return;
  }
  const DepthChoice choice = ChooseDepths(*report.envelope, profile.recurrence);
  page.AddParagraph(fmt::format(
      "The envelope has alpha = {:.3f}, beta = {:.3f} and is up to {:.2f} times a measured "
      "distance. "
      "The paper's closed form gives d1 = {:.2f}, "
      "d2 = {:.2f}; its condition asks for R above {:.2f} and {} here (R = {}). It counts "
      "recurrences alone; the predictions above also count what rows, keys, pre-layers and "
      "readouts "
      "cost on this machine.",
      report.envelope->alpha, report.envelope->beta, report.envelope->worst_ratio, choice.depths.d1,
      choice.depths.d2, choice.smallest_recurrence,
      choice.condition_holds ? "holds" : "does not hold", profile.recurrence));
  if (profile.zeros() > 0)
    page.AddParagraph(
        fmt::format("{} distances of 0 are left out of the envelope.", profile.zeros()));
  if (const auto warning = EnvelopeWarning(*report.envelope))
    page.AddParagraph("Warning: " + *warning + ".");
}

// Theorem 1 over every pair of depths.
void AddRestartsPart(const CalibrationReport& report, HtmlPage& page) {
  Plot plot;
  plot.title = "Restarts against the bound of Theorem 1";
  plot.diagonal = true;
  PlotSeries series{"pairs of depths", PlotMark::kPoints, {}, -1};
  double high = 0;
  int64_t above = 0;
  for (const RestartBound& pair : RestartBounds(report.profile)) {
    high = std::max({high, 100 * pair.restarts, 100 * pair.bound});
    above += pair.restarts > pair.bound + 1e-9 ? 1 : 0;
    series.points.push_back(
        {100 * pair.bound, 100 * pair.restarts,
         fmt::format("{}: {:.3f} % restarts, bound {:.3f} %", DepthsText(pair.depths),
                     100 * pair.restarts, 100 * pair.bound)});
  }
  if (series.points.empty()) return;
  const auto pairs = static_cast<int64_t>(series.points.size());
  plot.x = {"2 epsilon at the second depth, %", false, 0.0, 1.05 * high};
  plot.y = {"tokens that restart, %", false, 0.0, 1.05 * high};
  plot.series = {std::move(series)};
  page.AddHeading("How often decoding restarts");
  page.AddFigure(
      PlotSvg(plot),
      fmt::format(
          "Each point is a pair of depths, {} in all; restarts are exact over the draws of "
          "the cascade, epsilon is the mean distance at the second depth. The theorem bounds "
          "restarts by 2 epsilon, the dashed line; {} above it.{}",
          pairs, above == 0 ? "none lies" : fmt::format("{} lie", above),
          report.profile.cascade_positions < report.profile.generated.positions
              ? fmt::format(" Restarts are over {} of {} positions.",
                            report.profile.cascade_positions, report.profile.generated.positions)
              : ""));
}

PlotSeries Measured(const CalibrationReport& report, size_t proposals, const char* name) {
  PlotSeries series;
  series.name = name;
  series.mark = PlotMark::kPoints;
  for (const MeasuredSpeed& m : report.measured) {
    const Prediction* p = report.Find(m.depths);
    if (m.depths.size() != proposals || p == nullptr || m.rates.empty()) continue;
    series.points.push_back({m.median(), p->tokens_per_second,
                             fmt::format("{}: measured {:.0f}, predicted {:.0f} tokens/s",
                                         DepthsText(m.depths), m.median(), p->tokens_per_second)});
  }
  return series;
}

void AddMeasuredPart(const CalibrationReport& report, HtmlPage& page) {
  if (report.measured.empty()) return;
  Plot plot;
  plot.title = "Predicted against measured speed";
  double high = 0;  // the same for both axes, so that the dashed line is the diagonal
  for (const MeasuredSpeed& m : report.measured) {
    const Prediction* p = report.Find(m.depths);
    high = std::max({high, m.median(), p != nullptr ? p->tokens_per_second : 0.0});
  }
  plot.x = {"measured (tokens/s)", false, 0.0, 1.05 * high};
  plot.y = {"predicted (tokens/s)", false, 0.0, 1.05 * high};
  plot.diagonal = true;
  const char* names[] = {"autoregressive", "one proposal", "two proposals", "three proposals"};
  for (size_t k = 0; k < 4; ++k) {
    PlotSeries series = Measured(report, k, names[k]);
    series.colour = static_cast<int>(k);
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  const PredictionQuality quality = Judge(report);
  page.AddHeading("Does the prediction hold?");
  page.AddFigure(PlotSvg(plot),
                 "Each point is one set of depths; on the dashed line prediction and measurement "
                 "are the same. Rest the pointer on a point for its depths.");
  if (quality.rank_correlation) {
    page.AddParagraph(fmt::format(
        "Over {} measured sets the rank correlation is {:.2f} (1: the same order). The chosen "
        "set reaches {} of the fastest measured one, {}.",
        quality.compared, *quality.rank_correlation, ShareAsPercent(quality.chosen_over_best),
        DepthsText(quality.best)));
  }
}

void AddRow(const CalibrationReport& report, const Prediction& p, HtmlTable& table) {
  const MeasuredSpeed* m = report.FindMeasured(p.depths);
  std::string accepted, gate;
  for (const double share : p.rates.accepted)
    accepted += (accepted.empty() ? "" : " / ") + fmt::format("{:.1f}", 100 * share);
  for (const double share : p.rates.gate)
    gate += (gate.empty() ? "" : " / ") + fmt::format("{:.1f}", 100 * share);
  const double plain = report.measured.empty() ? 0.0 : report.measured.front().median();
  std::vector<HtmlCell>& row = table.rows.emplace_back();
  row = {DepthsText(p.depths)};
  if (!report.measured.empty()) {
    row.emplace_back(m != nullptr && plain > 0 ? fmt::format("{:.2f}x", m->median() / plain) : "");
    row.emplace_back(m != nullptr ? fmt::format("{:.1f}", m->median()) : "");
  }
  row.insert(row.end(),
             {fmt::format("{:.2f}x", p.speedup), fmt::format("{:.1f}", p.tokens_per_second),
              accepted, gate, fmt::format("{:.2f}", p.simulation.tokens_per_pass),
              fmt::format("{:.1f}", p.simulation.rows),
              p.bound_share > 0 ? ShareAsPercent(p.bound_share) : ""});
  if (!report.measured.empty())
    row.emplace_back(m != nullptr && m->floor_share > 0 ? ShareAsPercent(m->floor_share) : "");
  table.strong.push_back(p.depths == report.chosen_depths);
}

HtmlTable PredictionTable(const CalibrationReport& report) {
  HtmlTable table;
  table.caption = report.measured.empty()
                      ? "Predicted: tokens per second, over autoregressive decoding, and the share "
                        "of the memory bound."
                      : "Predicted and then measured: tokens per second, over autoregressive "
                        "decoding, and the share of the memory bound.";
  // Speedups first: they are what a phone shows.
  const bool measured = !report.measured.empty();
  table.columns = {{"depths", false}};
  if (measured)
    for (const char* name : {"measured speedup", "measured tokens/s"})
      table.columns.push_back({name});
  for (const char* name : {"predicted speedup", "predicted tokens/s", "accepted, %", "gate open, %",
                           "tokens per pass", "rows of a step", "memory bound"})
    table.columns.push_back({name});
  if (measured) table.columns.push_back({"memory bound, measured"});
  return table;
}

void AddSpeedPart(const CalibrationReport& report, HtmlPage& page) {
  page.AddHeading(fmt::format("Which depths are fastest here for {} decoding",
                              report.view == RatesView::kGreedy ? "greedy" : "sampled"));
  page.AddParagraph(fmt::format(
      "{} on {} ({}{}), {}; {} text{}, {} generated positions, {} positions of context on average. "
      "Prompts: {}. {}, loopspec {}.",
      report.model, report.chip, report.device,
      report.threads > 0 ? fmt::format(", {} threads", report.threads) : "",
      NameOfPrecision(report.compute, report.kv_type), report.texts, report.texts == 1 ? "" : "s",
      report.profile.generated.positions, report.request.context, report.prompts, report.date,
      report.version));
  const MeasuredSpeed* measured = report.FindMeasured(report.chosen_depths);
  page.AddParagraph(fmt::format(
      "Chosen: {}, {}.", DepthsText(report.chosen_depths),
      measured != nullptr
          ? fmt::format("the fastest of those measured: {:.1f} tokens/s", measured->median())
          : fmt::format("predicted {:.1f} tokens/s, {:.2f}x autoregressive; nothing was measured",
                        report.chosen().tokens_per_second, report.chosen().speedup)));
  if (report.busy()) {
    page.AddParagraph(
        fmt::format("The machine was busy: the same work took up to {:.2f} times as long at one "
                    "time as at another, and another set may be the fastest.",
                    report.spread));
  }
  page.AddNote(
      "Accepted: tokens that come from the first, second, third proposal. Tokens per pass: for as "
      "many recurrences as one token takes without drafts. The memory bound is the time that "
      "reading the weights, keys and values of the steps takes at the bandwidth of this machine: "
      "a low share says that kernels or rows hold it back, a high one that only more accepted "
      "drafts would help. More than 100 %: part of what is read stays in the caches.");
  HtmlTable top = PredictionTable(report), all = PredictionTable(report);
  AddRow(report, report.autoregressive, top);
  for (size_t i = 0; i < report.predictions.size(); ++i) {
    const Prediction& p = report.predictions[i];
    if (i < 20 || report.FindMeasured(p.depths) != nullptr) AddRow(report, p, top);
    AddRow(report, p, all);
  }
  page.AddTable(top);
  if (all.rows.size() > top.rows.size()) {
    page.BeginDetails(fmt::format("All {} sets of depths", all.rows.size()));
    page.AddTable(all);
    page.EndDetails();
  }
  if (report.triples_thinned)
    page.AddParagraph(
        "Sets of three depths are taken from a grid that grows by about a third from depth to "
        "depth.");
}

}  // namespace

std::string CalibrationPage(std::span<const CalibrationReport> reports) {
  HtmlPage page("Calibration of " + NameInTitle(reports[0].model));
  page.AddParagraph(
      "Tokens per second: every token, over the time from the read prompt to the last one.");
  for (const CalibrationReport& report : reports) {
    AddSpeedPart(report, page);
    AddMeasuredPart(report, page);
    AddDepthsPart(report, page);
    AddRestartsPart(report, page);
  }
  if (!reports[0].command.empty()) page.AddParagraph("Run by: " + reports[0].command);
  return page.Text();
}

}  // namespace loopspec
