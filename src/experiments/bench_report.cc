#include "experiments/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "engine/load/device.h"
#include "report/html_page.h"
#include "report/plot.h"

namespace loopspec::experiments {
namespace {

constexpr size_t kCsvProposals = 4;

struct TimeShares {
  double prelude, recur, readout, host;
};

TimeShares SharesOf(const RunTotals& totals) {
  const Statistics& t = totals.times;
  const double busy = std::max(1e-12, t.busy_seconds());
  return {t.prelude_seconds / busy, t.recur_seconds / busy, t.readout_seconds / busy,
          t.host_seconds / busy};
}

OrderedJson Maybe(std::optional<double> value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

// The spread as an interval, or as the range of few texts, whichever it is.
OrderedJson SpreadJson(const SpecFigures& f, bool as_interval) {
  if (!f.spread || !f.Enough() || f.spread->is_interval() != as_interval) return nullptr;
  return {f.spread->low, f.spread->high};
}

OrderedJson SpecJson(const BenchResult& result, const BenchSpec& spec) {
  const RunTotals& t = spec.totals;
  const Statistics& s = t.statistics;
  const SpecFigures f = result.Figures(spec);
  const TimeShares shares = SharesOf(t);
  OrderedJson out = {
      {"decode", spec.name},
      {"depths", spec.depths},
      {"sampler", spec.sampler},
      {"second_proposal", spec.second_proposal},
      {"tokens_per_second", {{"median", f.rate}, {"min", f.rate_low}, {"max", f.rate_high}}},
      {"speedup", f.Enough() ? OrderedJson(f.speedup) : OrderedJson(nullptr)},
      {"speedup_interval", SpreadJson(f, true)},
      {"speedup_range", SpreadJson(f, false)},
      {"gamma", f.Enough() ? OrderedJson(f.gamma) : OrderedJson(nullptr)},
      {"tokens_per_pass", f.tokens_per_pass},
      {"floor_share", Maybe(f.floor_share)},
      {"memory_allows", f.memory_allows},
      {"acceptance_share", f.acceptance_share},
      {"schedule_share", f.schedule_share},
      {"texts", t.texts},
      {"repeats", f.repeats},
      {"decoded_tokens", t.tokens},
      {"accepted", s.accepted},
      {"fallback", s.fallback},
      {"gate_evaluated", s.gate_evaluated},
      {"gate_opened", s.gate_opened},
      {"gate_rate", Maybe(f.gate)},
      {"guesses", s.guesses},
      {"adopted", s.guesses_adopted},
      {"adoption_rate", Maybe(f.adopted)},
      {"early", s.early},
      {"steps", s.recurrences},
      {"rows_mean", f.rows_mean},
      {"rows_peak", f.rows_peak},
      {"rows_histogram", s.rows_histogram},
      {"time_shares",
       {{"prelude", shares.prelude},
        {"recur", shares.recur},
        {"readout", shares.readout},
        {"host", shares.host}}}};
  if (spec.comparable) out["equal"] = t.equal == t.compared;
  if (t.answered > 0) {
    out["answered"] = t.answered;
    out["correct"] = t.correct;
    out["accuracy"] = static_cast<double>(t.correct) / static_cast<double>(t.answered);
  }
  return out;
}

// A field of a CSV file: quoted where it holds what separates.
std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string CsvNumber(std::optional<double> value) {
  return value ? fmt::format("{:.6g}", *value) : "";
}

std::string Sources(const SpecFigures& f) {
  std::string text;
  for (const double share : f.accepted) text += fmt::format("{:.1f}/", 100 * share);
  return text + fmt::format("{:.1f}", 100 * f.fallback);
}

std::string Equal(const BenchSpec& spec) {
  if (!spec.comparable) return "";
  return spec.totals.equal == spec.totals.compared ? "yes" : "NO";
}

// Lines below the row of a way of decoding, for what does not fit into it.
std::vector<std::string> Remarks(const BenchResult& result, const BenchSpec& spec) {
  const SpecFigures f = result.Figures(spec);
  const Statistics& s = spec.totals.statistics;
  std::vector<std::string> lines;
  const bool baseline = &spec == &result.specs[0] || (spec.depths.empty() && s.guesses == 0);
  if (const std::string verdict = f.Verdict(baseline ? "" : result.specs[0].name); !verdict.empty())
    lines.push_back(verdict);
  if (!baseline && f.spread && f.Enough())
    lines.push_back(fmt::format(
        "{}: {:.2f}x to {:.2f}x{}",
        f.spread->is_interval()
            ? fmt::format("95 % interval over {} texts and {} repeats", f.spread->texts, f.repeats)
            : fmt::format("range of {} texts, too few for an interval", f.spread->texts),
        f.spread->low, f.spread->high,
        f.spread->is_interval() && !f.spread->tells_apart() ? ", not significant" : ""));
  if (f.rows_peak >= result.cells)
    lines.push_back(
        fmt::format("{} branches were alive at once, as many as there are cells: the least likely "
                    "were dropped, which costs tokens per pass (--cells)",
                    result.cells));
  if (spec.name.find("/paper") != std::string::npos)
    lines.push_back(
        "begins no branch beyond the end of a text, where Algorithm 1 as printed goes on: short "
        "texts have fewer rows");
  if (f.gate)
    lines.push_back(
        fmt::format("gate open at {:.2f} % of {} readouts", 100 * *f.gate, s.gate_evaluated));
  if (f.adopted)
    lines.push_back(
        fmt::format("{:.1f} % of the tokens began early; {:.1f} % of {} guesses adopted",
                    100 * f.early, 100 * *f.adopted, s.guesses));
  if (const std::string why = ExplainShare(f.floor_share.value_or(0)); !why.empty())
    lines.push_back("floor " + why);
  if (spec.totals.answered > 0)
    lines.push_back(fmt::format("{} of {} answers right ({:.1f} %)", spec.totals.correct,
                                spec.totals.answered,
                                100.0 * static_cast<double>(spec.totals.correct) /
                                    static_cast<double>(spec.totals.answered)));
  return lines;
}

std::string Heading(const BenchResult& result) {
  std::string text;
  if (!result.simulation.empty()) {
    text += fmt::format(
        "TIMING SIMULATION: verification outcomes are drawn at rates {}, not decided by the "
        "model\n",
        result.simulation);
  }
  text += fmt::format("{} on {}, {}, {}, {} repeats, medians; ", result.model, result.device,
                      NameOfPrecision(result.compute, result.kv_type), result.what, result.repeats);
  text += result.bandwidth > 0 ? fmt::format("read bandwidth {:.2f} GB/s\n", result.bandwidth / 1e9)
                               : "read bandwidth unknown\n";
  if (result.interrupted) text += "INTERRUPTED: these are the runs that were complete by then\n";
  return text;
}

// ---- The page

HtmlCell SpeedupWithNote(const SpecFigures& f) {
  HtmlCell cell(f.Enough() ? fmt::format("{:.2f}x", f.speedup) : "too few tokens");
  cell.faint = !f.Enough();
  if (f.Enough() && f.spread) cell.note = f.spread->Words();
  return cell;
}

// What was measured, where and how.
void AddSource(const BenchResult& result, HtmlPage& page) {
  page.AddParagraph(fmt::format(
      "{}: {:.1f} M parameters, {}, weights {}. On {} ({}{}), {} activations{}, seed {}. {}, "
      "loopspec "
      "{}.",
      result.model, static_cast<double>(result.parameters) / 1e6, result.dtype,
      result.weights.empty() ? "unknown" : "sha256 " + result.weights.substr(0, 12), result.chip,
      result.device, result.threads > 0 ? fmt::format(", {} threads", result.threads) : "",
      result.compute,
      result.kv_type.empty() || result.kv_type == result.compute ? "" : ", keys " + result.kv_type,
      result.seed, result.date, result.version));
  if (!result.command.empty()) page.AddParagraph("Run by: " + result.command);
}

// Whether any spec decoded enough for a ratio.
bool AnyEnough(const BenchResult& result) {
  return std::any_of(result.specs.begin(), result.specs.end(),
                     [&](const BenchSpec& spec) { return result.Figures(spec).Enough(); });
}

// What matters most comes first: a narrow window shows the first columns. No speedups, no column.
HtmlTable PageTable(const BenchResult& result) {
  HtmlTable table;
  table.columns = {{"decoding", false}, {"equal"},       {"tokens/s"},
                   {"tokens"},          {"tokens/pass"}, {"drafts / fallback, %"},
                   {"gate opens"},      {"early"},       {"rows"},
                   {"memory bound"},    {"right"}};
  const bool speedups = AnyEnough(result);
  if (speedups) table.columns.insert(table.columns.begin() + 1, {"speedup"});
  const auto percent = [](std::optional<double> share) {
    return share ? fmt::format("{:.1f} %", 100 * *share) : std::string("–");
  };
  for (const BenchSpec& spec : result.specs) {
    const SpecFigures f = result.Figures(spec);
    const RunTotals& t = spec.totals;
    std::vector<HtmlCell> row = {
        HtmlCell(spec.name, spec.sampler),
        spec.comparable ? Equal(spec) : "–",
        HtmlCell(fmt::format("{:.1f}", f.rate),
                 fmt::format("{:.1f} to {:.1f}", f.rate_low, f.rate_high)),
        HtmlCell(std::to_string(f.tokens),
                 fmt::format("{} text{}", f.texts, f.texts == 1 ? "" : "s")),
        HtmlCell(fmt::format("{:.2f}", f.tokens_per_pass),
                 f.Enough() ? fmt::format("gamma {:.2f}", f.gamma) : ""),
        Sources(f),
        percent(f.gate),
        HtmlCell(percent(f.early), f.adopted ? percent(f.adopted) + " adopted" : ""),
        HtmlCell(fmt::format("{:.2f}", f.rows_mean), fmt::format("peak {}", f.rows_peak)),
        HtmlCell(percent(f.floor_share), fmt::format("allows {:.2f}x", f.memory_allows)),
        t.answered > 0 ? fmt::format("{} of {}", t.correct, t.answered) : "–"};
    if (speedups) row.insert(row.begin() + 1, SpeedupWithNote(f));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string SpeedBars(const BenchResult& result) {
  BarPlot plot;
  plot.title = "Tokens per second";
  plot.y.label = "tokens/s";
  BarSeries series{"median; the line is the spread over repeats", {}};
  for (const BenchSpec& spec : result.specs) {
    const SpecFigures f = result.Figures(spec);
    plot.categories.push_back(spec.name);
    series.values.push_back(BarValue{f.rate, f.rate_low, f.rate_high});
  }
  plot.series = {series};
  return BarSvg(plot);
}

std::string RowsPlot(const BenchResult& result) {
  constexpr int kRowsOfBin = 10;  // as in the paper
  int most = 0;
  for (const BenchSpec& spec : result.specs)
    most = std::max(most, spec.totals.statistics.rows_peak);
  const int width = most > 2 * kRowsOfBin ? kRowsOfBin : 1;
  BarPlot plot;
  plot.title = "Rows of a recurrent pass";
  plot.x_label = width > 1 ? "rows, in bins of 10" : "rows";
  plot.y.label = "share of passes, %";
  for (const BenchSpec& spec : result.specs) {
    const Histogram histogram = BinCounts(spec.totals.statistics.rows_histogram, width);
    if (histogram.bins.size() > plot.categories.size()) plot.categories = histogram.bins;
    BarSeries series{spec.name, {}};
    for (const double percent : histogram.percent)
      series.values.push_back(BarValue{percent, {}, {}});
    plot.series.push_back(std::move(series));
  }
  for (size_t i = 0; width == 1 && i < plot.categories.size(); ++i)
    plot.categories[i] = std::to_string(i + 1);
  return BarSvg(plot);
}

}  // namespace

SpecFigures BenchResult::Figures(const BenchSpec& spec) const {
  SpecFigures figures = FiguresOf(spec.totals, specs[0].totals, spec.depths, recurrence, bandwidth);
  if (spec.second_proposal != "gated") figures.gate = std::nullopt;  // has none
  return figures;
}

std::string ExplainShare(double share) {
  if (share <= 1.0) return "";
  return "over 100 %: part of what is read stays in the caches, which are faster than memory";
}

OrderedJson BenchJson(const BenchResult& result) {
  OrderedJson list = OrderedJson::array();
  for (const BenchSpec& spec : result.specs) list.push_back(SpecJson(result, spec));
  OrderedJson out = {{"model", result.model},
                     {"device", result.device},
                     {"chip", result.chip},
                     {"compute", result.compute},
                     {"kv_type", result.kv_type},
                     {"threads", result.threads},
                     {"parameters", result.parameters},
                     {"dtype", result.dtype},
                     {"seed", result.seed},
                     {"date", result.date},
                     {"version", result.version},
                     {"recurrence", result.recurrence},
                     {"bandwidth", result.bandwidth},
                     {"what", result.what},
                     {"prompts", result.prompts},
                     {"repeat", result.repeats},
                     {"results", list}};
  if (result.interrupted) out["interrupted"] = true;
  if (!result.simulation.empty()) {
    out["timing_simulation"] =
        "verification outcomes drawn at rates " + result.simulation + ", not decided by the model";
  }
  return out;
}

std::string BenchCsv(const BenchResult& result) {
  std::string text =
      "decode,sampler,second_proposal,depths,tokens_per_second,tokens_per_second_min,"
      "tokens_per_second_max,speedup,speedup_low,speedup_high,gamma,tokens_per_pass,";
  for (size_t i = 1; i <= kCsvProposals; ++i) text += fmt::format("accepted_{},", i);
  text +=
      "fallback,gate_rate,early,adoption_rate,rows_mean,rows_peak,floor_share,memory_allows,"
      "prelude_share,recur_share,readout_share,host_share,texts,decoded_tokens,equal,correct,"
      "answered,simulation\n";
  for (const BenchSpec& spec : result.specs) {
    const SpecFigures f = result.Figures(spec);
    const RunTotals& t = spec.totals;
    const TimeShares shares = SharesOf(t);
    const bool interval = f.Enough() && f.spread && f.spread->is_interval();
    std::vector<std::string> fields = {
        spec.name,
        spec.sampler,
        spec.second_proposal,
        fmt::format("{}", fmt::join(spec.depths, " ")),
        CsvNumber(f.rate),
        CsvNumber(f.rate_low),
        CsvNumber(f.rate_high),
        CsvNumber(f.Enough() ? std::optional(f.speedup) : std::nullopt),
        CsvNumber(interval ? std::optional(f.spread->low) : std::nullopt),
        CsvNumber(interval ? std::optional(f.spread->high) : std::nullopt),
        CsvNumber(f.Enough() ? std::optional(f.gamma) : std::nullopt),
        CsvNumber(f.tokens_per_pass)};
    for (size_t i = 0; i < kCsvProposals; ++i)
      fields.push_back(i < f.accepted.size() ? CsvNumber(f.accepted[i]) : "");
    for (const auto& value :
         {std::optional(f.fallback), f.gate, std::optional(f.early), f.adopted,
          std::optional(f.rows_mean), std::optional(static_cast<double>(f.rows_peak)),
          f.floor_share, std::optional(f.memory_allows), std::optional(shares.prelude),
          std::optional(shares.recur), std::optional(shares.readout), std::optional(shares.host)})
      fields.push_back(CsvNumber(value));
    fields.push_back(std::to_string(t.texts));
    fields.push_back(std::to_string(t.tokens));
    fields.push_back(spec.comparable ? (t.equal == t.compared ? "true" : "false") : "");
    fields.push_back(t.answered > 0 ? std::to_string(t.correct) : "");
    fields.push_back(t.answered > 0 ? std::to_string(t.answered) : "");
    fields.push_back(result.simulation);
    for (std::string& field : fields) field = CsvField(field);
    text += fmt::format("{}\n", fmt::join(fields, ","));
  }
  return text;
}

std::string BenchTable(const BenchResult& result) {
  std::string text = Heading(result);
  if (result.specs.empty()) return text;
  size_t width = 18;
  for (const BenchSpec& spec : result.specs) width = std::max(width, spec.name.size() + 2);
  text += fmt::format("{:<{}}{:>10}{:>18}{:>9}{:>9}{:>8}{:>10}{:>18}{:>8}{:>6}{:>14}{:>7}\n",
                      "decode", width, "tokens/s", "(min-max)", "speedup", "floor", "gamma",
                      "tok/pass", "1st/2nd/.../fall", "rows", "peak", "P/B/C/host %", "equal");
  for (const BenchSpec& spec : result.specs) {
    const SpecFigures f = result.Figures(spec);
    const TimeShares shares = SharesOf(spec.totals);
    text += fmt::format(
        "{:<{}}{:>10.1f}{:>18}{:>9}{:>9}{:>8}{:>10.2f}{:>18}{:>8.2f}{:>6}{:>14}{:>7}\n", spec.name,
        width, f.rate, fmt::format("({:.1f}-{:.1f})", f.rate_low, f.rate_high),
        f.Enough() ? fmt::format("{:.2f}x", f.speedup) : "-",
        f.floor_share ? fmt::format("{:.1f} %", 100 * *f.floor_share) : "-",
        f.Enough() ? fmt::format("{:.2f}", f.gamma) : "-", f.tokens_per_pass, Sources(f),
        f.rows_mean, f.rows_peak,
        fmt::format("{:.0f}/{:.0f}/{:.0f}/{:.1f}", 100 * shares.prelude, 100 * shares.recur,
                    100 * shares.readout, 100 * shares.host),
        Equal(spec));
    for (const std::string& line : Remarks(result, spec))
      text += fmt::format("{:<{}}{}\n", "", width, line);
  }
  return text;
}

std::string BenchHtml(const BenchResult& result) {
  HtmlPage page(fmt::format("Decoding {} by several specs", NameInTitle(result.model)));
  page.AddParagraph(Heading(result));
  AddSource(result, page);
  if (result.specs.empty()) return page.Text();
  page.BeginRow();
  page.AddFigure(SpeedBars(result), "All tokens, over the time from the read prompt to the last.");
  page.AddFigure(RowsPlot(result), "How many branches advance together in a pass.");
  page.EndRow();
  if (!AnyEnough(result))
    page.AddNote(
        fmt::format("Too few tokens for a speedup: every spec needs {} or more, over all "
                    "its texts. A larger --max-tokens or --limit makes them.",
                    kLeastTokens));
  page.AddTable(PageTable(result));
  page.AddNote(
      "speedup: tokens per second over those of the first line, every token counted, from the "
      "read prompt on; below it the 95 % interval of a bootstrap over texts and repeats, or with "
      "few texts the range of their speedups. tokens/pass: tokens for every R recurrences "
      "that were run; gamma: the same by the paper's formula, which counts accepted drafts alone. "
      "drafts / fallback: "
      "tokens that were the first, second, ... draft, or the last depth's own choice. gate opens: "
      "readouts at later depths that made a draft. early: tokens whose computation began on a "
      "guess before they were drafted; adopted: guesses that the draft confirmed. memory bound: "
      "the time that reading weights, keys and values alone takes, over the time of the steps. "
      "memory allows: the speedup if reading were all that takes time. equal: the same tokens as "
      "the first line of the same sampler, where they must be.");
  HtmlTable limits;
  limits.columns = {{"decoding", false}, {"what holds it back", false}};
  for (const BenchSpec& spec : result.specs) {
    std::string name = spec.name;  // on the first of its lines
    for (const std::string& line : Remarks(result, spec))
      limits.rows.push_back({std::exchange(name, ""), line});
  }
  if (!limits.rows.empty()) page.AddTable(limits);
  return page.Text();
}

}  // namespace loopspec::experiments
