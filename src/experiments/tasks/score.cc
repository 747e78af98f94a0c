// Answers of a task judged.
#include <algorithm>
#include <cmath>

#include "experiments/scoring/lm_eval.h"
#include "experiments/scoring/math_answer.h"
#include "experiments/scoring/programs.h"
#include "experiments/scoring/sandbox.h"
#include "experiments/scoring/strings.h"
#include "experiments/tasks/tasks.h"

namespace loopspec::measure {
namespace {

TaskScore ScoreGsm8k(const TaskItem& item, std::string_view answer) {
  TaskScore score;
  const std::string strict = Gsm8kStrictMatch(answer);
  score.extracted = Gsm8kFlexibleExtract(answer);
  score.metrics["exact_match,strict-match"] = Gsm8kExactMatch(strict, item.reference);
  score.metrics["exact_match,flexible-extract"] = Gsm8kExactMatch(score.extracted, item.reference);
  score.metrics["math_verify"] = MathEquivalent(item.reference, score.extracted);
  score.correct = score.metrics["exact_match,flexible-extract"];  // as the paper's authors score it
  return score;
}

// aime24 and aime25 look at the last box, else at what stands between the first and the last dollar
// sign, else at the whole answer.
std::string AimeAnswer(std::string_view answer) {
  if (const auto boxed = LastBoxed(answer)) return *boxed;
  const size_t first = answer.find('$'), last = answer.rfind('$');
  if (first != last) return std::string(answer.substr(first + 1, last - first - 1));
  return std::string(answer);
}

TaskScore ScoreAime(const TaskItem& item, std::string_view answer) {
  TaskScore score;
  score.extracted = ExtractMathAnswer(answer).value_or("");
  score.metrics["exact_match"] =
      MinervaNormalize(Strip(AimeAnswer(answer))) == MinervaNormalize(Strip(item.reference));
  score.metrics["math_verify"] = MathEquivalent(item.reference, score.extracted);
  score.correct = score.metrics["math_verify"];
  return score;
}

TaskScore ScoreMath(const TaskItem& item, std::string_view answer) {
  TaskScore score;
  score.extracted = ExtractMathAnswer(answer).value_or("");
  score.metrics["exact_match"] = MinervaEquivalent(
      MinervaNormalize(MinervaUnnormalizedAnswer(answer)), MinervaNormalize(item.reference));
  score.metrics["math_verify"] = MathEquivalent(item.reference, score.extracted);
  score.correct = score.metrics["math_verify"];
  return score;
}

TaskScore ScoreBbh(const TaskItem& item, std::string_view answer) {
  TaskScore score;
  score.extracted = BbhGetAnswer(answer);
  score.correct = score.extracted == item.reference;
  score.metrics["exact_match,get-answer"] = score.correct;
  return score;
}

TaskScore ScoreMarked(const TaskItem& item, std::string_view answer) {
  TaskScore score;
  const size_t mark = answer.rfind("#### ");
  if (mark != std::string_view::npos) {
    const std::string_view rest = answer.substr(mark + 5);
    score.extracted = Strip(rest.substr(0, rest.find('\n')));
  }
  score.correct = score.extracted == item.reference;
  score.metrics["exact_match"] = score.correct;
  return score;
}

constexpr double kWallPerCpu = 20;  // a busy machine must not change a result

// A program that runs out of time gets as much as four times what the reference solution takes, as
// evalplus grants it: some tests take long by themselves.
ProgramResult RunWithFairLimit(const TaskItem& item, const std::string& program,
                               Isolation isolation) {
  const ProgramResult result = RunProgram(program, item.program.tests, {}, isolation);
  if (result.outcome != ProgramOutcome::kTimeout) return result;
  const SandboxLimits patient{.cpu_seconds = 60, .wall_seconds = 60 * kWallPerCpu};
  const ProgramResult reference =
      RunProgram(item.program.prefix + item.reference, item.program.tests, patient, isolation);
  const SandboxLimits usual;
  SandboxLimits fair;
  fair.cpu_seconds =
      std::max(usual.cpu_seconds, static_cast<int>(std::ceil(4 * reference.cpu_seconds)));
  // By the clock as well: the machine may be busy, and the tests may take long.
  fair.wall_seconds = std::max(fair.cpu_seconds * kWallPerCpu, 4 * reference.wall_seconds);
  const bool slow = fair.cpu_seconds > usual.cpu_seconds || fair.wall_seconds > usual.wall_seconds;
  if (reference.outcome != ProgramOutcome::kPassed || !slow) return result;
  return RunProgram(program, item.program.tests, fair, isolation);
}

TaskScore ScoreProgram(const TaskItem& item, Isolation isolation, std::string_view answer) {
  TaskScore score;
  // A task whose prompt is the beginning of a function gets the continuation as it is.
  score.extracted =
      item.program.prefix.empty() ? ExtractCode(answer) : item.program.prefix + std::string(answer);
  const ProgramResult result = RunWithFairLimit(item, score.extracted, isolation);
  score.correct = result.outcome == ProgramOutcome::kPassed;
  score.metrics["pass@1"] = score.correct;
  if (result.outcome == ProgramOutcome::kTimeout) score.reason = "timeout: ";
  score.reason += result.reason;
  return score;
}

}  // namespace

TaskScore ScoreAnswer(const Task& task, const TaskItem& item, std::string_view answer) {
  constexpr std::string_view kThoughtEnd = "</think>";
  if (const size_t end = answer.rfind(kThoughtEnd); task.chat && end != std::string_view::npos) {
    answer.remove_prefix(end + kThoughtEnd.size());
  }
  switch (task.scoring) {
    case Scoring::kNone:
      return {};
    case Scoring::kGsm8k:
      return ScoreGsm8k(item, answer);
    case Scoring::kMath:
      return ScoreMath(item, answer);
    case Scoring::kAime:
      return ScoreAime(item, answer);
    case Scoring::kBbh:
      return ScoreBbh(item, answer);
    case Scoring::kMarked:
      return ScoreMarked(item, answer);
    case Scoring::kProgram:
      return ScoreProgram(item, task.isolation, answer);
  }
  return {};
}

}  // namespace loopspec::measure
