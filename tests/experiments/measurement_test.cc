// Interleaved runs and their records.
#include "experiments/measurement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "calibrate/byte_tokenizer.h"
#include "calibrate/distance.h"
#include "decode/depths.h"
#include "engine/laboratory.h"
#include "engine/session.h"
#include "experiments/record_log.h"
#include "sampling/filters.h"
#include "tests/support/temporary_folder.h"

namespace loopspec::experiments {
namespace {

const std::filesystem::path kProject = LOOPSPEC_SOURCE_DIR;

// A name for a file that goes away with the object.
struct TemporaryFile {
  TemporaryFolder folder;
  std::filesystem::path path = folder / "records";
};

std::string MessageOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

RunRecord SampleRun() {
  RunRecord record;
  record.group = "stories/greedy";
  record.way = "loopspec:1,2";
  record.item = "stories/0";
  record.repeat = 2;
  record.prompt_tokens = 7;
  record.tokens = {5, 6, 7};
  record.finish = "stop";
  record.statistics.decode_seconds = 0.125;
  record.statistics.host_seconds = 0.5;
  record.statistics.accepted = {2, 1};
  record.statistics.rows_histogram = {0, 3, 0, 4};
  record.statistics.rows_peak = 3;
  record.statistics.recurrences = 7;
  record.statistics.guesses = 9;
  record.statistics.bytes_read = 1e9;
  record.equal = true;
  record.correct = false;
  record.text = "a \"text\"\n";
  return record;
}

TEST(RunRecords, SurviveTheirLineOfJson) {
  const RunRecord record = SampleRun();
  const std::string line = ToJson(record).dump();
  EXPECT_EQ(ToJson(ParseRunRecord(Json::parse(line), "x")).dump(), line);
  Json broken = Json::parse(line);
  broken["statistics"]["rows"] = {{1e9, 2}};
  EXPECT_NE(MessageOf([&] { ParseRunRecord(broken, "x"); }).find("rows"), std::string::npos);
  broken = Json::parse(line);
  broken.erase("tokens");
  EXPECT_NE(MessageOf([&] { ParseRunRecord(broken, "x"); }).find("tokens"), std::string::npos);
}

TEST(RecordLogs, AreTakenUpAgainAndDropATornLine) {
  const TemporaryFile file;
  const OrderedJson settings = {{"model", "a"}, {"bandwidth", 1}};
  {
    RecordLog log(file.path, settings);
    log.Append({{"n", 1}});
    log.Append({{"n", 2}});
    // One at a time.
    EXPECT_NE(MessageOf([&] { RecordLog(file.path, settings); }).find("another run"),
              std::string::npos);
  }
  std::ofstream(file.path, std::ios::app) << "{\"n\": 3";
  {
    RecordLog log(file.path, {{"model", "a"}, {"bandwidth", 2}}, {"bandwidth"});
    ASSERT_EQ(log.found().size(), 2u);
    EXPECT_EQ(log.found()[1]["n"], 2);
    log.Append({{"n", 4}});
  }
  const RecordFile read = ReadRecords(file.path);
  ASSERT_EQ(read.records.size(), 3u);
  EXPECT_EQ(read.records[2]["n"], 4);
  EXPECT_NE(MessageOf([&] {
              RecordLog(file.path, {{"model", "b"}});
            }).find("model was \"a\", now \"b\""),
            std::string::npos);
}

TEST(RecordLogs, RefuseOtherFiles) {
  const TemporaryFile file;
  std::ofstream(file.path) << "{\"prompt\": \"x\"}\n";
  EXPECT_NE(MessageOf([&] {
              RecordLog(file.path, {{"model", "a"}});
            }).find("holds no records"),
            std::string::npos);
  std::ofstream(file.path) << "no json\n";
  EXPECT_NE(MessageOf([&] { ReadRecords(file.path); }).find("line 1"), std::string::npos);
}

TEST(Prompts, AreCutOnTheLeftAsTheAuthorsCutThem) {
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  CutPrompt(10, 5, tokens);  // 10 - 1 - 5
  EXPECT_EQ(tokens, (std::vector<int32_t>{3, 4, 5, 6}));
  CutPrompt(10, 5, tokens);
  EXPECT_EQ(tokens.size(), 4u);
}

TEST(ByteTokenizer, HasEveryByte) {
  const Tokenizer tokenizer = Tokenizer::FromJson(ByteTokenizerJson(), "bytes");
  std::string all;
  for (int byte = 1; byte < 128; ++byte) all += static_cast<char>(byte);
  all += "caf\xc3\xa9 \xf0\x9f\x98\x80";
  const std::vector<int32_t> ids = tokenizer.Encode(all, false);
  ASSERT_EQ(ids.size(), all.size());
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(ids[i], static_cast<int32_t>(static_cast<unsigned char>(all[i])));
  EXPECT_EQ(tokenizer.Decode(ids, false), all);
}

// The demo model on two short prompts.
class DemoMeasurement : public testing::Test {
 protected:
  DemoMeasurement()
      : loaded_(std::make_shared<const LoadedModel>(
            EngineOptions{.model = (kProject / "models/ouro-demo").string()})),
        engine_([&] {
          BackendOptions options;
          options.readout_depths = {1, 2, 4};
          options.kv_positions = 256;
          options.threads = 1;
          return MakeLaboratoryEngine(loaded_, MakeCpuBackend(loaded_->model(), options), {},
                                      {{1}, {1, 2}});
        }()) {
    m_.group = "g";
    for (const std::vector<int>& depths : {std::vector<int>{}, {1}, {1, 2}}) {
      Request request;
      request.sampling = SamplingParams{};
      request.max_tokens = 12;
      request.ignore_eos = true;
      request.group = 1;
      SetDecoding(depths, false, request);
      m_.specs.push_back({fmt::format("way{}", depths.size()), request, &engine_, "greedy"});
    }
    for (const char* text : {"Once upon a time", "The little bear could"})
      m_.jobs.push_back({text, loaded_->tokenizer().Encode(text, false), 0, {}});
  }

