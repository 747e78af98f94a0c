// The page of experiments: whose figures they are, how sure they are, and what is not said.
#include "experiments/experiment_report.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "experiments/experiment_run.h"
#include "loopspec/engine.h"

namespace loopspec::experiments {
namespace {

namespace fs = std::filesystem;

// Records of a tiny experiment, written by hand.
class ExperimentPages : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(LOOPSPEC_BINARY_DIR) / "report_test_data" /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  OrderedJson Settings() const {
    return {{"experiment", OrderedJson::parse(R"({
               "name": "tiny", "title": "Tiny", "source": "s", "meaning": "m", "kind": "speedup",
               "models": [{"name": "Raven-Llama-3.2", "checkpoint": "c", "recurrence": 32}],
               "tasks": [{"task": "stories", "max_tokens": 10, "max_length": 100}],
               "samplings": [{"name": "greedy"}],
               "decodes": [{"depths": []}, {"depths": [2, 8], "schedule": "paper"},
                           {"depths": [2, 8]}]})")},
            {"model", "Raven-Llama-3.2"},
            {"checkpoint", "raven-demo"},
            {"as", "Raven-Llama-3.2"},
            {"parameters", 8000000},
            {"dtype", "BF16"},
            {"weights_sha256", std::string(64, 'b')},
            {"clock", kPromptClock},
            {"recurrence", 32},
            {"device", "cpu"},
            {"chip", "Some Chip"},
            {"compute", "bf16"},
            {"threads", 2},
            {"version", "1.2 (commit abc)"},
            {"date", "2026-11-16"},
            {"command", "loopspec experiment run tiny"},
            {"kv_bytes_per_token", 1000},
            {"prompt_notes", {"Prompts are in our own wording."}},
            {"bandwidth", 0}};
  }

  // `seconds` of decoding, the first token after a tenth of a second.
  static RunRecord Record(const std::string& spec, int item, int repeat, int tokens,
                          double seconds) {
    RunRecord record;
    record.group = "stories/greedy";
    record.way = spec;
    record.item = std::to_string(item);
    record.repeat = repeat;
    record.prompt_tokens = 20;
    record.tokens.assign(static_cast<size_t>(tokens), 1);
    record.finish = "length";
    record.statistics.decode_seconds = seconds;
    record.statistics.prefill_seconds = 1;
    record.statistics.first_token_seconds = 1.1;
    record.statistics.accepted = spec == "ar" ? std::vector<int64_t>{} : std::vector<int64_t>{9, 1};
    record.statistics.recurrences = 10;
    record.statistics.rows_histogram = {0, 10};
    record.statistics.rows_peak = 1;
    return record;
  }

  std::string Page(const OrderedJson& settings, const std::vector<RunRecord>& records) const {
    std::ofstream file(folder_ / "tiny.jsonl");
    file << OrderedJson{{"loopspec_records", settings}}.dump() << "\n";
    for (const RunRecord& record : records) file << ToJson(record).dump() << "\n";
    file << OrderedJson{{kPeakMemory, 5000000}}.dump() << "\n";
    file.close();
    return ReportExperiments(folder_);
  }

  // Every decoding spec over some texts, three times each.
  static std::vector<RunRecord> Runs(int texts, int tokens) {
    std::vector<RunRecord> records;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (int item = 0; item < texts; ++item) {
        records.push_back(Record("ar", item, repeat, tokens, 2));
        records.push_back(Record("loopspec:2,8/paper", item, repeat, tokens, 1));
        records.push_back(Record("loopspec:2,8", item, repeat, tokens, 0.8));
      }
    }
    return records;
  }

  fs::path folder_;
};

