#include "experiments/experiment_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "decode/depths.h"
#include "experiments/experiment_run.h"
#include "report/plot.h"

namespace loopspec::experiments {
namespace {

constexpr const char* kNone = "–";
constexpr int kRowsOfBin = 10;  // as in the paper's histograms

// Tasks that any model ran, in the order in which they are declared.
std::vector<std::string> TasksOf(const std::vector<ExperimentResult>& results) {
  std::vector<std::string> names;
  for (const ExperimentTask& task : results[0].experiment.tasks) names.push_back(task.name);
  return names;
}

std::string Counted(const SpecFigures& f) {
  return fmt::format("{} text{}, {} tokens{}", f.texts, f.texts == 1 ? "" : "s", f.tokens,
                     f.repeats > 1 ? fmt::format(", {} times", f.repeats) : "");
}

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

// ---- Speed

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

// Everything else that the records say about speed.
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

// Keys, values and memory.
void AddMemory(const std::vector<ExperimentResult>& results, HtmlPage& page) {
  HtmlTable table;
  table.caption = "Memory";
  table.columns = {{"model", false},       {"precision", false},
                   {"KV per token"},       {"longest text"},
                   {"KV of it"},           {"peak rows"},
                   {"KV of as many rows"}, {"peak memory of the process"}};
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
        {result.label, result.compute, size(kv), fmt::format("{} tokens", longest),
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
  if (experiment.paper.empty() && results[0].paper) AddPaperFigures(*results[0].paper, page);
  page.AddParagraph(fmt::format("Experiment {}: {}.", experiment.name, experiment.source));
}

}  // namespace loopspec::experiments
