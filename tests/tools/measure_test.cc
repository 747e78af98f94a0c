// bench and experiment from outside: runs that are broken off and taken up again, what they write,
// what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

std::vector<std::string> With(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

size_t Lines(const std::string& file) {
  const std::string text = Slurp(file);
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Expects a page that asks nothing of the network. The name of SVG's vocabulary looks like an
// address; nobody goes there.
void ExpectSelfContained(std::string page) {
  const std::string name = "http://www.w3.org/2000/svg";
  for (size_t at = page.find(name); at != std::string::npos; at = page.find(name))
    page.erase(at, name.size());
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

const std::vector<std::string> kBench = {
    "bench", "--model",   OuroDemo(), "--task",   "stories", "--limit",  "2",           "-n",
    "8",     "--threads", "1",        "--decode", "ar",      "--decode", "loopspec:1,2"};

// One small experiment on the demo model: two ways over two tasks.
std::string Experiment(const Scratch& scratch) {
  return scratch.Write("tiny.json", R"({
    "name": "tiny", "title": "A tiny one", "source": "nowhere", "meaning": "It means little.",
    "kind": "depths", "seed": 1,
    "models": [{"name": "ouro-demo", "checkpoint": "models/ouro-demo", "recurrence": 4}],
    "tasks": [{"task": "heldout_problems", "chat": true, "max_tokens": 12, "max_length": 200},
              {"task": "stories", "max_tokens": 12, "max_length": 100}],
    "samplings": [{"name": "greedy", "temperature": 0},
                  {"name": "sampling", "temperature": 1, "top_p": 0.7}],
    "decodes": [{"depths": []}, {"depths": [1, 2]}],
    "paper": [{"model": "ouro-demo", "values": {"d1": 1.25, "d2": 2.5}}]})");
}

std::vector<std::string> ExperimentRun(const Scratch& scratch, const std::string& limit) {
  // bf16: machines without instructions for it choose float32, and the records' name says so.
  return {"experiment", "run",           Experiment(scratch),
          "--model",    OuroDemo(),      "--threads",
          "1",          "--limit",       limit,
          "--output",   scratch / "out", "--repeat",
          "2",          "--compute",     "bf16"};
}

TEST(BenchRecords, AreTakenUpAgain) {
  const Scratch scratch;
  const std::string records = scratch / "r.jsonl";
  const auto arguments = With(kBench, {"--records", records, "--json", "--repeat"});
  ASSERT_EQ(Call(With(arguments, {"1"})).code, 0);
  EXPECT_EQ(Lines(records), 5u);  // settings, two ways of two prompts
  const std::string before = Slurp(records);
  const Json json = Call(With(arguments, {"2"})).json();
  EXPECT_EQ(Lines(records), 9u);
  EXPECT_TRUE(Slurp(records).starts_with(before));  // nothing was run again
  EXPECT_EQ(json.at("results")[1].at("texts"), 2);
  EXPECT_EQ(json.at("results")[1].at("repeats"), 2);
  EXPECT_EQ(json.at("results")[1].at("equal"), true);
  // Other settings do not mix.
  ExpectRefusal(With(arguments, {"2", "--seed", "7"}), {"seed was 0, now 7", "r.jsonl"});
  ExpectRefusal(With(kBench, {"--records", scratch.Write("x.jsonl", "{}\n")}),
                {"x.jsonl", "no records"});
}

TEST(BenchRecords, AnInterruptKeepsWhatIsDone) {
  const Scratch scratch;
  const std::string records = scratch / "r.jsonl";
  RunOptions interrupt;
  interrupt.error_terminal = true;
  interrupt.environment = {{"TERM", "xterm"}};
  interrupt.interrupt_after_error = true;
  const auto arguments = With(kBench, {"--records", records, "--repeat"});
  const RunResult stopped = Call(With(arguments, {"1000"}), interrupt);
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_NE(stopped.out.find("INTERRUPTED"), std::string::npos) << stopped.out;
  const size_t done = Lines(records);
  EXPECT_GT(done, 1u);
  EXPECT_LT(done, 4001u);
  const std::string before = Slurp(records);
  ASSERT_EQ(Call(With(arguments, {"1"})).code, 0);
  EXPECT_TRUE(Slurp(records).starts_with(before));
}

TEST(BenchConcurrency, SaysWhereAnswersAreTooShort) {
  const RunResult run = Call({"bench", "--model", OuroDemo(), "--prompt-tokens", "200", "-n", "2",
                              "--repeat", "1", "--concurrency", "8", "--decode", "ar"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("-n is too small"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("nan"), std::string::npos) << run.out;
}

// A figure without the number of its texts and its spread says nothing.
TEST(BenchConcurrency, SaysHowManyTextsAndHowFarApart) {
  const std::vector<std::string> bench = {
      "bench", "--model",  OuroDemo(),    "--threads",     "1", "--prompt-tokens", "8", "-n",
      "16",    "--repeat", "2",           "--concurrency", "2", "--limit",         "4", "--decode",
      "ar",    "--decode", "loopspec:1,2"};
  const Json json = Call(With(bench, {"--json"})).json();
  const Json& baseline = json.at("results")[0];
  const Json& ours = json.at("results")[1];
  for (const Json& line : {baseline, ours}) {
    EXPECT_EQ(line.at("repeats"), 2) << line;
    EXPECT_EQ(line.at("texts"), 8) << line;  // four prompts, twice
    EXPECT_GT(line.at("tokens"), 0) << line;
    EXPECT_LE(line.at("tokens"), 8 * 16) << line;
    EXPECT_GT(line.at("tokens_per_second").at("min"), 0.0) << line;
    EXPECT_GT(line.at("speedup_range").at("min"), 0.0) << line;
    EXPECT_LE(line.at("speedup_range").at("min"), line.at("speedup_range").at("max")) << line;
  }
  EXPECT_EQ(baseline.at("speedup"), 1.0);
  EXPECT_EQ(baseline.at("speedup_range"), (Json{{"min", 1.0}, {"max", 1.0}}));
  const RunResult table = Call(bench);
  EXPECT_NE(table.out.find("medians of 2 repeats"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("1.00x  (1.00-1.00)      8"), std::string::npos) << table.out;
}

// Texts depend on how keys are kept, so figures say it: the plan that ran, with its span.
TEST(PlansOfKeys, AreNamedInEveryReport) {
  const Scratch scratch;
  const std::string plan = "loops:int8,r5,r4@64", named = "bf16, keys " + plan;
  const std::vector<std::string> keys = {"--kv-type", "loops", "--compute", "bf16",
                                         "--device",  "cpu",   "--threads", "1"};
  const auto with_keys = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    return arguments;
  };
  const std::string page = scratch / "bench.html";
  const std::vector<std::string> bench =
      with_keys({"bench", "--model", OuroDemo(), "--prompt-tokens", "8", "-n", "4", "--repeat", "1",
                 "--limit", "1", "--decode", "ar"});
  EXPECT_EQ(Call(With(bench, {"--json"})).json().at("kv_type"), plan);
  const RunResult table = Call(With(bench, {"--html", page}));
  EXPECT_NE(table.out.find(named), std::string::npos) << table.out;
  EXPECT_NE(Slurp(page).find("keys " + plan), std::string::npos);
  const std::vector<std::string> many = With(bench, {"--concurrency", "1"});
  EXPECT_EQ(Call(With(many, {"--json"})).json().at("kv_type"), plan);
  EXPECT_NE(Call(many).out.find(named), std::string::npos);

  ASSERT_EQ(Call(with_keys({"experiment", "run", Experiment(scratch), "--model", OuroDemo(),
                            "--limit", "1", "--output", scratch / "out", "--repeat", "1"}))
                .code,
            0);
  // Beside the records of other keys.
  EXPECT_GT(Lines(scratch / "out/tiny--ouro-demo--keys-loops-int8-r5-r4-64.jsonl"), 1u);
  EXPECT_NE(Call({"experiment", "report", scratch / "out", "-o", "-"}).out.find(named),
            std::string::npos);

  const std::string trace = scratch / "trace.json";
  const Json stats = Call(with_keys({"generate", "--model", OuroDemo(), "-p", "Once", "-n", "4",
                                     "--json", "--trace", trace}))
                         .json()
                         .at("stats");
  EXPECT_EQ(stats.at("kv_type"), plan);
  EXPECT_EQ(Json::parse(Slurp(trace)).at("kv_type"), plan);
}

TEST(BenchTask, WritesEveryForm) {
  const Scratch scratch;
  const RunResult run = Call({"bench",
                              "--model",
                              OuroDemo(),
                              "--task",
                              "heldout_problems",
                              "--chat",
                              "--limit",
                              "1",
                              "--repeat",
                              "1",
                              "--threads",
                              "1",
                              "--temperature",
                              "1",
                              "--top-p",
                              "0.7",
                              "--decode",
                              "ar",
                              "--decode",
                              "loopspec:1,2",
                              "--decode",
                              "loopspec:1,2/residual",
                              "--decode",
                              "ar/coupled",
                              "--decode",
                              "loopspec:1,2/coupled",
                              "--stop",
                              "####",
                              "--json",
                              "--csv",
                              scratch / "b.csv",
                              "--html",
                              scratch / "b.html"});
  const Json json = run.json();
  ASSERT_EQ(json.at("results").size(), 5u);
  EXPECT_FALSE(json.at("results")[1].contains("equal"));  // the cascade draws its own texts
  EXPECT_EQ(json.at("results")[2].at("second_proposal"), "residual");
  EXPECT_TRUE(json.at("results")[2].at("gate_rate").is_null());  // it has no gate
  EXPECT_EQ(json.at("results")[4].at("sampler"), "coupled");
  EXPECT_EQ(json.at("results")[4].at("equal"), true);
  for (const Json& spec : json.at("results")) {
    EXPECT_GT(spec.at("tokens_per_pass").get<double>(), 0);
    EXPECT_EQ(spec.at("accuracy"), 0);  // the answer stands behind the stop string
  }
  EXPECT_EQ(Lines(scratch / "b.csv"), 6u);
  const std::string page = Slurp(scratch / "b.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  ExpectSelfContained(page);
}

TEST(BenchTask, RefusesInOneSentence) {
  const Scratch scratch;
  const std::string model = OuroDemo();
  const std::vector<std::string> task = {"bench", "--model", model, "--decode", "ar", "--task"};
  ExpectRefusal(With(task, {"gsm9k"}), {"gsm9k", "gsm8k_cot"});
  ExpectRefusal(With(task, {"gsm8k_cot"}), {"gsm8k_cot", "--benchmarks"});
  ExpectRefusal(With(task, {"gsm8k_cot", "--benchmarks", scratch / "none"}), {"none"});
  ExpectRefusal(With(task, {"stories", "--prompts", "x"}), {"--prompts", "--task"});
  ExpectRefusal(With(task, {"stories", "--max-length", "50", "-n", "60"}), {"--max-length 50"});
  ExpectRefusal(With(task, {"stories", "--decode", "ar"}), {"ar", "twice"});
  ExpectRefusal(With(task, {"stories", "--decode", "loopspec:1/residual"}), {"later proposals"});
  ExpectRefusal(With(task, {"stories", "--decode", "loopspec:1,2@4/paper"}),
                {"every live branch in every step"});
  ExpectRefusal(With(task, {"stories", "--decode", "ar/paper"}), {"ar runs one row"});
  ExpectRefusal(With(task, {"stories", "--assume-acceptance", "0.9,0.075/0.01"}), {"gate"});
  ExpectRefusal(With(task, {"stories", "--html", scratch / "no/x.html"}), {"--html", "folder"});
  ExpectRefusal(With(task, {"stories", "--tokenizer", scratch.path().string()}),
                {"tokenizer.json"});
  ExpectRefusal({"bench", "--model", model, "--decode", "ar", "--prompts", "x", "--shots", "1"},
                {"--shots", "--task"});
}

// Assumed rates: the gate opens as often as asked, and the paper's rates are the default. Which
// model it is makes no difference to them.
TEST(BenchSimulation, TakesAGateRate) {
  const auto gate = [](const std::string& rates) {
    const Json json = Call({"bench", "--model", Golden("ouro-tiny-f32"), "--prompt-tokens", "8",
                            "--limit", "1", "-n", "600", "--repeat", "1", "--threads", "1",
                            "--decode", "loopspec:1,2", "--assume-acceptance", rates, "--json"})
                          .json();
    EXPECT_TRUE(json.contains("timing_simulation"));
    return json.at("results")[0].at("gate_rate").get<double>();
  };
  EXPECT_NEAR(gate("0.9,0.075/0.3"), 0.3, 0.08);
  EXPECT_NEAR(gate("0.9,0.075/0.075"), 0.075, 0.04);
  // Not the same to the last draft: which branches run is a matter of what steps take.
  EXPECT_NEAR(gate("paper"), 0.10, 0.04);
}

TEST(BenchTwins, HaveATokenizerOfBytes) {
  const Scratch scratch;
  const std::string twin = scratch / "twin";
  ASSERT_EQ(Call({"synth", "--like", "ouro-1.4b", "--layers", "1", "--width", "128", "--vocab",
                  "512", "--no-measure", "-o", twin})
                .code,
            0);
  const Json json =
      Call({"bench", "--model", twin, "--task", "stories", "--limit", "1", "-n", "8", "--repeat",
            "1", "--decode", "ar", "--decode", "loopspec:1,2", "--threads", "1", "--json"})
          .json();
  EXPECT_EQ(json.at("results")[1].at("equal"), true);
}

TEST(Experiments, RunGoOnAndReport) {
  const Scratch scratch;
  const RunResult first = Call(ExperimentRun(scratch, "1"));
  ASSERT_EQ(first.code, 0) << first.err;
  // Every text of both tasks twice, autoregressive ones too.
  EXPECT_NE(first.out.find("6 of 6 greedy texts equal"), std::string::npos) << first.out;
  const std::string file = scratch / "out/tiny--ouro-demo.jsonl";
  const std::string before = Slurp(file);
  // Two tasks, two samplings, two decoding specs, twice each, the distances of each text, and the
  // memory that it took.
  EXPECT_EQ(Lines(file), 1u + 2 * 2 * 2 * 2 + 2 * 2 + 1);
  const RunResult second = Call(ExperimentRun(scratch, "2"));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_TRUE(Slurp(file).starts_with(before));
  EXPECT_EQ(Lines(file), 1u + 2 * (2 * 2 * 2 * 2 + 2 * 2 + 1));

  std::istringstream lines(Slurp(file));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const Json record = Json::parse(line);
    if (record.contains("distance") || record.contains("peak_memory")) continue;
    if (record.at("way") == "ar") continue;
    const bool greedy = record.at("group").get<std::string>().ends_with("/greedy");
    EXPECT_EQ(record.contains("equal"), greedy);
    if (greedy) {
      EXPECT_EQ(record.at("equal"), true);
    }
  }

  const RunResult report = Call({"experiment", "report", scratch / "out"});
  ASSERT_EQ(report.code, 0) << report.err;
  const std::string page = Slurp(scratch / "out/report.html");
  for (const char* part : {"A tiny one", "It means little.", "word problems", "4 of 4", "<svg",
                           "best d1 by the closed form", "1.25", "2.50", "worst ratio", "Theorem 1",
                           "too few tokens", "peak memory of the process", "experiment run"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  ExpectSelfContained(page);
}

// A name that the user gives says nothing about what is measured: the checkpoint's own comes first.
TEST(Experiments, ShowWhatWasMeasuredAndNotWhatItStandsFor) {
  const Scratch scratch;
  const std::string file = scratch.Write("as.json", R"({
    "name": "as", "title": "As another", "source": "nowhere", "meaning": "None.", "kind": "sources",
    "models": [{"name": "Ouro-1.4B", "checkpoint": "ByteDance/Ouro-1.4B", "recurrence": 4}],
    "tasks": [{"task": "stories", "max_tokens": 8, "max_length": 100}],
    "samplings": [{"name": "greedy", "temperature": 0}],
    "decodes": [{"depths": [1, 2], "schedule": "paper"}, {"depths": [1, 2]}]})");
  const RunResult run = Call({"experiment", "run", file, "--model", OuroDemo(), "--threads", "1",
                              "--limit", "1", "--output", scratch / "out", "--as", "Ouro-1.4B"});
  ASSERT_EQ(run.code, 0) << run.err;
  // Both schedules are run, under names of their own.
  EXPECT_NE(run.out.find("loopspec:1,2/paper"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("loopspec:1,2 "), std::string::npos) << run.out;
  const std::string page = Call({"experiment", "report", scratch / "out", "-o", "-"}).out;
  EXPECT_NE(page.find("<td>ouro-demo</td><td class=\"n\">13.8 M</td><td>BF16</td>"),
            std::string::npos);
  EXPECT_NE(page.find("ouro-demo as Ouro-1.4B"), std::string::npos);
}

TEST(Experiments, AnInterruptKeepsWhatIsDone) {
  const Scratch scratch;
  RunOptions interrupt;
  interrupt.error_terminal = true;
  interrupt.environment = {{"TERM", "xterm"}};
  interrupt.interrupt_at = " runs,";  // with the time left, of which more is known after one
  const RunResult stopped = Call(ExperimentRun(scratch, "0"), interrupt);
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_NE(stopped.out.find("INTERRUPTED"), std::string::npos) << stopped.out;
  EXPECT_GT(Lines(scratch / "out/tiny--ouro-demo.jsonl"), 1u);
  EXPECT_EQ(Call({"experiment", "report", scratch / "out", "-o", "-"}).code, 0);
}

TEST(Experiments, AreListed) {
  const RunResult list = Call({"experiment", "list"});
  ASSERT_EQ(list.code, 0) << list.err;
  for (const char* name : {"base-models", "demo-rows", "optimal-depths", "Ouro-1.4B"})
    EXPECT_NE(list.out.find(name), std::string::npos) << name;
}

TEST(Experiments, RefuseInOneSentence) {
  const Scratch scratch;
  const std::string model = OuroDemo();
  ExpectRefusal({"experiment"}, {"no command", "run"});
  ExpectRefusal({"experiment", "repeat"}, {"repeat", "run"});
  ExpectRefusal({"experiment", "run", "nothing", "--model", model}, {"nothing", "base-models"});
  ExpectRefusal({"experiment", "run", "rows", "--model", model, "-o", scratch / "out"},
                {"gsm8k_cot"});
  ExpectRefusal({"experiment", "run", "demo-rows", "--model", model, "--as", "raven-demo", "-o",
                 scratch / "out"},
                {"--as raven-demo", "32"});
  ExpectRefusal(
      {"experiment", "run", "demo-rows", "--model", model, "--as", "nobody", "-o", scratch / "out"},
      {"nobody", "ouro-demo"});
  ExpectRefusal(
      {"experiment", "run", "demo-rows", "--model", model, "--benchmarks", scratch / "none"},
      {"--benchmarks", "none"});
  ExpectRefusal(
      {"experiment", "run", "demo-rows", "--model", model, "--experiments", scratch / "none"},
      {"--experiments", "none"});
  ExpectRefusal({"experiment", "run", scratch.Write("bad.json", "{}"), "--model", model},
                {"bad.json", "name"});
  ExpectRefusal({"experiment", "report", scratch / "none"}, {"none", "no such folder"});
  ExpectRefusal({"experiment", "report", scratch.path().string()}, {"no records"});
}

}  // namespace
}  // namespace loopspec::test