// A demo model that stands for another is named by its own name, first and in every table.
TEST_F(ExperimentPages, NameTheCheckpointAndNotWhatItStandsFor) {
  const std::string page = Page(Settings(), Runs(4, 100));
  EXPECT_EQ(page.find("Measured: Raven-Llama-3.2"), std::string::npos);
  for (const char* part :
       {"<td>raven-demo</td><td class=\"n\">8.0 M</td><td>BF16</td><td>bbbbbbbbbbbb</td>"
        "<td>the paper&#39;s Raven-Llama-3.2</td><td>Some Chip, 2 threads</td><td>bf16</td>"
        "<td class=\"n\">1234</td><td>2026-11-16</td><td>1.2 (commit abc)</td>",
        "raven-demo as Raven-Llama-3.2", "Run by: loopspec experiment run tiny",
        "Prompts are in our own wording."})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

// Records of earlier versions do not say how keys were kept.
TEST_F(ExperimentPages, SayHowKeysWereKept) {
  OrderedJson settings = Settings();
  settings["kv_type"] = "bf16";
  EXPECT_NE(Page(settings, Runs(4, 100)).find("<td>bf16</td>"), std::string::npos);
  settings["kv_type"] = "loops:int8*8,last@64";
  EXPECT_NE(Page(settings, Runs(4, 100)).find(">bf16, keys loops:int8*8,last@64</td>"),
            std::string::npos);
}

TEST_F(ExperimentPages, HaveThePapersScheduleAndOursAsRowsOfTheirOwn) {
  const std::string page = Page(Settings(), Runs(4, 100));
  for (const char* schedule : {"the paper&#39;s", "+ early children"})
    EXPECT_NE(page.find(std::string("<td>2, 8<small>raven-demo as Raven-Llama-3.2; ") + schedule +
                        "</small></td><td>here</td>"),
              std::string::npos)
        << schedule;
  EXPECT_NE(page.find(" per pass</small>"), std::string::npos) << "measured, beside gamma";
}

// Algorithm 1 as printed keeps every branch, and begins them beyond the end of the text.
TEST_F(ExperimentPages, SayWhereThePapersScheduleIsNotThePrintedOne) {
  const std::string dropped = "branches were alive at once, as many as there is room for";
  std::vector<RunRecord> runs = Runs(4, 100);
  const std::string page = Page(Settings(), runs);
  EXPECT_NE(page.find("begins no branch beyond the last token that is asked for"),
            std::string::npos);
  EXPECT_EQ(page.find(dropped), std::string::npos);
  for (RunRecord& record : runs) {
    if (record.way == "loopspec:2,8/paper") record.statistics.rows_peak = EngineOptions().cells;
  }
  const std::string crowded = Page(Settings(), runs);
  EXPECT_NE(crowded.find(dropped), std::string::npos);
  EXPECT_NE(crowded.find("raven-demo as Raven-Llama-3.2, 2, 8 (stories/greedy)"),
            std::string::npos);
  // Our own schedule has rows by cost: what it leaves out is no difference from the paper's.
  for (RunRecord& record : runs) {
    record.statistics.rows_peak = record.way == "loopspec:2,8" ? EngineOptions().cells : 1;
  }
  EXPECT_EQ(Page(Settings(), runs).find(dropped), std::string::npos);
}

TEST_F(ExperimentPages, SayHowSureASpeedupIs) {
  const std::string page = Page(Settings(), Runs(8, 100));
  EXPECT_NE(page.find("<td class=\"n\">2.00x<small>2.00 to 2.00; 8 texts, 800 tokens, 3 "
                      "times</small></td>"),
            std::string::npos);
  EXPECT_NE(page.find("<td class=\"n best\">2.50x<small>"), std::string::npos);
  // KV and memory: the longest text has 120 positions.
  EXPECT_NE(page.find("<td class=\"n\">1.0 kB</td><td class=\"n\">120 tokens</td>"),
            std::string::npos);
  EXPECT_NE(page.find("5.0 MB"), std::string::npos);
}

TEST_F(ExperimentPages, CompareASchedulesRowWithTheRowAbove) {
  EXPECT_NE(Page(Settings(), Runs(8, 100))
                .find("2.50x<small>2.50 to 2.50; 8 texts, 800 tokens, 3 times; 1.25x the row above "
                      "(1.25 to 1.25)</small>"),
            std::string::npos);
  std::vector<RunRecord> runs = Runs(8, 100);
  for (RunRecord& record : runs) {
    if (record.way == "loopspec:2,8")
      record.statistics.decode_seconds = record.item < "4" ? 0.8 : 1.25;
  }
  EXPECT_NE(Page(Settings(), runs).find(": cannot be told apart)"), std::string::npos);
}

TEST_F(ExperimentPages, GiveFewTextsARangeInsteadOfAnInterval) {
  const std::string page = Page(Settings(), Runs(4, 100));
  EXPECT_NE(page.find("2.00x<small>2.00 to 2.00 (range of 4 texts); 4 texts, 400 tokens, 3 times"),
            std::string::npos);
  EXPECT_EQ(page.find("the row above ("), std::string::npos);
}

TEST_F(ExperimentPages, GiveNoRatioForFewTokens) {
  const std::string page = Page(Settings(), Runs(2, 50));
  // One line, and neither a table nor a chart of nothing.
  EXPECT_NE(page.find("too few tokens for a speedup; 200 or more of each task are needed"),
            std::string::npos);
  EXPECT_EQ(page.find("<figcaption>How many times as many tokens"), std::string::npos);
  EXPECT_EQ(page.find("2.00x"), std::string::npos);
}

// Records of the clock that started at the first token are converted: what came before is known.
TEST_F(ExperimentPages, ConvertEarlierClocks) {
  OrderedJson settings = Settings();
  settings.erase("clock");
  std::vector<RunRecord> records = Runs(4, 100);
  for (RunRecord& record : records) record.statistics.decode_seconds -= 0.1;
  const std::string page = Page(settings, records);
  EXPECT_NE(page.find(">2.00x<small>"), std::string::npos);
  EXPECT_NE(page.find("whose clock started at the first token"), std::string::npos);
}

}  // namespace
}  // namespace loopspec::experiments
