// Measures what a step costs on this machine with this model, so that the choice of rows can weigh
// a row against the time of a step. Takes well under a second; kept in the user's cache.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "decode/step_cost.h"

namespace loopspec {

inline constexpr double kStepCostSeconds = 0.6;

// Times a few steps. The backend must be idle; cells and pages that nobody holds are written to.
// `between` is called before every step that is timed, and may throw.
StepCost MeasureStepCost(Backend& backend, double seconds = kStepCostSeconds,
                         const std::function<void()>& between = {});

// Another row never costs more than the first, which pays for the weights: what says so was
// measured while something else ran.
void BoundByFirstRow(StepCost& cost);

// The cost from the user's cache if it is there, else measured and put there. What is to be kept is
// measured again, a few times at most, until two measurements agree; where none did, the next start
// measures once more. A cache that cannot be read or written is no error: the measurement is made
// again next time.
StepCost LoadStepCost(Backend& backend);

// How much longer the same steps took in one measurement than in another: 1 is not at all. On a
// machine with nothing else to do it stays below kSteadySpread.
double CostSpread(const StepCost& a, const StepCost& b);
inline constexpr double kSteadySpread = 1.1;

// The faster of the two, number by number: what else ran on the machine only ever added to them.
StepCost Fastest(const StepCost& a, const StepCost& b);

// Where kept costs come from.
struct StepCostOrigin {
  std::string date;  // 2026-11-18
  std::string device, chip;
  int threads = 0;           // of a CPU
  double spread = 1;         // of the two measurements that agreed best
  std::string shape;         // of the model: its layers and widths
  std::string kv_type = {};  // of its keys, as NameOfKvType says it; empty: of an earlier version

  bool steady() const { return spread <= kSteadySpread; }
};
// The measurements in the user's cache for models of this shape.
std::vector<StepCostOrigin> KeptStepCosts(const ModelSpec& spec);

// Puts a fresh measurement into the user's cache.
void SaveStepCost(const Backend& backend, const StepCost& cost, double spread = 1);
// Takes the measurement out of the cache again: the next start measures.
void ForgetStepCost(const Backend& backend);

// The file in which the costs of this backend are kept: $XDG_CACHE_HOME or ~/.cache, by device,
// chip, model shape, precision and version; nothing when there is no such folder.
std::optional<std::filesystem::path> StepCostFile(const Backend& backend);
std::string StepCostText(const StepCost& cost, const StepCostOrigin& origin = {});
// Nothing when the text is not what StepCostText writes.
std::optional<StepCost> ParseStepCost(const std::string& text);

// Follows what steps take while running: the measured costs are those of an idle machine. Only the
// proportions between row counts are followed. A machine that is slower for all of them changes no
// choice; were it written into the row counts that happen to be run, the others would look cheap or
// expensive for no reason, and these would never be tried again. A default StepCost (rows are
// free) stays as it is: choices then repeat exactly.
class StepCostTracker {
 public:
  explicit StepCostTracker(const StepCost& cost) : measured_(cost), cost_(cost) {}
  const StepCost& cost() const { return cost_; }
  // Steps have shown for a while other proportions between row counts than were measured.
  bool Disagrees() const;
  // One step of `rows` rows took `seconds` for each of its recurrences, at `context` positions and
  // `planes` distinct planes.
  void Observe(int rows, int planes, int64_t context, double seconds);

 private:
  StepCost measured_;
  StepCost cost_;
  int64_t observed_ = 0;  // steps
  double pace_ = 0;       // what steps take over what they should, on average; 0: none seen
};

}  // namespace loopspec
