#include "experiments/experiment.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "experiments/experiment_run.h"
#include "experiments/experiment_tables.h"
#include "experiments/tasks/tasks.h"

namespace loopspec::experiments {
namespace {

const std::filesystem::path kSource = LOOPSPEC_SOURCE_DIR;

const PaperFigure* FindFigure(const Experiment& e, const std::string& model,
                              const std::string& task, const std::vector<int>& depths) {
  for (const PaperFigure& figure : e.paper) {
    if (figure.model == model && figure.task == task && figure.decode &&
        figure.decode->depths == depths) {
      return &figure;
    }
  }
  return nullptr;
}

TEST(Experiments, AllFilesAreValid) {
  const auto experiments = ReadExperiments(kSource / "experiments");
  for (const char* name : {"base-models", "reasoning-models", "second-proposal", "gate-opening",
                           "rows", "commit-sources", "distance", "optimal-depths"}) {
    ASSERT_TRUE(experiments.contains(name)) << name;
    EXPECT_FALSE(experiments.at(name).paper.empty()) << name;
    ASSERT_TRUE(experiments.contains(std::string("demo-") + name)) << name;
    EXPECT_TRUE(experiments.at(std::string("demo-") + name).paper.empty()) << name;
  }
  EXPECT_EQ(experiments.size(), 16u);
}

TEST(Experiments, HaveThePapersFigures) {
  const auto experiments = ReadExperiments(kSource / "experiments");
  const Experiment& base = experiments.at("base-models");
  EXPECT_EQ(base.paper.size(), 85u);
  const PaperFigure* figure = FindFigure(base, "Raven-Llama-3.2", "minerva_math500", {2, 8});
  ASSERT_NE(figure, nullptr);
  EXPECT_EQ(figure->values.at("speedup"), 5.82);
  EXPECT_EQ(figure->values.at("gamma"), 14.60);
  EXPECT_EQ(FindFigure(base, "Raven-TinyLlama-3T", "minerva_math500", {2, 8}), nullptr);
  EXPECT_EQ(experiments.at("reasoning-models").paper.size(), 32u);
  EXPECT_EQ(experiments.at("second-proposal").paper.size(), 12u);
}

// The declared budgets and stop strings are those that the tasks have by themselves.
TEST(Experiments, AgreeWithTheDemoTasks) {
  for (const auto& [name, experiment] : ReadExperiments(kSource / "experiments")) {
    if (!name.starts_with("demo-")) continue;
    for (const ExperimentTask& declared : experiment.tasks) {
      const Task task =
          MakeTask(declared.name, {.data = kSource / "models", .chat = declared.chat, .limit = 2});
      EXPECT_EQ(task.stop, declared.stop) << name;
      EXPECT_EQ(task.max_tokens, declared.max_tokens) << name;
      EXPECT_EQ(task.max_length, declared.max_length) << name;
    }
    for (const ExperimentModel& model : experiment.models) {
      EXPECT_TRUE(std::filesystem::exists(kSource / model.checkpoint / "config.json"));
    }
  }
}

std::vector<std::string> WayNames(const Experiment& experiment, int recurrence) {
  std::vector<std::string> names;
  for (const ExperimentDecode& decode : SpecsOf(experiment, recurrence))
    names.push_back(SpecName(decode));
  return names;
}

TEST(Experiments, RunWhatSuitsTheModel) {
  const auto experiments = ReadExperiments(kSource / "experiments");
  using Names = std::vector<std::string>;
  const Experiment& base = experiments.at("base-models");
  // The paper's schedule and ours stand beside each other, for one pair with the steps between.
  EXPECT_EQ(WayNames(base, 4),
            (Names{"ar", "lookup", "loopspec:1/paper", "loopspec:1", "loopspec:1,2/paper",
                   "loopspec:1,2/g1/noearly", "loopspec:1,2/noearly", "loopspec:1,2"}));
  EXPECT_EQ(WayNames(base, 32),
            (Names{"ar", "lookup", "loopspec:2/paper", "loopspec:2", "loopspec:4/paper",
                   "loopspec:4", "loopspec:4,8/paper", "loopspec:4,8", "loopspec:2,10/paper",
                   "loopspec:2,10", "loopspec:2,8/paper", "loopspec:2,8/g1/noearly",
                   "loopspec:2,8/noearly", "loopspec:2,8"}));
  // A model of another depth runs at the depths that suit it.
  EXPECT_EQ(WayNames(base, 16),
            (Names{"ar", "lookup", "loopspec:2/paper", "loopspec:2", "loopspec:2,4/paper",
                   "loopspec:2,4/g1/noearly", "loopspec:2,4/noearly", "loopspec:2,4"}));
  EXPECT_EQ(WayNames(experiments.at("second-proposal"), 32),
            (Names{"ar", "lookup", "loopspec:2,8/non-residual/paper", "loopspec:2,8/non-residual",
                   "loopspec:2,8/residual/paper", "loopspec:2,8/residual", "loopspec:2,8/paper",
                   "loopspec:2,8/g1/noearly", "loopspec:2,8/noearly", "loopspec:2,8"}));
  // Rows and gates are counted under the paper's schedule.
  for (const char* name : {"rows", "gate-opening"}) {
    for (const ExperimentDecode& decode : SpecsOf(experiments.at(name), 32))
      EXPECT_EQ(decode.schedule == DecodeSchedule::kPaper, !decode.depths.empty()) << name;
  }
}

// Two schedules of the same depths are two runs: neither is taken for the other.
TEST(Experiments, WaysOfDifferentSchedulesHaveDifferentNames) {
  for (const auto& [name, experiment] : ReadExperiments(kSource / "experiments")) {
    for (const int recurrence : {4, 32}) {
      const std::vector<std::string> names = WayNames(experiment, recurrence);
      EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size()) << name;
    }
  }
}

// The paper's figures are of its own algorithm.
TEST(Experiments, ThePapersFiguresStandBesideThePapersSchedule) {
  const Experiment base = ReadExperiments(kSource / "experiments").at("base-models");
  ExperimentDecode decode{.depths = {2, 8}, .schedule = DecodeSchedule::kPaper};
  const auto value = [&] {
    return PaperValue(base, "Raven-Llama-3.2", "minerva_math500", "greedy", &decode, "speedup");
  };
  EXPECT_EQ(value(), 5.82);
  decode.schedule = DecodeSchedule::kChosen;
  EXPECT_EQ(value(), std::nullopt);
}

Json Valid() {
  return Json::parse(R"({
    "name": "x", "title": "t", "source": "s", "meaning": "m", "kind": "speedup",
    "models": [{"name": "a", "checkpoint": "c", "recurrence": 4}],
    "tasks": [{"task": "gsm8k_cot", "max_tokens": 10, "max_length": 100}],
    "samplings": [{"name": "greedy"}],
    "decodes": [{"depths": []}, {"depths": [1, 2]}],
    "paper": [{"model": "a", "task": "gsm8k_cot", "decode": {"depths": [1, 2]}, "values": {"gamma": 3}}]})");
}

