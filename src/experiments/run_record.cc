#include "experiments/run_record.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace loopspec::experiments {
namespace {

// Counts that are written as they are, by name.
struct Counter {
  const char* name;
  int64_t Statistics::*value;
};
constexpr Counter kCounters[] = {{"fallback", &Statistics::fallback},
                                 {"gate_evaluated", &Statistics::gate_evaluated},
                                 {"gate_opened", &Statistics::gate_opened},
                                 {"guesses", &Statistics::guesses},
                                 {"adopted", &Statistics::guesses_adopted},
                                 {"early", &Statistics::early},
                                 {"steps", &Statistics::recurrences},
                                 {"row_steps", &Statistics::row_recurrences},
                                 {"readouts", &Statistics::readouts},
                                 {"preludes", &Statistics::preludes},
                                 {"readout_steps", &Statistics::readout_steps},
                                 {"prelude_steps", &Statistics::prelude_steps},
                                 {"planes", &Statistics::planes},
                                 {"kv_positions", &Statistics::kv_positions},
                                 {"prelude_positions", &Statistics::prelude_positions},
                                 {"readout_positions", &Statistics::readout_positions}};

struct Clock {
  const char* name;
  double Statistics::*value;
};
constexpr Clock kClocks[] = {
    {"prefill", &Statistics::prefill_seconds}, {"first_token", &Statistics::first_token_seconds},
    {"decode", &Statistics::decode_seconds},   {"prelude", &Statistics::prelude_seconds},
    {"recur", &Statistics::recur_seconds},     {"readout", &Statistics::readout_seconds},
    {"host", &Statistics::host_seconds}};

constexpr int64_t kMost = int64_t{1} << 60;
constexpr int kMostRows = 1 << 16;

OrderedJson StatisticsJson(const Statistics& s) {
  OrderedJson out = {{"accepted", s.accepted}, {"rows_peak", s.rows_peak}};
  for (const Counter& counter : kCounters) out[counter.name] = s.*counter.value;
  OrderedJson rows = OrderedJson::array();  // [rows, steps] pairs
  for (size_t i = 0; i < s.rows_histogram.size(); ++i) {
    if (s.rows_histogram[i] > 0) rows.push_back({i, s.rows_histogram[i]});
  }
  out["rows"] = rows;
  return out;
}

// Reads an object whose keys must be there.
class RecordReader {
 public:
  RecordReader(const Json& json, std::string what) : json_(json), what_(std::move(what)) {
    if (!json.is_object()) Fail("{}: expected an object", what_);
  }
  const Json& Get(const char* key) const {
    if (!json_.contains(key)) Fail("{}: no \"{}\"", what_, key);
    return json_[key];
  }
  int64_t Count(const char* key, int64_t most = kMost) const {
    Get(key);
    return FindInt(json_, key, what_, 0, most).value_or(0);
  }
  double Number(const char* key) const {
    Get(key);
    return FindNumber(json_, key, what_).value_or(0);
  }
  std::string String(const char* key) const {
    Get(key);
    return FindString(json_, key, what_).value_or("");
  }
  template <typename Value>
  std::vector<Value> Integers(const char* key) const {
    std::vector<Value> values;
    if (!Get(key).is_array()) Fail("{}: \"{}\" must be a list", what_, key);
    for (const Json& value : json_[key]) {
      if (!value.is_number_integer()) Fail("{}: \"{}\" must hold whole numbers", what_, key);
      values.push_back(value.get<Value>());
    }
    return values;
  }

 private:
  const Json& json_;
  std::string what_;
};

Statistics ParseStatistics(const Json& json, const std::string& what) {
  const RecordReader reader(json, what + ", statistics");
  Statistics s;
  s.accepted = reader.Integers<int64_t>("accepted");
  s.rows_peak = static_cast<int>(reader.Count("rows_peak", kMostRows));
  for (const Counter& counter : kCounters) {
    // Records of earlier versions do not count positions of P and C.
    const bool later = counter.value == &Statistics::prelude_positions ||
                       counter.value == &Statistics::readout_positions;
    if (!later || json.contains(counter.name)) s.*counter.value = reader.Count(counter.name);
  }
  if (!reader.Get("rows").is_array()) Fail("{}: \"rows\" must be a list", what);
  for (const Json& pair : reader.Get("rows")) {
    const bool good = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                      pair[1].is_number_unsigned() && pair[0].get<uint64_t>() <= kMostRows;
    if (!good) Fail("{}: \"rows\" must hold pairs of rows and steps", what);
    const auto rows = pair[0].get<size_t>();
    if (s.rows_histogram.size() <= rows) s.rows_histogram.resize(rows + 1);
    s.rows_histogram[rows] = pair[1].get<int64_t>();
  }
  return s;
}

}  // namespace

std::string RunRecord::Key() const {
  return fmt::format("{}\n{}\n{}\n{}", group, way, item, repeat);
}

OrderedJson ToJson(const RunRecord& record) {
  OrderedJson out = {{"group", record.group},
                     {"way", record.way},
                     {"item", record.item},
                     {"repeat", record.repeat},
                     {"prompt_tokens", record.prompt_tokens},
                     {"finish", record.finish},
                     {"bytes_read", record.statistics.bytes_read}};
  if (record.equal) out["equal"] = *record.equal;
  if (record.correct) out["correct"] = *record.correct;
  OrderedJson times;
  for (const Clock& clock : kClocks) times[clock.name] = record.statistics.*clock.value;
  out["seconds"] = times;
  out["statistics"] = StatisticsJson(record.statistics);
  out["text"] = record.text;
  out["tokens"] = record.tokens;
  return out;
}

RunRecord ParseRunRecord(const Json& json, const std::string& what) {
  const RecordReader reader(json, what);
  RunRecord record;
  record.group = reader.String("group");
  record.way = reader.String("way");
  record.item = reader.String("item");
  record.repeat = static_cast<int>(reader.Count("repeat", 1 << 20));
  record.prompt_tokens = reader.Count("prompt_tokens");
  record.finish = reader.String("finish");
  record.equal = FindBool(json, "equal", what);
  record.correct = FindBool(json, "correct", what);
  const RecordReader seconds(reader.Get("seconds"), what + ", seconds");
  record.statistics = ParseStatistics(reader.Get("statistics"), what);
  for (const Clock& clock : kClocks) record.statistics.*clock.value = seconds.Number(clock.name);
  record.statistics.bytes_read = reader.Number("bytes_read");
  record.text = reader.String("text");
  record.tokens = reader.Integers<int32_t>("tokens");
  return record;
}

void AddCounts(Statistics& sum, const Statistics& add) {
  const auto add_each = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
    to.resize(std::max(to.size(), from.size()));
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  add_each(sum.accepted, add.accepted);
  add_each(sum.rows_histogram, add.rows_histogram);
  for (const Counter& counter : kCounters) sum.*counter.value += add.*counter.value;
  sum.rows_peak = std::max(sum.rows_peak, add.rows_peak);
  if (sum.recurrences > 0)
    sum.rows_mean = static_cast<double>(sum.row_recurrences) / static_cast<double>(sum.recurrences);
}

void AddSeconds(Statistics& sum, const Statistics& add) {
  for (const Clock& clock : kClocks) sum.*clock.value += add.*clock.value;
  sum.bytes_read += add.bytes_read;
}

}  // namespace loopspec::experiments
