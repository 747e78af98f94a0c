#include "calibrate/key_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "kv/planes.h"

namespace loopspec {
namespace {

// The depths of a table: all of a model of few loops, else the first and then ever wider apart.
std::vector<int> DepthsToShow(int depths) {
  std::vector<int> shown;
  for (int depth = 1; depth <= depths; depth += depths <= 8 ? 1 : std::max(1, depth / 2))
    shown.push_back(depth);
  return shown;
}

std::string ResidualTable(const KeyResiduals& residuals) {
  const std::vector<int> depths = DepthsToShow(residuals.depths());
  std::string text = fmt::format("  {:<12}", "loop");
  for (const int depth : depths) text += fmt::format("{:>7}", depth);
  const auto line = [&](const std::string& name, const auto& value) {
    text += fmt::format("\n  {:<12}", name);
    for (const int depth : depths) text += fmt::format("{:>7.3f}", value(depth));
  };
  line("K", [&](int depth) { return residuals.Keys(depth); });
  line("V", [&](int depth) { return residuals.Values(depth); });
  for (int layer = 0; layer < residuals.layers(); ++layer) {
    line(fmt::format("K, layer {}", layer + 1),
         [&](int depth) { return residuals.Keys(depth, layer); });
    line(fmt::format("V, layer {}", layer + 1),
         [&](int depth) { return residuals.Values(depth, layer); });
  }
  return text + "\n";
}

std::string JudgedLine(const KeyReport& report, const JudgedKeys& judged) {
  const double share =
      static_cast<double>(report.Bytes(judged.plan)) / static_cast<double>(report.BytesOfBf16());
  return fmt::format("  {:<34}{:>7.1f} %{:>11.2f} %{:>10.5f}{:>10.5f}{:>12.3f}{:>8.3f}\n",
                     judged.plan.text(), 100 * share, 100 * judged.agreed, judged.distance,
                     judged.added, judged.perplexity, judged.gamma);
}

std::string ProposalLine(const KeyReport& report) {
  const KeyJudgement& judgement = report.judgement;
  const JudgedKeys* proposed = ProposePlan(judgement, report.spec, report.readouts);
  if (proposed == nullptr)
    return "proposed: int8 for every loop, no cheaper plan adds as little error\n";
  return fmt::format(
      "proposed: {}, {:.1f} % of bf16's bytes, total variation {:.2f} times int8's\n",
      proposed->plan.text(),
      100.0 * static_cast<double>(report.Bytes(proposed->plan)) /
          static_cast<double>(report.BytesOfBf16()),
      judgement.int8.distance > 0 ? proposed->distance / judgement.int8.distance : 1.0);
}

const KeyPlan& PlanToUse(const KeyReport& report) {
  const JudgedKeys* proposed = ProposePlan(report.judgement, report.spec, report.readouts);
  return proposed == nullptr ? report.judgement.int8.plan : proposed->plan;
}

OrderedJson JudgedJson(const KeyReport& report, const JudgedKeys& judged) {
  return {{"plan", judged.plan.text()},
          {"bytes_per_token", report.Bytes(judged.plan)},
          {"share_of_bf16", static_cast<double>(report.Bytes(judged.plan)) /
                                static_cast<double>(report.BytesOfBf16())},
          {"same_likeliest", judged.agreed},
          {"total_variation", judged.distance},
          {"total_variation_from_int8", judged.added},
          {"perplexity", judged.perplexity},
          {"gamma", judged.gamma},
          {"as_good_as_int8", AsGoodAsInt8(report.judgement, judged)}};
}

}  // namespace

int64_t KeyReport::BytesOfBf16() const {
  return int64_t{PlaneMap(spec, readouts).count()} * spec.kv_heads * 2 * 2 * spec.head_dim;
}

std::string KeyReport::KvType() const {
  const KeyPlan& plan = PlanToUse(*this);
  if (plan == judgement.int8.plan) return "int8";
  // Short spans are for judging alone.
  const bool named = span % kPageSize == 0 && span != kPageSize;
  return fmt::format("loops:{}{}", plan.text(), named ? fmt::format("@{}", span) : "");
}

std::string KeyTables(const KeyReport& report) {
  const KeyJudgement& judgement = report.judgement;
  std::string text = fmt::format(
      "keys and values of each loop minus the last loop's, over their own norm ({} positions of "
      "{}):\n{}\n",
      report.residuals.positions(), report.fitted, ResidualTable(report.residuals));
  text += fmt::format(
      "plans against exact keys, over {} positions of {} in texts of up to {} tokens, perplexity "
      "{:.3f}, gamma {:.3f};\na query reads its own span of {} positions and the one before "
      "exactly as int8, earlier ones by the plan{}:\n",
      judgement.positions, report.judged, report.text_tokens, judgement.perplexity, judgement.gamma,
      report.span,
      report.span % kPageSize == 0
          ? ""
          : fmt::format(" (spans of less than {} are for judging short texts)", kPageSize));
  text += fmt::format("  {:<34}{:>9}{:>13}{:>10}{:>10}{:>12}{:>8}\n", "plan", "of bf16",
                      "likeliest", "TV", "from int8", "perplexity", "gamma");
  text += JudgedLine(report, judgement.int8);
  std::vector<const JudgedKeys*> plans;
  for (const JudgedKeys& judged : judgement.plans) plans.push_back(&judged);
  std::stable_sort(plans.begin(), plans.end(), [&](const auto* a, const auto* b) {
    return report.Bytes(a->plan) > report.Bytes(b->plan);
  });
  for (const JudgedKeys* judged : plans) text += JudgedLine(report, *judged);
  text +=
      fmt::format("\n{}to decode with it: --kv-type '{}'", ProposalLine(report), report.KvType());
  if (PlanToUse(report).HasResiduals())
    text += ", on a CPU; a GPU reads plans without residuals, of int8 and last alone";
  return text + "\n";
}

OrderedJson KeyJson(const KeyReport& report) {
  const KeyResiduals& residuals = report.residuals;
  OrderedJson keys = OrderedJson::array(), values = OrderedJson::array();
  for (int depth = 1; depth <= residuals.depths(); ++depth) {
    OrderedJson of_keys = OrderedJson::array(), of_values = OrderedJson::array();
    for (int layer = 0; layer < residuals.layers(); ++layer) {
      of_keys.push_back(residuals.Keys(depth, layer));
      of_values.push_back(residuals.Values(depth, layer));
    }
    keys.push_back(std::move(of_keys));
    values.push_back(std::move(of_values));
  }
  const KeyJudgement& judgement = report.judgement;
  OrderedJson plans = OrderedJson::array();
  for (const JudgedKeys& judged : judgement.plans) plans.push_back(JudgedJson(report, judged));
  return {{"model", report.model},
          {"family", report.spec.family},
          {"recurrence", report.spec.recurrence},
          {"chip", report.chip},
          {"date", report.date},
          {"version", report.version},
          {"command", report.command},
          {"residuals",
           {{"texts", report.fitted},
            {"positions", residuals.positions()},
            {"keys", std::move(keys)},
            {"values", std::move(values)}}},
          {"span", report.span},
          {"judged",
           {{"texts", report.judged},
            {"text_tokens", report.text_tokens},
            {"positions", judgement.positions},
            {"perplexity", judgement.perplexity},
            {"gamma", judgement.gamma}}},
          {"bytes_per_token_bf16", report.BytesOfBf16()},
          {"int8", JudgedJson(report, judgement.int8)},
          {"plans", std::move(plans)},
          {"proposed", PlanToUse(report).text()},
          {"kv_type", report.KvType()}};
}

}  // namespace loopspec
