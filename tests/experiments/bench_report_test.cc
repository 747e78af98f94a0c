// Figures of a bench run, and the forms in which they are shown.
#include "experiments/bench_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/json.h"

namespace loopspec::experiments {
namespace {

constexpr int kTokens = 205;

RunRecord Record(int repeat, double seconds, int64_t steps, std::vector<int64_t> accepted) {
  RunRecord record;
  record.repeat = repeat;
  record.tokens.assign(kTokens, 1);
  record.statistics.decode_seconds = seconds;
  record.statistics.prefill_seconds = 0.3;
  record.statistics.first_token_seconds = 0.4;
  record.statistics.recur_seconds = seconds;
  record.statistics.recurrences = steps;
  record.statistics.row_recurrences = 2 * steps;
  record.statistics.rows_peak = 3;
  record.statistics.rows_histogram = {0, 0, steps};
  int64_t drafted = 0;
  for (const int64_t count : accepted) drafted += count;
  record.statistics.accepted = std::move(accepted);
  record.statistics.fallback = kTokens - drafted;
  record.statistics.bytes_read = static_cast<double>(steps) * 1e6;
  return record;
}

BenchResult Sample() {
  BenchResult result;
  result.model = "m<1>";
  result.device = "cpu";
  result.what = "1 prompt of p.txt";
  result.recurrence = 4;
  result.bandwidth = 1e9;
  result.prompts = 1;
  result.repeats = 3;
  BenchSpec ar{"ar", {}, "greedy", "gated", true, {}};
  BenchSpec spec{"loopspec:1,2", {1, 2}, "greedy", "gated", true, {}};
  for (int repeat = 0; repeat < 3; ++repeat) {
    ar.totals.Add(Record(repeat, 0.4 + 0.1 * repeat, 820, {}));
    RunRecord record = Record(repeat, 0.2, 300, {150, 30});
    record.equal = true;
    record.correct = true;
    record.statistics.gate_evaluated = 40;
    record.statistics.gate_opened = 10;
    record.statistics.guesses = 8;
    record.statistics.guesses_adopted = 2;
    record.statistics.early = 2;
    spec.totals.Add(record);
  }
  result.specs = {ar, spec};
  return result;
}

TEST(BenchFigures, AreWhatTheRecordsSay) {
  const BenchResult result = Sample();
  const SpecFigures ar = result.Figures(result.specs[0]);
  EXPECT_DOUBLE_EQ(ar.rate, kTokens / 0.5);  // the median repeat, every token counted
  EXPECT_DOUBLE_EQ(ar.rate_low, kTokens / 0.6);
  EXPECT_DOUBLE_EQ(ar.rate_high, kTokens / 0.4);
  EXPECT_DOUBLE_EQ(ar.tokens_per_pass, 1);
  const SpecFigures f = result.Figures(result.specs[1]);
  EXPECT_DOUBLE_EQ(f.speedup, 2.5);
  EXPECT_DOUBLE_EQ(f.tokens_per_pass, kTokens * 4 / 300.0);
  EXPECT_DOUBLE_EQ(f.gamma, kTokens * 4 / (150.0 * 1 + 30 * 2 + 25 * 4));  // the paper's formula
  EXPECT_DOUBLE_EQ(f.accepted[0], 150.0 / kTokens);
  EXPECT_DOUBLE_EQ(f.fallback, 25.0 / kTokens);
  EXPECT_DOUBLE_EQ(*f.gate, 0.25);
  EXPECT_DOUBLE_EQ(*f.adopted, 0.25);
  EXPECT_DOUBLE_EQ(f.early, 2.0 / kTokens);
  EXPECT_DOUBLE_EQ(*f.floor_share, 300e6 / 1e9 / 0.2);
  EXPECT_DOUBLE_EQ(f.memory_allows, 820.0 / 300);
  EXPECT_DOUBLE_EQ(f.acceptance_share, f.gamma / 4);
  EXPECT_EQ(f.texts, 1);
  EXPECT_EQ(f.tokens, kTokens);
  EXPECT_EQ(f.repeats, 3);
  EXPECT_FALSE(f.spread.has_value());  // one text has no spread
}

// The paper's schedule drops nothing; where we do, the table says so.
TEST(BenchFigures, DroppedBranchesAreTold) {
  BenchResult result = Sample();
  EXPECT_EQ(BenchTable(result).find("branches were alive at once"), std::string::npos);
  result.specs[1].totals.statistics.rows_peak = 256;
  EXPECT_NE(BenchTable(result).find("256 branches were alive at once, as many as there are cells: "
                                    "the least likely were dropped"),
            std::string::npos);
}

// What a row of the paper's schedule leaves out is told beside that row alone.
TEST(BenchFigures, ThePapersScheduleIsNotQuiteThePrintedOne) {
  const std::string note = "begins no branch beyond the end of a text";
  BenchResult result = Sample();
  EXPECT_EQ(BenchTable(result).find(note), std::string::npos);
  result.specs[1].name += "/paper";
  const std::string table = BenchTable(result);
  ASSERT_NE(table.find(note), std::string::npos);
  EXPECT_EQ(table.find(note), table.rfind(note));
}

// A first reader can tell what the sentence says.
TEST(BenchFigures, TheVerdictNamesItsBaseline) {
  const BenchResult result = Sample();
  EXPECT_EQ(
      result.Figures(result.specs[1]).Verdict("ar"),
      "2.50x as fast as ar; if reading memory were all that takes time it would be 2.73x; most "
      "of the rest is lost to drafts that are not accepted");
}

// A range around 1 explains nothing: neither caches nor drafts.
TEST(BenchFigures, NoiseIsToldAsNoise) {
  SpecFigures f;
  f.tokens = 1000;
  f.speedup = 1.71;
  f.memory_allows = 1.5;
  f.spread = SpeedSpread{0.69, 2.99, 4};
  EXPECT_EQ(f.Verdict("ar"),
            "1.71x as fast as ar, from 0.69x to 2.99x: not significant; more texts, or a machine "
            "with nothing else to do, would tell more");
  f.spread = SpeedSpread{1.6, 1.8, 4};
  EXPECT_NE(f.Verdict("ar").find("which caches beat"), std::string::npos);
}

TEST(BenchFigures, FewTokensHaveNoRatio) {
  BenchResult result = Sample();
  for (BenchSpec& spec : result.specs) {
    spec.totals = {};
    RunRecord record = Record(0, 0.2, 60, {});
    record.tokens.resize(kLeastTokens - 1);
    spec.totals.Add(record);
  }
  const std::string table = BenchTable(result), page = BenchHtml(result);
  EXPECT_NE(table.find("too few for a speedup"), std::string::npos) << table;
  EXPECT_EQ(table.find("1.00x"), std::string::npos) << table;
  // One line says so, and there is no column of nothing.
  EXPECT_NE(page.find("Too few tokens for a speedup: every spec needs 200"), std::string::npos);
  EXPECT_EQ(page.find(">speedup</th>"), std::string::npos);
  EXPECT_TRUE(BenchJson(result)["results"][1]["speedup"].is_null());
}

TEST(BenchFigures, WithoutAGateThereIsNoGateRate) {
  BenchResult result = Sample();
  EXPECT_TRUE(result.Figures(result.specs[1]).gate.has_value());
  result.specs[1].second_proposal = "residual";
  EXPECT_FALSE(result.Figures(result.specs[1]).gate.has_value());
  EXPECT_TRUE(BenchJson(result)["results"][1]["gate_rate"].is_null());
}

TEST(BenchFigures, ThePageSaysWhatWasMeasured) {
  BenchResult result = Sample();
  result.chip = "Some Chip";
  result.compute = "bf16";
  result.parameters = 13'800'000;
  result.dtype = "BF16";
  result.weights = std::string(64, 'a');
  result.threads = 2;
  result.seed = 7;
  result.date = "2026-11-16";
  result.version = "1.2 (commit abc)";
  result.command = "loopspec bench -m x";
  const std::string page = BenchHtml(result);
  for (const char* part :
       {"13.8 M parameters, BF16, weights sha256 aaaaaaaaaaaa.", "On Some Chip (cpu, 2 threads)",
        "bf16 activations, seed 7. 2026-11-16, loopspec 1.2 (commit abc).",
        "Run by: loopspec bench -m x"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  result.kv_type = "loops:int8*8,last@64";
  EXPECT_NE(BenchHtml(result).find("bf16 activations, keys loops:int8*8,last@64, seed 7."),
            std::string::npos);
  EXPECT_NE(BenchTable(result).find("bf16, keys loops:int8*8,last@64"), std::string::npos);
  EXPECT_EQ(BenchJson(result)["kv_type"], "loops:int8*8,last@64");
  // The speedup is the first number, and equality stands beside it: both are seen on a phone.
  EXPECT_NE(page.find(">decoding</th><th scope=\"col\" class=\"n\">speedup</th>"),
            std::string::npos);
  EXPECT_LT(page.find(">equal</th>"), page.find(">tokens/s</th>"));
}

TEST(BenchFigures, CsvHasOneLineForEachWay) {
  std::istringstream lines(BenchCsv(Sample()));
  std::string names, ar, spec, more;
  ASSERT_TRUE(std::getline(lines, names) && std::getline(lines, ar) && std::getline(lines, spec));
  EXPECT_FALSE(std::getline(lines, more));
  const auto commas = [](const std::string& line) {
    bool quoted = false;
    int count = 0;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      if (c == ',' && !quoted) ++count;
    }
    return count;
  };
  EXPECT_EQ(commas(names), commas(ar));
  EXPECT_EQ(commas(names), commas(spec));
  EXPECT_TRUE(spec.starts_with("\"loopspec:1,2\",greedy,gated,1 2,1025,")) << spec;
  EXPECT_NE(names.find("tokens_per_pass"), std::string::npos);
}

TEST(BenchFigures, JsonHasBothGammasAndEverythingElse) {
  const OrderedJson json = BenchJson(Sample());
  ASSERT_EQ(json["results"].size(), 2u);
  const OrderedJson& spec = json["results"][1];
  for (const char* key : {"decode",
                          "depths",
                          "sampler",
                          "second_proposal",
                          "tokens_per_second",
                          "speedup",
                          "gamma",
                          "tokens_per_pass",
                          "floor_share",
                          "memory_allows",
                          "acceptance_share",
                          "schedule_share",
                          "accepted",
                          "fallback",
                          "gate_rate",
                          "adoption_rate",
                          "early",
                          "rows_mean",
                          "rows_peak",
                          "rows_histogram",
                          "time_shares",
                          "equal",
                          "accuracy"})
    EXPECT_TRUE(spec.contains(key)) << key;
  EXPECT_FALSE(json.contains("interrupted"));
}

TEST(BenchFigures, ThePageNeedsNothingFromOutside) {
  std::string page = BenchHtml(Sample());
  // The name of SVG's vocabulary looks like an address; nobody goes there.
  const std::string name = "http://www.w3.org/2000/svg";
  for (size_t at = page.find(name); at != std::string::npos; at = page.find(name))
    page.erase(at, name.size());
  for (const char* part : {"http:", "https:", "src=", "href=", "@import", "url("})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  EXPECT_NE(page.find("m&lt;1&gt;"), std::string::npos);
  for (const char* part : {"<svg", "tokens/pass", "memory allows", "loopspec:1,2", "<small>gamma "})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST(BenchFigures, UnequalTextsAreShown) {
  BenchResult result = Sample();
  RunRecord wrong = Record(0, 0.2, 300, {150, 30});
  wrong.equal = false;
  result.specs[1].totals.Add(wrong);
  EXPECT_NE(BenchTable(result).find("NO\n"), std::string::npos);
  EXPECT_EQ(BenchJson(result)["results"][1]["equal"], false);
}

}  // namespace
}  // namespace loopspec::experiments
