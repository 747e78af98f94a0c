#include "engine/load/step_cost.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/timer.h"
#include "base/whole_file.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 6;  // of the file and of what is measured
constexpr int kMostTimes = 30;
constexpr double kSecondsEach = 0.008;
constexpr int kSweeps = 3;
constexpr double kSecondsForMore = 2;                   // of measuring, after which two must do
constexpr int kMostMeasurements = 4;                    // until two agree
constexpr auto kUnsteadyHolds = std::chrono::hours(1);  // before another try on a busy machine
constexpr int64_t kStepsToTell = 500;     // before they may speak against a measurement
constexpr double kOtherProportion = 1.5;  // what they then must differ by

// Steps of `rows` rows, each with a cell of its own, at position `context` of one sequence.
class Probe {
 public:
  Probe(Backend& backend, const std::function<void()>& between)
      : backend_(backend), spec_(backend.spec()), between_(between) {
    pages_.resize(static_cast<size_t>(backend.pages()));
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
  }

  // The last pages are the sequence's window.
  int64_t positions() const {
    return (backend_.pages() - backend_.window_pages()) * int64_t{kPageSize};
  }

  // The fastest of a few runs of one recurrence, or of several: all rows at `depth`, or spread over
  // the depths from it on.
  double Seconds(int rows, int depth, int64_t context, int readout = -1, int times = 4,
                 bool spread = false, int recurrences = 1) {
    StepPlan plan;
    plan.recurrences = recurrences;
    plan.sequences.push_back({pages_.data(), pages_.data() + positions() / kPageSize});
    SamplingParams greedy;
    for (int i = 0; i < rows; ++i) {
      const int at = depth + (spread ? i % (spec_.recurrence - depth) : 0);
      plan.rows.push_back({0, i, i % spec_.vocab, static_cast<int32_t>(context), at, 0, 0});
      if (readout < 0) continue;
      ReadoutPlan out{};
      out.row = i;
      out.readout = readout;
      out.purpose = ReadoutPurpose::kVerify;
      out.proposal = -1;
      out.sampling = &greedy;
      out.logprobs = -1;
      plan.readouts.push_back(out);
    }
    // Short steps are repeated more often: beside other processes only the fastest counts.
    double best = 1e9;
    Timer total;
    for (int i = 0; i < times || (i < kMostTimes && total.Seconds() < kSecondsEach); ++i) {
      if (between_) between_();
      Timer timer;
      backend_.Wait(backend_.Submit(plan));
      best = std::min(best, timer.Seconds());
    }
    return best;
  }

 private:
  Backend& backend_;
  const ModelSpec& spec_;
  const std::function<void()>& between_;  // called before every step that is timed
  std::vector<int32_t> pages_;
};

// The share of loops that have keys of their own far back, a residual for its part of int8's bits;
// the others' are read from the last loop's, which is in a cache mostly, since several rows or
// loops read it one after the other.
double OwnLoops(const ModelSpec& spec, const BackendOptions& options) {
  if (!options.key_plan) return 1.0;
  int bits = 0;
  for (int depth = 1; depth <= spec.recurrence; ++depth)
    bits += options.key_plan->plan.At(depth).bits;
  return static_cast<double>(bits) / (8 * spec.recurrence);
}

// Bytes of keys and values that one recurrence reads of one committed position, of a loop in the
// mean.
double PositionBytes(const Backend& backend) {
  const ModelSpec& spec = backend.spec();
  return 2.0 * spec.kv_heads * spec.core_layers * OwnLoops(spec, backend.options()) *
         static_cast<double>(KvHeadBytes(backend.options(), spec.head_dim));
}

void MeasureAttention(Backend& backend, Probe& probe, StepCost& cost) {
  if (!backend.rows_share_planes()) {
    // Each row reads for itself; memory that was never written cannot be timed.
    cost.row_position = PositionBytes(backend) / std::max(1.0, backend.ReadBandwidth());
    return;
  }
  const int64_t context = std::min<int64_t>(probe.positions() - 1, 4096);
  const int rows = std::min({backend.spec().recurrence - 1, 15, backend.options().cells});
  if (context < 512 || rows < 2) {
    cost.plane_position = PositionBytes(backend) / std::max(1.0, backend.ReadBandwidth());
    return;
  }
  // What the context adds to a step whose rows are all at different depths, and to one whose rows
  // share a depth: n planes and n rows, one plane and n rows.
  const auto added = [&](bool spread) {
    return std::max(0.0, probe.Seconds(rows, 1, context, -1, 4, spread) -
                             probe.Seconds(rows, 1, 0, -1, 4, spread)) /
           static_cast<double>(context);
  };
  const double apart = added(true), together = added(false);
  cost.plane_position = std::max(0.0, apart - together) / (rows - 1);
  cost.row_position = std::max(0.0, together - cost.plane_position) / rows;
}

}  // namespace

