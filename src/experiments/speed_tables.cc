// Speed: the paper's table, its bars, and what a text of each task took.
#include <fmt/format.h>

#include <algorithm>

#include "experiments/experiment_run.h"
#include "experiments/experiment_tables.h"
#include "report/plot.h"

namespace loopspec::experiments {
namespace {

// Marks the largest number of each column among the given rows, and those that show the same.
void MarkBest(HtmlTable& table, const std::vector<size_t>& rows) {
  for (size_t column = 0; column < table.columns.size(); ++column) {
    if (!table.columns[column].number) continue;
    const auto value = [&](size_t row) {
      if (column >= table.rows[row].size() || table.rows[row][column].faint) return 0.0;
      return std::strtod(table.rows[row][column].text.c_str(), nullptr);
    };
    double most = 0;
    for (const size_t row : rows) most = std::max(most, value(row));
    for (const size_t row : rows) {
      if (rows.size() > 1 && most > 0 && value(row) == most) table.rows[row][column].best = true;
    }
  }
}
// How a schedule compares with the one on the row above it, which it adds to.
std::string AgainstRowAbove(const RunTotals& own, const RunTotals& above) {
  const auto spread = SpreadOf(own.times_of_texts, above.times_of_texts);
  if (!spread || !spread->is_interval()) return "";
  return fmt::format("; {:.2f}x the row above ({}{})",
                     SpeedupOf(own.times_of_texts, above.times_of_texts), spread->Words(),
                     spread->tells_apart() ? "" : ": cannot be told apart");
}

// A speedup with its spread and what it rests on; grey and without a number where that is little.
HtmlCell SpeedupCell(const SpecFigures& f, const std::string& against_row_above = "") {
  if (!f.Enough()) {
    HtmlCell cell("too few tokens", Counted(f));
    cell.faint = true;
    return cell;
  }
  const std::string spread = f.spread ? f.spread->Words() + "; " : "";
  return HtmlCell(Number(f.speedup, 2, "x"), spread + Counted(f) + against_row_above);
}

// Gamma with the tokens per pass that were measured. N-gram speculation has no drafts to count.
HtmlCell GammaCell(const ExperimentDecode& decode, const SpecFigures& f) {
  return HtmlCell(decode.lookup ? kNone : Number(f.gamma), Number(f.tokens_per_pass) + " per pass");
}

// The paper's table: models and depths down, benchmarks across, ours above the paper's.
void AddSpeedTable(const std::vector<ExperimentResult>& results, const ExperimentSampling& sampling,
                   HtmlPage& page) {
  const std::vector<std::string> tasks = TasksOf(results);
  HtmlTable table;
  table.caption = fmt::format(
      "{} (temperature {}, top-p {}): speedup over autoregressive decoding, and gamma. Below a "
      "speedup: the 95 % interval of a bootstrap over texts and repeats, or with fewer than {} "
      "texts "
      "the range of their speedups, and what was decoded. Gamma is the paper's formula, "
      "what the accepted drafts alone would give; below it: tokens per pass, measured over every R "
      "recurrences that were run. Bold: the largest of a model",
      sampling.name, sampling.temperature, sampling.top_p, kTextsOfAnInterval);
  // Two columns before the first speedup, so that a narrow window shows it.
  table.columns = {{"proposal depths", false}, {"from", false}};
  bool enough = false;  // for one ratio at least
  for (const std::string& task : tasks) {
    table.columns.push_back({TaskTitle(task) + " speedup"});
    table.columns.push_back({"gamma"});
  }
  for (const ExperimentResult& result : results) {
    std::vector<size_t> here, theirs;
    const std::vector<ExperimentDecode> compared = Compared(result);
    for (size_t i = 0; i < compared.size(); ++i) {
      const ExperimentDecode& decode = compared[i];
      const bool adds_to_row_above = i > 0 && !decode.depths.empty() &&
                                     RowName(compared[i - 1]) == RowName(decode) &&
                                     compared[i - 1].schedule < decode.schedule;
      const std::string schedule = decode.depths.empty() ? kNone : NameOf(decode.schedule);
      std::vector<HtmlCell> ours = {
          HtmlCell(RowName(decode), schedule == kNone
                                        ? result.label
                                        : fmt::format("{}; {}", result.label, schedule)),
          "here"};
      std::vector<HtmlCell> paper = {"", "paper"};
      bool any = false;
      for (const std::string& task : tasks) {
        const RunTotals* own = result.Find(task, sampling.name, SpecName(decode));
        const RunTotals* above = adds_to_row_above
                                     ? result.Find(task, sampling.name, SpecName(compared[i - 1]))
                                     : nullptr;
        const SpecFigures f = result.Figures(task, sampling.name, decode);
        const bool ran = own != nullptr;
        ours.push_back(ran ? SpeedupCell(f, above ? AgainstRowAbove(*own, *above) : "")
                           : HtmlCell(kNone));
        enough = enough || (ran && f.Enough());
        ours.push_back(ran && f.Enough() ? GammaCell(decode, f) : HtmlCell(kNone));
        for (const char* key : {"speedup", "gamma"}) {
          const auto value =
              PaperValue(result.experiment, result.model, task, sampling.name, &decode, key);
          paper.push_back(Number(value, 2, std::string_view(key) == "speedup" && value ? "x" : ""));
          any = any || value;
          enough = enough || value;
        }
      }
      here.push_back(table.rows.size());
      table.rows.push_back(ours);
      table.strong.push_back(true);
      if (!any) continue;
      theirs.push_back(table.rows.size());
      table.rows.push_back(paper);
      table.strong.push_back(false);
    }
    MarkBest(table, here);
    MarkBest(table, theirs);
  }
  if (enough)
    page.AddTable(table);
  else
    page.AddNote(fmt::format(
        "{}: too few tokens for a speedup; {} or more of each task are needed. A larger --limit or "
        "--max-tokens makes them.",
        sampling.name, kLeastTokens));
}

void AddSpeedBars(const ExperimentResult& result, const ExperimentSampling& sampling,
                  HtmlPage& page) {
  BarPlot plot;
  plot.title = fmt::format("{}, {}", result.label, sampling.name);
  plot.y.label = "speedup over autoregressive decoding";
  const std::vector<std::string> tasks = TasksOf({result});
  for (const std::string& task : tasks) plot.categories.push_back(TaskTitle(task));
  for (const ExperimentDecode& decode : Compared(result)) {
    // The steps between the paper's schedule and ours are in the table.
    if (decode.schedule == DecodeSchedule::kRows || decode.schedule == DecodeSchedule::kGroups)
      continue;
    BarSeries series;
    series.name = RowName(decode);
    if (decode.schedule == DecodeSchedule::kPaper) series.name += ", the paper's schedule";
    bool any = false;
    for (const std::string& task : tasks) {
      const SpecFigures f = result.Figures(task, sampling.name, decode);
      const bool enough =
          result.Find(task, sampling.name, SpecName(decode)) != nullptr && f.Enough();
      any = any || enough;
      series.values.push_back(
          enough ? std::optional(BarValue{f.speedup,
                                          f.spread ? std::optional(f.spread->low) : std::nullopt,
                                          f.spread ? std::optional(f.spread->high) : std::nullopt})
                 : std::nullopt);
    }
    if (any) plot.series.push_back(std::move(series));
  }
  if (plot.series.empty()) return;  // the table says why
  page.AddFigure(
      BarSvg(plot),
      "How many times as many tokens per second as the same model without drafts; 1 is no "
      "gain. The lines are the intervals or ranges of the table.");
}

}  // namespace

void AddSpeedDetails(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.columns = {{"model", false},
                   {"task", false},
                   {"sampling", false},
                   {"decoding", false},
                   {"equal"},
                   {"tokens/s"},
                   {"speedup"},
                   {"texts"},
                   {"tokens"},
                   {"gamma"},
                   {"tokens/pass"},
                   {"1st"},
                   {"2nd"},
                   {"fallback"},
                   {"gate opens"},
                   {"early"},
                   {"adopted"},
                   {"rows"},
                   {"peak"},
                   {"memory bound"},
                   {"memory allows"},
                   {"right"}};
  for (const ExperimentResult& result : results) {
    for (const std::string& task : TasksOf(results)) {
      for (const ExperimentSampling& sampling : result.experiment.samplings) {
        for (const ExperimentDecode& decode : SpecsOf(result.experiment, result.recurrence)) {
          const RunTotals* t = result.Find(task, sampling.name, SpecName(decode));
          if (t == nullptr) continue;
          const SpecFigures f = result.Figures(task, sampling.name, decode);
          const auto source = [&](size_t i) {
            return i < f.accepted.size() ? Percent(f.accepted[i]) : std::string(kNone);
          };
          const auto ratio = [&](double value) {
            return value > 0 && f.Enough() ? Number(value, 2, "x") : std::string(kNone);
          };
          table.rows.push_back(
              {result.label,
               TaskTitle(task),
               sampling.name,
               SpecName(decode),
               t->compared > 0 ? fmt::format("{} of {}", t->equal, t->compared) : kNone,
               HtmlCell(Number(f.rate, 1),
                        fmt::format("{:.1f} to {:.1f}", f.rate_low, f.rate_high)),
               ratio(f.speedup),
               std::to_string(t->texts),
               std::to_string(t->tokens),
               f.Enough() ? Number(f.gamma) : kNone,
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
               t->answered > 0 ? fmt::format("{} of {}", t->correct, t->answered) : kNone});
        }
      }
    }
  }
  if (table.rows.empty()) return;
  page.BeginDetails("All figures of these runs");
  page.AddTable(table);
  page.AddNote(
      "equal: texts with the same tokens as autoregressive decoding, which greedy decoding must "
      "have. tokens/s: median of the repeats, with the smallest and the largest. speedup: over "
      "autoregressive decoding of the same texts. "
      "tokens/pass: tokens for every R recurrences, as they happened; gamma is the paper's "
      "formula, "
      "from accepted drafts alone. gate opens: – where there is no gate. early: tokens whose "
      "computation had begun on a guess; adopted: guesses that the draft confirmed. memory bound: "
      "the time that reading weights, keys and values alone takes, over the time of the steps; "
      "over "
      "100 % where caches are faster than memory. memory allows: the speedup if reading were all "
      "that takes time. right: answers judged right.");
  page.EndDetails();
}

void AddSpeed(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  for (const ExperimentSampling& sampling : results[0].experiment.samplings) {
    AddSpeedTable(results, sampling, page);
    page.BeginRow();
    for (const ExperimentResult& result : results) AddSpeedBars(result, sampling, page);
    page.EndRow();
  }
  page.AddNote(fmt::format(
      "Speedup: median tokens per second over that of autoregressive decoding of the same texts by "
      "the same engine, every token counted, from the read prompt to the last token. Cells of "
      "fewer "
      "than {} tokens are grey and have no ratio. Gamma: tokens for every full run of the model by "
      "the paper's formula, which counts accepted drafts alone, at most R / d1; below it the "
      "tokens "
      "per pass that were measured. Prompt lookup drafts without the model, and has no gamma. "
      "Proposal depths: the recurrences at which drafts are made. Schedule: the paper's "
      "is "
      "every live branch in every step; each of ours adds to the line before it: rows by cost, "
      "groups, early children. No schedule changes the text. Prompt lookup guesses from what "
      "followed the same words before; it stands where the paper has a trained drafter, and needs "
      "no "
      "training. The paper too counts from the read prompt on, where its pipeline is empty; "
      "whether it counts the token that the prompt gives is not stated.",
      kLeastTokens));
}

}  // namespace loopspec::experiments