  std::shared_ptr<const LoadedModel> loaded_;
  Engine engine_;
  Measurement m_;
};

TEST_F(DemoMeasurement, ComparesWithTheFirstWay) {
  Records records;
  EXPECT_TRUE(RunMeasurement(m_, {}, records));
  ASSERT_EQ(records.all().size(), 6u);
  for (const RunRecord& record : records.all()) {
    EXPECT_EQ(record.equal.has_value(), record.way != "way0");
    EXPECT_TRUE(record.equal.value_or(true)) << record.way;
    EXPECT_EQ(record.tokens.size(), 12u);
    EXPECT_GT(record.statistics.bytes_read, 0);
    EXPECT_FALSE(record.text.empty());
  }
  // The second prompt begins its ways with another one; the first to be compared with stays first.
  EXPECT_EQ(records.all()[3].way, "way0");
  EXPECT_EQ(records.all()[4].way, "way2");
}

TEST_F(DemoMeasurement, SaysWhenTextsDiffer) {
  m_.specs[2].request.sampling->bias = {{0, 100.0f}};
  Records records;
  RunMeasurement(m_, {}, records);
  for (const RunRecord& record : records.all()) {
    if (record.way == "way2") {
      EXPECT_EQ(record.equal, false);
    }
    if (record.way == "way1") {
      EXPECT_EQ(record.equal, true);
    }
  }
}

TEST_F(DemoMeasurement, GoesOnWhereItWasInterrupted) {
  Records records;
  MeasureHooks hooks;
  int64_t seen = 0;
  hooks.progress = [&](int64_t done, int64_t) { seen = done; };
  hooks.interrupted = [&] { return seen >= 2; };
  EXPECT_FALSE(RunMeasurement(m_, hooks, records));
  ASSERT_EQ(records.all().size(), 2u);

  std::vector<std::string> written;
  Records second([&](const RunRecord& record) { written.push_back(record.Key()); });
  for (const RunRecord& record : records.all()) second.Restore(record);
  EXPECT_EQ(CountDone(m_, second), 2);
  EXPECT_TRUE(RunMeasurement(m_, {}, second));
  EXPECT_EQ(written.size(), 4u);
  EXPECT_EQ(second.all().size(), 6u);
  for (const std::string& key : written) EXPECT_EQ(records.Find(key), nullptr);
  for (const RunRecord& record : second.all()) EXPECT_TRUE(record.equal.value_or(true));
}

TEST_F(DemoMeasurement, StopsAtStringsAndChecksMarkedAnswers) {
  m_.stop = {" a"};
  m_.jobs[0].answer = "a number that the text does not end with";
  Records records;
  RunMeasurement(m_, {}, records);
  bool stopped = false;
  for (const RunRecord& record : records.all()) {
    stopped = stopped || record.finish == "stop";
    EXPECT_EQ(record.correct.has_value(), record.item == m_.jobs[0].item);
    EXPECT_FALSE(record.correct.value_or(false)) << record.text;
    EXPECT_EQ(record.text.find(" a"), std::string::npos);
    EXPECT_TRUE(record.equal.value_or(true));
  }
  EXPECT_TRUE(stopped);
}

// Against a plain computation in double precision from the logits.
TEST_F(DemoMeasurement, DistancesAreThoseOfTheLogits) {
  const std::vector<int32_t> tokens =
      loaded_->tokenizer().Encode("Tom and his sister went to the river", false);
  SamplingParams sampling;
  sampling.temperature = 0.8f;
  const DistanceSums sums =
      MeasureDistance(engine_.session().backend(), tokens, 2, sampling, [] { return false; });
  EXPECT_EQ(sums.depths, (std::vector<int>{1, 2}));
  EXPECT_EQ(sums.positions, static_cast<int64_t>(tokens.size()) - 2);

  std::map<std::pair<int, int>, std::vector<double>> p;
  std::vector<int32_t> pages = {0, 1, 2, 3};
  engine_.session().backend().Score(
      {{pages.data()}, 0, tokens},
      [&](int32_t position, int32_t readout, std::span<const float> logits) {
        std::vector<double>& out = p[{position, readout}];
        double sum = 0;
        const double top = *std::max_element(logits.begin(), logits.end());
        for (const float logit : logits) {
          out.push_back(std::exp((static_cast<double>(logit) - top) / 0.8));
          sum += out.back();
        }
        for (double& value : out) value /= sum;
      });
  for (int readout = 0; readout < 2; ++readout) {
    double distance = 0, agreed = 0;
    for (int position = 2; position < static_cast<int>(tokens.size()); ++position) {
      const auto &a = p.at({position, readout}), &b = p.at({position, 2});
      for (size_t i = 0; i < a.size(); ++i) distance += 0.5 * std::abs(a[i] - b[i]);
      agreed += std::max_element(a.begin(), a.end()) - a.begin() ==
                        std::max_element(b.begin(), b.end()) - b.begin()
                    ? 1
                    : 0;
    }
    EXPECT_NEAR(sums.distance[static_cast<size_t>(readout)], distance, 1e-4);
    EXPECT_EQ(sums.agreed[static_cast<size_t>(readout)], agreed);
  }
}

}  // namespace
}  // namespace loopspec::experiments