void BoundByFirstRow(StepCost& cost) {
  for (size_t i = 1; i < cost.recurrence.size(); ++i)
    cost.recurrence[i] = std::min(cost.recurrence[i], StepCost::kRows[i] * cost.recurrence[0]);
  cost.prelude_row = std::min(cost.prelude_row, cost.prelude);
  cost.readout_row = std::min(cost.readout_row, cost.readout);
}

StepCost MeasureStepCost(Backend& backend, double seconds, const std::function<void()>& between) {
  Probe probe(backend, between);
  StepCost cost;
  Timer timer;
  const int recurrence = backend.spec().recurrence;
  const int depth = std::min(1, recurrence - 1);  // past P, where there are two depths
  probe.Seconds(1, depth, 0, -1, 1);              // wakes everything up
  size_t measured = 0;
  // Several times all over, and the fastest of each: whatever else runs on the machine for a moment
  // must not hit one number of rows alone.
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    const size_t count = sweep == 0 ? StepCost::kRows.size() : measured;
    for (size_t i = 0; i < count; ++i) {
      const int rows = StepCost::kRows[i];
      const bool enough = i >= 5 && timer.Seconds() > seconds;
      if (rows > backend.options().cells || enough) break;
      const double taken = probe.Seconds(rows, depth, 0);
      cost.recurrence[i] = sweep == 0 ? taken : std::min(cost.recurrence[i], taken);
      measured = std::max(measured, i + 1);
    }
  }
  // More rows never take less: what says so is noise.
  for (size_t i = 1; i < measured; ++i)
    cost.recurrence[i] = std::max(cost.recurrence[i], cost.recurrence[i - 1]);
  // Beyond what was measured every row costs what the last ones did.
  for (size_t i = measured; i < StepCost::kRows.size(); ++i) {
    const double slope = measured < 2
                             ? 0.0
                             : (cost.recurrence[measured - 1] - cost.recurrence[measured - 2]) /
                                   (StepCost::kRows[measured - 1] - StepCost::kRows[measured - 2]);
    cost.recurrence[i] = cost.recurrence[measured - 1] +
                         slope * (StepCost::kRows[i] - StepCost::kRows[measured - 1]);
  }
  const int readouts = static_cast<int>(backend.options().readout_depths.size());
  const int more = std::min(16, backend.options().cells);
  const auto beyond = [&](double total, int rows) {
    return std::max(0.0, total - cost.Recurrence(rows));
  };
  const auto fastest = [&](int rows, int at, int readout) {
    double best = 1e9;
    for (int i = 0; i < kSweeps; ++i) best = std::min(best, probe.Seconds(rows, at, 0, readout));
    return best;
  };
  cost.readout = beyond(fastest(1, recurrence - 1, readouts - 1), 1);
  cost.prelude = beyond(fastest(1, 0, -1), 1);
  if (more > 1) {
    cost.readout_row =
        std::max(0.0, beyond(fastest(more, recurrence - 1, readouts - 1), more) - cost.readout) /
        (more - 1);
    cost.prelude_row =
        std::max(0.0, beyond(fastest(more, 0, -1), more) - cost.prelude) / (more - 1);
  }
  BoundByFirstRow(cost);
  MeasureAttention(backend, probe, cost);
  if (recurrence > 3) {
    // Several recurrences in one step: what one costs there, and what is left of a step of one.
    const double several = probe.Seconds(1, depth, 0, -1, 4, false, recurrence - 1);
    const double each = (several - cost.recurrence[0]) / (recurrence - 2);
    cost.step = std::clamp(cost.recurrence[0] - each, 0.0, 0.5 * cost.recurrence[0]);
    for (double& rows : cost.recurrence) rows -= cost.step;
  }
  return cost;
}

double CostSpread(const StepCost& a, const StepCost& b) {
  double spread = 1;
  for (size_t i = 0; i < a.recurrence.size() && StepCost::kRows[i] <= 16; ++i) {
    const double one = a.recurrence[i] + a.step, other = b.recurrence[i] + b.step;
    spread = std::max(spread, std::max(one, other) / std::min(one, other));
  }
  return spread;
}

StepCost Fastest(const StepCost& a, const StepCost& b) {
  StepCost out = a;
  for (size_t i = 0; i < out.recurrence.size(); ++i)
    out.recurrence[i] = std::min(a.recurrence[i] + a.step, b.recurrence[i] + b.step);
  out.step = std::min({a.step, b.step, 0.5 * out.recurrence[0]});
  for (double& rows : out.recurrence) rows -= out.step;
  for (const auto part : {&StepCost::plane_position, &StepCost::row_position, &StepCost::prelude,
                          &StepCost::prelude_row, &StepCost::readout, &StepCost::readout_row})
    out.*part = std::min(a.*part, b.*part);
  return out;
}