// What a change of one place makes of a valid file.
std::string ErrorAfter(const std::string& pointer, const Json& value) {
  Json json = Valid();
  json[Json::json_pointer(pointer)] = value;
  try {
    ParseExperiment(json, "file");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Experiments, RefuseWhatIsWrong) {
  EXPECT_NO_THROW(ParseExperiment(Valid(), "file"));
  const auto expect = [](const std::string& pointer, const Json& value, const std::string& part) {
    const std::string error = ErrorAfter(pointer, value);
    EXPECT_NE(error.find(part), std::string::npos) << pointer << ": " << error;
  };
  expect("/extra", 1, "unknown key \"extra\"");
  expect("/kind", "speed", "expected one of speedup");
  expect("/models/0/recurrence", 0, "recurrence");
  expect("/models", Json::array(), "no models");
  expect("/tasks/0/task", "gsm9k", "unknown");
  expect("/tasks/0/max_length", 11, "leaves no room");
  expect("/tasks/0/thinking", true, "needs \"chat\"");
  expect("/tasks/0/models", {"b"}, "not declared");
  expect("/decodes/1/depths", {1, 4}, "depths is 1,4");
  expect("/decodes/1/later", "open", "expected one of gated");
  expect("/decodes/1/schedule", "mine", "expected one of paper");
  expect("/decodes/1/lookup", true, "has no depths");
  expect("/samplings/0/top_p", 0, "top_p 0");
  expect("/paper/0/model", "b", "no model of it");
  expect("/paper/0/task", "aime24", "not declared");
  expect("/paper/0/decode/depths", {1, 3}, "at depths 1,3");
  expect("/paper/0/values/gamma", "three", "must be a number");
  Json json = Valid();
  json.erase("meaning");
  EXPECT_THROW(ParseExperiment(json, "file"), Error);
}

}  // namespace
}  // namespace loopspec::experiments