std::string StepCostText(const StepCost& cost, const StepCostOrigin& origin) {
  const OrderedJson json = {{"version", kVersion},
                            {"date", origin.date},
                            {"device", origin.device},
                            {"chip", origin.chip},
                            {"threads", origin.threads},
                            {"spread", origin.spread},
                            {"shape", origin.shape},
                            {"kv_type", origin.kv_type},
                            {"recurrence_seconds", cost.recurrence},
                            {"plane_position_seconds", cost.plane_position},
                            {"row_position_seconds", cost.row_position},
                            {"prelude_seconds", cost.prelude},
                            {"prelude_row_seconds", cost.prelude_row},
                            {"readout_seconds", cost.readout},
                            {"readout_row_seconds", cost.readout_row},
                            {"step_seconds", cost.step}};
  return json.dump(2) + "\n";
}

std::optional<StepCost> ParseStepCost(const std::string& text) {
  try {
    const Json json = ParseJson(text, "step costs");
    if (FindInt(json, "version", "step costs", 0, INT32_MAX) != kVersion) return std::nullopt;
    StepCost cost;
    const auto number = [&](const char* key) {
      const auto value = FindNumber(json, key, "step costs");
      if (!value || !(*value >= 0) || *value > 1e6) Fail("{}", key);
      return *value;
    };
    const Json& rows = json.at("recurrence_seconds");
    if (!rows.is_array() || rows.size() != cost.recurrence.size()) return std::nullopt;
    for (size_t i = 0; i < rows.size(); ++i) {
      cost.recurrence[i] = rows[i].get<double>();
      if (!(cost.recurrence[i] > 0) || cost.recurrence[i] > 1e6) return std::nullopt;
    }
    cost.plane_position = number("plane_position_seconds");
    cost.row_position = number("row_position_seconds");
    cost.prelude = number("prelude_seconds");
    cost.prelude_row = number("prelude_row_seconds");
    cost.readout = number("readout_seconds");
    cost.readout_row = number("readout_row_seconds");
    cost.step = number("step_seconds");
    return cost;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

namespace {

// A model as far as the cost of its steps goes.
std::string ShapeOf(const ModelSpec& s) {
  return fmt::format("{} h{} q{} kv{} ff{} v{} p{} b{} c{} r{}", s.weight_type, s.hidden,
                     s.q_size(), s.kv_size(), s.ff, s.vocab, s.prelude_layers, s.core_layers,
                     s.coda_layers, s.recurrence);
}

std::optional<StepCostOrigin> ParseOrigin(const std::string& text) {
  try {
    const Json json = ParseJson(text, "step costs");
    if (FindInt(json, "version", "step costs", 0, INT32_MAX) != kVersion) return std::nullopt;
    StepCostOrigin origin;
    origin.date = FindString(json, "date", "step costs").value_or("");
    origin.device = FindString(json, "device", "step costs").value_or("");
    origin.chip = FindString(json, "chip", "step costs").value_or("");
    origin.shape = FindString(json, "shape", "step costs").value_or("");
    origin.kv_type = FindString(json, "kv_type", "step costs").value_or("");
    origin.threads =
        static_cast<int>(FindInt(json, "threads", "step costs", 0, 1 << 20).value_or(0));
    origin.spread = FindNumber(json, "spread", "step costs").value_or(1);
    return origin;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string TodaysDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// Of bf16 and int8 keys the number that files of older versions have in their name.
std::string KeysText(const BackendOptions& options) {
  if (options.key_plan) return NameOfKvType(options);
  return fmt::format("{}", static_cast<int>(options.kv_type));
}

}  // namespace

std::optional<fs::path> StepCostFile(const Backend& backend) {
  const fs::path cache = UserFolder("XDG_CACHE_HOME", ".cache");
  if (cache.empty()) return std::nullopt;
  const std::string key =
      fmt::format("{} {} {} {} {} {} {}", kVersion, backend.device(), backend.chip(),
                  backend.options().threads, static_cast<int>(backend.options().compute),
                  KeysText(backend.options()), ShapeOf(backend.spec()));
  return cache / "loopspec" / fmt::format("step-cost-{:016x}.json", std::hash<std::string>{}(key));
}

std::vector<StepCostOrigin> KeptStepCosts(const ModelSpec& spec) {
  std::vector<StepCostOrigin> kept;
  const fs::path cache = UserFolder("XDG_CACHE_HOME", ".cache");
  std::error_code error;
  if (cache.empty() || !fs::is_directory(cache / "loopspec", error)) return kept;
  for (const auto& entry : fs::directory_iterator(cache / "loopspec", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-cost-") || !name.ends_with(".json")) continue;
    try {
      const auto origin = ParseOrigin(ReadFile(entry.path()));
      if (origin && origin->shape == ShapeOf(spec)) kept.push_back(*origin);
    } catch (const Error&) {
      // As if it were not there.
    }
  }
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.date > b.date; });
  return kept;
}

void ForgetStepCost(const Backend& backend) {
  std::error_code error;
  if (const auto file = StepCostFile(backend)) fs::remove(*file, error);
}

void SaveStepCost(const Backend& backend, const StepCost& cost, double spread) {
  const auto file = StepCostFile(backend);
  if (!file) return;
  std::error_code error;
  fs::create_directories(file->parent_path(), error);
  const bool cpu = backend.device() == "cpu";
  const StepCostOrigin origin = {TodaysDate(),
                                 backend.device(),
                                 backend.chip(),
                                 cpu ? backend.options().threads : 0,
                                 spread,
                                 ShapeOf(backend.spec()),
                                 NameOfKvType(backend.options())};
  try {
    // Several processes may do so at the same time.
    WriteWholeFile(*file, StepCostText(cost, origin),
                   fmt::format(".{}", static_cast<const void*>(&cost)));
  } catch (const Error&) {
    // It is measured again.
  }
}

namespace {

// A machine that is always busy is not asked again at every start.
bool MeasuredLately(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written < kUnsteadyHolds;
}

bool CanKeep(const fs::path& file) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  return access(file.parent_path().c_str(), W_OK) == 0;
}

}  // namespace

StepCost LoadStepCost(Backend& backend) {
  const auto file = StepCostFile(backend);
  std::error_code error;
  std::optional<StepCost> kept;
  if (file && fs::is_regular_file(*file, error)) {
    try {
      const std::string text = ReadFile(*file);
      kept = ParseStepCost(text);
      const auto origin = ParseOrigin(text);
      if (kept && origin && (origin->steady() || MeasuredLately(*file))) return *kept;
    } catch (const Error&) {
      // As if it were not there.
    }
  }
  // What cannot be kept need not be right: whoever comes next measures too.
  if (!file || !CanKeep(*file)) return kept ? *kept : MeasureStepCost(backend);
  // One more where there was no agreement before, else until two agree.
  const Timer timer;
  StepCost cost = kept ? *kept : MeasureStepCost(backend);
  double spread = 1;
  for (int i = 1; i < (kept ? 2 : kMostMeasurements); ++i) {
    const StepCost again = MeasureStepCost(backend);
    spread = CostSpread(cost, again);
    cost = Fastest(cost, again);
    if (spread <= kSteadySpread || timer.Seconds() > kSecondsForMore) break;
  }
  SaveStepCost(backend, cost, spread);
  return cost;
}

bool StepCostTracker::Disagrees() const {
  if (observed_ < kStepsToTell) return false;
  double least = 1, most = 1;  // of what is followed over what was measured
  for (size_t i = 0; i < StepCost::kRows.size(); ++i) {
    least = std::min(least, cost_.recurrence[i] / measured_.recurrence[i]);
    most = std::max(most, cost_.recurrence[i] / measured_.recurrence[i]);
  }
  return most > kOtherProportion * least;
}

void StepCostTracker::Observe(int rows, int planes, int64_t context, double seconds) {
  if (measured_.recurrence == StepCost{}.recurrence) return;
  const auto positions = static_cast<double>(context);
  const double expected = cost_
                              .Of({.rows = rows,
                                   .row_positions = rows * positions,
                                   .plane_positions = planes * positions})
                              .recur;
  if (!(seconds > 0) || !(expected > 0)) return;
  ++observed_;
  const double ratio = seconds / expected;
  if (pace_ == 0) pace_ = ratio;
  // One step says little: it may have been interrupted.
  const double relative = std::clamp(ratio / pace_, 0.5, 2.0);
  pace_ *= 1 + 0.1 * (relative - 1);
  size_t at = 0;
  while (StepCost::kRows[at] < rows && at + 1 < StepCost::kRows.size()) ++at;
  cost_.recurrence[at] = std::clamp(cost_.recurrence[at] * (1 + 0.03 * (relative - 1)),
                                    measured_.recurrence[at] / 2, measured_.recurrence[at] * 2);
  for (size_t i = 0; i < StepCost::kRows.size(); ++i) {
    // What is not seen again is forgotten: a change of pace is at first taken for one of
    // proportion.
    cost_.recurrence[i] += 0.002 * (measured_.recurrence[i] - cost_.recurrence[i]);
  }
  // Fewer rows never cost more.
  for (size_t i = 0; i < StepCost::kRows.size(); ++i) {
    cost_.recurrence[i] = i < at ? std::min(cost_.recurrence[i], cost_.recurrence[at])
                                 : std::max(cost_.recurrence[i], cost_.recurrence[at]);
  }
}

}  // namespace loopspec
