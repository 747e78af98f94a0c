// loopspec calibrate and simulate from outside: figures against a plain computation, the file that
// decoding goes by, and what is refused.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>

#include "tensor/safetensors.h"
#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

namespace fs = std::filesystem;

constexpr double kTopP = 0.7;
constexpr const char* kPrompt = "Once upon a time there was a little cat";

std::vector<std::string> Calibrate(const std::string& model, const std::string& prompts,
                                   const std::string& output, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {
      "calibrate",   "--model", model,       "--prompts", prompts,     "-n", "16",
      "--positions", "64",      "--measure", "0",         "--threads", "1",  "--compute",
      "f32",         "--json",  "--view",    "greedy",    "--force"};  // what else this machine
                                                                       // does is not the test's
  if (!output.empty()) arguments.insert(arguments.end(), {"--output", output});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The demo model calibrated on one prompt, once for the tests that look at different sides of it.
struct Calibration {
  Scratch scratch;
  std::string prompts = scratch.Write("p.txt", std::string(kPrompt) + "\n");
  Json found = Call(Calibrate(OuroDemo(), prompts, scratch / "out")).json();
  std::string file = scratch / "out/loopspec-calibration.json";
};

const Calibration& OfOnePrompt() {
  static const Calibration calibration;
  return calibration;
}

// A folder with the files of a model, to which a calibration can be added.
std::string CopyOf(const std::string& model, const Scratch& scratch) {
  const fs::path copy = scratch.path() / "copy";
  fs::create_directory(copy);
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    if (entry.path().filename() != "loopspec-calibration.json")
      fs::create_symlink(fs::canonical(entry.path()), copy / entry.path().filename());
  }
  return copy.string();
}

// Softmax and top-p in double precision, straight from their definitions.
std::vector<double> TopP(const float* logits, size_t vocab) {
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(vocab);
  double total = 0;
  for (size_t v = 0; v < vocab; ++v) total += p[v] = std::exp(double{logits[v]} - logits[order[0]]);
  double kept = 0;
  size_t n = 0;
  while (n < vocab && kept < kTopP * total) kept += p[order[n++]];
  for (size_t i = 0; i < vocab; ++i) p[order[i]] = i < n ? p[order[i]] / kept : 0.0;
  return p;
}

TEST(Calibrate, AgreementAndDistanceAreThoseOfTheLogits) {
  const Scratch scratch;
  const Json& found = OfOnePrompt().found;
  const Json written = Generate({"--model", OuroDemo(), "--prompt", kPrompt, "-n", "16",
                                 "--compute", "f32", "--threads", "1"});
  std::vector<int> tokens;
  const Json encoded = Call({"tokenize", "--model", OuroDemo(), "--json", kPrompt}).json();
  for (const Json& id : encoded.at("tokens")) tokens.push_back(id.get<int>());
  const size_t prompt = tokens.size();
  for (const int id : Ids(written)) tokens.push_back(id);
  const std::string file = scratch / "logits.safetensors";
  ASSERT_EQ(
      Call({"logits", "--model", OuroDemo(), "--tokens", fmt::format("{}", fmt::join(tokens, ",")),
            "--compute", "f32", "--threads", "1", "-o", file})
          .code,
      0);
  const Checkpoint checkpoint = Checkpoint::OpenFile(file);
  const TensorView& view = checkpoint.tensors().at("logits");
  const auto depths = static_cast<size_t>(view.shape[0]),
             positions = static_cast<size_t>(view.shape[1]),
             vocab = static_cast<size_t>(view.shape[2]);
  std::vector<float> logits(depths * positions * vocab);
  std::memcpy(logits.data(), view.data, view.bytes());

  for (const bool generated : {false, true}) {
    std::vector<double> agreement(depths), distance(depths);
    const size_t begin = generated ? prompt - 1 : 0, end = generated ? positions - 1 : prompt - 1;
    for (size_t t = begin; t < end; ++t) {
      const auto at = [&](size_t r) { return logits.data() + (r * positions + t) * vocab; };
      const auto choice = [&](size_t r) { return std::max_element(at(r), at(r) + vocab) - at(r); };
      const std::vector<double> target = TopP(at(depths - 1), vocab);
      for (size_t r = 0; r < depths; ++r) {
        const std::vector<double> p = TopP(at(r), vocab);
        agreement[r] += choice(r) == choice(depths - 1) ? 1 : 0;
        for (size_t v = 0; v < vocab; ++v) distance[r] += std::fabs(p[v] - target[v]) / 2;
      }
    }
    const Json& curve = found.at(generated ? "generated" : "prompts");
    const auto n = static_cast<double>(end - begin);
    EXPECT_EQ(curve.at("positions"), end - begin);
    for (size_t r = 0; r < depths; ++r) {
      EXPECT_EQ(curve.at("agreement")[r].get<double>(), agreement[r] / n) << "depth " << r + 1;
      EXPECT_NEAR(curve.at("total_variation")[r].get<double>(), distance[r] / n, 1e-5)
          << "depth " << r + 1;
    }
  }
  // Greedy rates of the first proposal are the agreement; sampled ones the distance.
  for (const Json& entry : found.at("greedy")) {
    const auto d1 = entry.at("depths")[0].get<size_t>();
    EXPECT_NEAR(entry.at("accepted")[0].get<double>(),
                found.at("generated").at("agreement")[d1 - 1].get<double>(), 1e-12);
  }
  for (const Json& entry : found.at("sampled")) {
    const auto d1 = entry.at("depths")[0].get<size_t>();
    EXPECT_NEAR(entry.at("accepted")[0].get<double>(),
                1 - found.at("generated").at("total_variation")[d1 - 1].get<double>(), 1e-9);
  }
  EXPECT_EQ(found.at("greedy").size(), 3u + 3u + 1u);
}

// Plain lines and JSONL with any of the three names give the same calibration.
TEST(Calibrate, ReadsEveryFormOfPrompts) {
  const Scratch scratch;
  const std::string a = "Once upon a time", b = "The dog ran", c = "A red ball";
  const auto found = [&](const std::string& lines) {
    const std::string file = scratch.Write("p", lines);
    return Call(Calibrate(OuroDemo(), file, scratch / "out", {"--proposals", "1"})).json();
  };
  const Json plain = found(a + "\n" + b + "\n" + c + "\n");
  const Json named =
      found(Json{{"prompt", a}}.dump() + "\n" + Json{{"question", b}, {"answer", "x"}}.dump() +
            "\n" + Json{{"text", c}}.dump() + "\n");
  // Of each line its sixteen tokens.
  EXPECT_EQ(plain.at("generated").at("positions"), 3 * 16);
  for (const char* part : {"prompts", "generated", "sampled"})
    EXPECT_EQ(named.at(part), plain.at(part)) << part;
}

// The figures of a text are the same however many threads work them out.
TEST(Calibrate, ThreadsChangeNothing) {
  const Scratch scratch;
  std::vector<std::string> arguments =
      Calibrate(OuroDemo(), OfOnePrompt().prompts, scratch / "out");
  const Json& one = OfOnePrompt().found;
  *(std::find(arguments.begin(), arguments.end(), "--threads") + 1) = "3";
  const Json more = Call(arguments).json();
  for (const char* part : {"prompts", "generated", "greedy", "sampled"})
    EXPECT_EQ(one.at(part), more.at(part)) << part;
}

// Made prompts need no file, and the end of a prompt is looked at where the whole is too long.
TEST(Calibrate, MadePromptsAndTheirLastPositions) {
  const Scratch scratch;
  const auto made = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"calibrate",
                                          "--model",
                                          Golden("ouro-tiny-f32"),
                                          "--prompt-tokens",
                                          "40",
                                          "--measure-prompts",
                                          "2",
                                          "-n",
                                          "8",
                                          "--measure",
                                          "1",
                                          "--repeat",
                                          "1",
                                          "--measure-tokens",
                                          "4",
                                          "--output",
                                          scratch / "out",
                                          "--view",
                                          "greedy",
                                          "--force",
                                          "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments).json();
  };
  const Json whole = made({}), end = made({"--prompt-positions", "10"});
  // Of a prompt all but the last position, where the model's own text begins.
  EXPECT_EQ(whole.at("prompts").at("positions"), 2 * 39);
  EXPECT_EQ(end.at("prompts").at("positions"), 2 * 9);
  EXPECT_EQ(whole.at("generated").at("positions"), 2 * 8);
  EXPECT_EQ(end.at("generated"), whole.at("generated"));
  // With less room the prompt gives way: its last position and eight tokens are nine.
  const Json little = made({"--positions", "9"});
  EXPECT_EQ(little.at("prompts").at("positions"), 0);
  EXPECT_EQ(little.at("generated").at("positions"), 8);
}

TEST(Calibrate, DecodingGoesByTheFile) {
  const Scratch scratch;
  const std::string model = CopyOf(OuroDemo(), scratch);
  const fs::path file = fs::path(model) / "loopspec-calibration.json";
  // A calibration of this device class keeps what is known of the other.
  Json before = Json::parse(Slurp(OfOnePrompt().file));
  Json other = before.at("devices").at("cpu").at("greedy");
  other["depths"] = {1, 3};
  before["devices"] = {{"gpu", {{"greedy", other}}}, {"cpu", {{"sampling", other}}}};
  std::ofstream(file) << before.dump();
  const RunResult run = Call(Calibrate(model, OfOnePrompt().prompts, ""));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(fs::exists(fs::path(model) / "loopspec-calibration.html"));
  const Json devices = Json::parse(Slurp(file)).at("devices");
  EXPECT_EQ(devices.at("gpu").at("greedy").at("depths"), Json({1, 3}));
  // The view that was not calibrated keeps its own.
  EXPECT_EQ(devices.at("cpu").at("sampling").at("depths"), Json({1, 3}));
  const Json entry = devices.at("cpu").at("greedy"), chosen = entry.at("depths");
  for (const char* key :
       {"date", "version", "chip", "threads", "compute", "context", "prompts", "spread"})
    EXPECT_TRUE(entry.contains(key)) << key;
  EXPECT_EQ(entry.at("threads"), 1);
  EXPECT_EQ(entry.at("compute"), "f32");

  const auto inspect = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"inspect", "--model", model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  };
  const std::vector<std::string> here = {"--threads", "1", "--compute", "f32"};
  const std::vector<std::string> here_json = {"--threads", "1", "--compute", "f32", "--json"};
  Json inspected = inspect(here_json).json();
  EXPECT_EQ(inspected.at("default_depths"), chosen);
  EXPECT_EQ(inspected.at("default_depths_sampling"), Json({1, 3}));
  EXPECT_EQ(inspected.at("calibration"), file.string());
  EXPECT_NE(inspect(here).out.find("calibrated"), std::string::npos);
  // With another thread count or precision the file tells of the model alone, and inspect says so.
  for (const std::vector<std::string>& elsewhere :
       {std::vector<std::string>{"--threads", "2", "--compute", "f32"},
        {"--threads", "1", "--compute", "bf16"}}) {
    const std::string said = inspect(elsewhere).out;
    EXPECT_NE(said.find("its rates of drafts are used, its depths are not"), std::string::npos)
        << said;
    EXPECT_NE(said.find("by rule"), std::string::npos) << said;
  }
  std::vector<std::string> without = here_json;
  without.emplace_back("--no-calibration");
  EXPECT_EQ(inspect(without).json().at("calibration"), nullptr);

  // Another choice in the file is another choice of decoding, and of no other device class.
  Json edited = Json::parse(Slurp(file));
  edited["devices"]["cpu"]["greedy"]["depths"] = {3};
  std::ofstream(file) << edited.dump();
  EXPECT_EQ(inspect(here_json).json().at("default_depths"), Json({3}));
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--model", model,       "--prompt", kPrompt,     "-n",
                                          "8",       "--threads", "1",        "--compute", "f32"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Generate(arguments);
  };
  const Json written = generate({});
  EXPECT_EQ(written.at("stats").at("depths"), Json({3}));
  EXPECT_EQ(generate({"--temperature", "1", "--seed", "3"}).at("stats").at("depths"), Json({1, 3}));
  EXPECT_EQ(Ids(written), Ids(generate({"--decode", "ar"})));

  // --reset takes it away again.
  const RunResult reset =
      Call({"calibrate", "--model", model, "--threads", "1", "--compute", "f32", "--reset"});
  ASSERT_EQ(reset.code, 0) << reset.err;
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(inspect(here_json).json().at("calibration"), nullptr);
}

// What was measured with a plan of keys is found again with that plan, and beside what was measured
// without.
TEST(Calibrate, APlanOfKeysHasAChoiceOfItsOwn) {
  const Scratch scratch;
  const std::string model = CopyOf(OuroDemo(), scratch);
  const std::string file = (fs::path(model) / "loopspec-calibration.json").string();
  const auto calibrate = [&](const std::vector<std::string>& keys) {
    return Call(Calibrate(model, OfOnePrompt().prompts, "", keys)).json().at("devices");
  };
  const auto inspect = [&](const std::vector<std::string>& keys) {
    std::vector<std::string> arguments = {"inspect",   "--model", model,    "--threads", "1",
                                          "--compute", "f32",     "--json", "--device",  "cpu"};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    return Call(arguments).json();
  };
  const std::string section = "cpu, keys loops:int8,r5,r4@64";
  const Json by_plan = calibrate({"--kv-type", "loops"});
  EXPECT_EQ(by_plan.at(section).at("greedy").at("kv_type"), "loops:int8,r5,r4@64");
  const Json depths = by_plan.at(section).at("greedy").at("depths");
  for (const char* keys : {"loops", "loops:int8,r5,r4@64"}) {
    const Json found = inspect({"--kv-type", keys});
    EXPECT_EQ(found.at("calibration"), file) << keys;
    EXPECT_EQ(found.at("default_depths"), depths) << keys;
  }
  // Nothing is known of others yet.
  EXPECT_EQ(inspect({}).at("calibration"), nullptr);
  EXPECT_EQ(inspect({"--kv-type", "loops:int8*2,last"}).at("calibration"), nullptr);
  calibrate({});
  EXPECT_EQ(inspect({}).at("calibration"), file);
  EXPECT_EQ(inspect({"--kv-type", "loops"}).at("calibration"), file);
}

#ifdef LOOPSPEC_BUSY_CLOCK

TEST(Calibrate, CtrlCEndsItWithItsExitCode) {
  const Scratch scratch;
  RunOptions interrupt;
  interrupt.interrupt_after = 0.1;
  const RunResult result =
      Call({"calibrate", OuroDemo(), "--prompts", scratch.Write("p.txt", "Once upon a time\n"),
            "--output", scratch / "out"},
           interrupt);
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_NE(result.err.find("interrupted: nothing was written"), std::string::npos) << result.err;
}

// What a busy machine says is kept and shown as not used, until a second run or --force says so.
TEST(Calibrate, ABusyMachineIsAskedAgain) {
  const Scratch scratch;
  const std::string model = CopyOf(OuroDemo(), scratch);
  const fs::path folder = model, used = folder / "loopspec-calibration.json",
                 pending = folder / "loopspec-calibration.pending.json";
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "calibrate", "--model",   model,         "--prompts", OfOnePrompt().prompts,
        "-n",        "8",         "--positions", "32",        "--measure",
        "0",         "--threads", "1",           "--compute", "f32",
        "--view",    "greedy",    "--proposals", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    RunOptions options;
    options.environment = {{"LD_PRELOAD", LOOPSPEC_BUSY_CLOCK}};
    return Call(arguments, options);
  };
  const auto inspected = [&] {
    return Call({"inspect", "--model", model, "--threads", "1", "--compute", "f32", "--json"})
        .json()
        .at("calibration");
  };

  // Other depths than those that an earlier run chose confirm nothing.
  std::ofstream(pending) << Json{{"choices", {{"greedy", {99}}}}}.dump();
  const RunResult first = run({});
  EXPECT_EQ(first.code, 2) << first.err;
  EXPECT_NE(first.out.find("NOT USED YET, the machine was busy"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("chosen for greedy decoding"), std::string::npos) << first.out;
  EXPECT_NE(first.err.find("is not used, but kept in " + pending.string()), std::string::npos)
      << first.err;
  EXPECT_FALSE(fs::exists(used));
  EXPECT_EQ(inspected(), nullptr);

  // Each further run is used if it chooses what the one before it chose, else kept in its place.
  bool agreed = false;
  for (int i = 0; i < 10 && !agreed; ++i) {
    const Json before = Json::parse(Slurp(pending)).at("choices").at("greedy");
    const RunResult again = run({"--json"});
    const Json found = Json::parse(again.out);
    agreed = found.at("devices").at("cpu").at("greedy").at("depths") == before;
    EXPECT_EQ(found.at("used"), agreed);
    EXPECT_EQ(again.code, agreed ? 0 : 2) << again.err;
    EXPECT_EQ(fs::exists(used), agreed);
    EXPECT_EQ(fs::exists(pending), !agreed);
  }
  EXPECT_TRUE(agreed);
  EXPECT_EQ(inspected(), used.string());

  // --reset removes what waits, too.
  std::ofstream(pending) << "{}";
  const RunResult reset =
      Call({"calibrate", "--model", model, "--threads", "1", "--compute", "f32", "--reset"});
  EXPECT_EQ(reset.code, 0) << reset.err;
  EXPECT_FALSE(fs::exists(pending));
  EXPECT_FALSE(fs::exists(used));

  std::ofstream(pending) << "{}";
  const RunResult forced = run({"--force"});
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_EQ(forced.out.find("NOT USED YET"), std::string::npos) << forced.out;
  EXPECT_TRUE(fs::exists(used));
  EXPECT_FALSE(fs::exists(pending));
}

#endif  // LOOPSPEC_BUSY_CLOCK

// The best depths of sampled text may be others than those of greedy text.
TEST(Calibrate, ChoosesForGreedyAndForSampledText) {
  const Scratch scratch;
  const Json found = Call({"calibrate",
                           "--model",
                           OuroDemo(),
                           "--prompts",
                           OfOnePrompt().prompts,
                           "-n",
                           "12",
                           "--positions",
                           "32",
                           "--measure",
                           "1",
                           "--measure-prompts",
                           "1",
                           "--repeat",
                           "2",
                           "--threads",
                           "1",
                           "--json",
                           "--force",
                           "--output",
                           scratch / "out"})
                         .json();
  const Json& views = found.at("devices").at("cpu");
  ASSERT_EQ(views.size(), 2u);
  for (const char* view : {"greedy", "sampling"}) {
    const Json& entry = views.at(view);
    // The fastest measured is chosen, autoregressive decoding included.
    double best = 0;
    for (const Json& m : entry.at("measured"))
      best = std::max(best, m.at("tokens_per_second").get<double>());
    for (const Json& m : entry.at("measured")) {
      if (m.at("depths") == entry.at("depths")) {
        EXPECT_GE(m.at("tokens_per_second").get<double>(), 0.97 * best) << view;
      }
    }
    EXPECT_EQ(entry.at("measured")[0].at("depths"), Json::array());
  }
  const std::string page = Slurp(scratch / "out/loopspec-calibration.html");
  // What was measured comes first, so that a phone shows it.
  EXPECT_NE(page.find(">depths</th><th scope=\"col\" class=\"n\">measured speedup</th>"),
            std::string::npos);
  for (const char* part : {"for greedy decoding", "for sampled decoding", "bound of Theorem 1",
                           "Run by: loopspec calibrate", "largest ratio"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

// --output is for looking at: decoding does not go there, and the command says so.
TEST(Calibrate, SaysWhereTheFileIsAndWhetherItIsUsed) {
  const Scratch scratch;
  std::vector<std::string> arguments =
      Calibrate(OuroDemo(), OfOnePrompt().prompts, scratch / "out", {"--proposals", "1"});
  std::erase(arguments, "--json");
  const RunResult run = Call(arguments);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("where decoding does not look"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("now uses these depths"), std::string::npos) << run.out;
}

// A file that cannot be used is passed over with one sentence, whatever is wrong with it.
TEST(Calibrate, FilesThatCannotBeUsedArePassedOver) {
  const Scratch scratch;
  const std::string model = CopyOf(OuroDemo(), scratch);
  const fs::path file = fs::path(model) / "loopspec-calibration.json";
  fs::copy_file(OfOnePrompt().file, file);
  const RunResult used =
      Call({"inspect", "--model", model, "--json", "--threads", "1", "--compute", "f32"});
  EXPECT_EQ(used.json().at("calibration"), file.string());
  EXPECT_EQ(used.err, "");
  const Json good = Json::parse(Slurp(file));
  const Json by_rule =
      Call({"inspect", "--model", OuroDemo(), "--json"}).json().at("default_depths");

  std::vector<std::string> bad = {"", "{", "[]", "{}", "null", "{\"loopspec_calibration\": 2}"};
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json json = good;
    change(json);
    bad.push_back(json.dump());
  };
  with([](Json& j) { j["loopspec_calibration"] = 99; });
  with([](Json& j) { j["model"]["hidden"] = 17; });
  with([](Json& j) { j["model"]["recurrence"] = 8; });
  with([](Json& j) { j.erase("devices"); });
  with([](Json& j) { j["devices"] = {1}; });
  with([](Json& j) { j["devices"]["cpu"] = 3; });
  with([](Json& j) { j["loopspec_calibration"] = 1; });  // knew neither views nor machines
  with([](Json& j) { j["devices"]["cpu"]["greedy"].erase("chip"); });
  with([](Json& j) { j["devices"]["cpu"]["greedy"]["depths"] = "1,2"; });
  with([](Json& j) { j["devices"]["cpu"]["greedy"]["depths"] = {2, 1}; });
  with([](Json& j) { j["devices"]["cpu"]["greedy"]["depths"] = {1.5}; });
  with([](Json& j) { j["devices"]["cpu"]["greedy"]["depths"] = {4}; });
  with([](Json& j) { j["devices"]["cpu"]["greedy"]["depths"] = {1e30}; });
  for (const std::string& text : bad) {
    std::ofstream(file, std::ios::trunc) << text;
    const RunResult run = Call({"inspect", "--model", model, "--json"});
    EXPECT_EQ(run.code, 0) << text << "\n" << run.err;
    EXPECT_EQ(run.json().at("default_depths"), by_rule) << text;
    EXPECT_NE(run.err.find("the calibration is not used"), std::string::npos) << text;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(Calibrate, Refusals) {
  const Scratch scratch;
  const std::string prompts = scratch.Write("p.txt", std::string(kPrompt) + "\n");
  const std::string out = scratch / "out";
  ExpectRefusal(Calibrate(OuroDemo(), scratch / "none.txt", out), {"none.txt"});
  ExpectRefusal(Calibrate(OuroDemo(), scratch.Write("empty", "\n\n"), out), {"empty", "no prompt"});
  ExpectRefusal(Calibrate(OuroDemo(), scratch.Write("bad", "{\"a\": 1}\n"), out),
                {"bad, line 1", "prompt, question or text"});
  ExpectRefusal(Calibrate(OuroDemo(), prompts, out, {"--temperature", "0"}), {"--temperature"});
  ExpectRefusal(Calibrate(OuroDemo(), prompts, out, {"--recurrence", "1"}), {"R = 1"});
  ExpectRefusal({"calibrate", "--model", OuroDemo(), "--prompts", prompts, "--measure", "some",
                 "-n", "4", "--positions", "16", "--output", out},
                {"--measure some", "all"});
  ExpectRefusal(Calibrate(OuroDemo(), prompts, prompts + "/x"), {"cannot be kept"});
  ExpectRefusal({"calibrate", "--model", OuroDemo()}, {"--prompts FILE", "--prompt-tokens N"});
  ExpectRefusal(Calibrate(OuroDemo(), prompts, out, {"--prompt-tokens", "8"}),
                {"--prompts FILE", "--prompt-tokens N"});
  ExpectRefusal({"calibrate", "--model", OuroDemo(), "--prompt-tokens", "8", "--chat"},
                {"--chat goes with --prompts"});
  ExpectRefusal({"calibrate", "--model", OuroDemo(), "--prompt-tokens", "1000000"},
                {"--prompt-tokens", "1000000 tokens"});
}

TEST(Simulate, SaysWhatIsAssumed) {
  const RunResult named = Call({"simulate", "--cost", "ouro-1.4b"});
  EXPECT_NE(named.out.find("every step reads at 4 TB/s (--bandwidth)"), std::string::npos)
      << named.out;
  const Scratch scratch;
  RunOptions cached;
  cached.environment = {{"XDG_CACHE_HOME", scratch.path().string()}};
  const RunResult measured = Call({"simulate", "-m", OuroDemo()}, cached);
  EXPECT_NE(measured.out.find("timed here, measured 20"), std::string::npos) << measured.out;
  // inspect shows how old they are, and how sure.
  const RunResult inspected = Call({"inspect", OuroDemo()}, cached);
  EXPECT_NE(inspected.out.find(", today on cpu ("), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find(", two measurements "), std::string::npos) << inspected.out;
}

TEST(Simulate, PredictsFromRates) {
  const Json json = Call({"simulate", "--cost", "raven-llama", "--depths", "2,8", "--rates",
                          "0.92,0.075", "--gate", "0.2", "--group", "1", "--json"})
                        .json();
  EXPECT_NEAR(json.at("speedup").get<double>(), 6.0, 0.4);
  EXPECT_NEAR(json.at("autoregressive").at("bytes").get<double>(),
              32 * (0.75e9 + 1024 * 12.3e3) + 0.49e9 + 1.01e9, 1e6);
  EXPECT_NE(Call({"simulate"}).out.find("SIMULATION"), std::string::npos);
  const Json measured =
      Call({"simulate", "--model", RavenDemo(), "--context", "100", "--json"}).json();
  EXPECT_EQ(measured.at("recurrence"), 32);
  EXPECT_GT(measured.at("tokens_per_second").get<double>(), 0);
  ExpectRefusal({"simulate", "--rates", "0.9,0.2"}, {"--rates 0.9,0.2"});
  ExpectRefusal({"simulate", "--rates", "x"}, {"--rates x"});
  ExpectRefusal({"simulate", "--depths", "4"}, {"4"});
  ExpectRefusal({"simulate", "--cost", "1,2"}, {"--cost 1,2"});
  ExpectRefusal({"simulate", "--gate", "2"}, {"--gate 2"});
  ExpectRefusal({"simulate", "--guesses", "0.5"}, {"--guesses 0.5"});
  ExpectRefusal({"simulate", "--bandwidth", "0"}, {"--bandwidth 0"});
}

// ---- Keys across loops ----

std::vector<std::string> CalibrateOfKeys(std::vector<std::string> more) {
  more.insert(more.begin(), {"calibrate", "--keys", "--model", OuroDemo(), "--positions", "96",
                             "--span", "4", "--plan", "int8*3"});
  return more;
}

TEST(CalibrateKeys, ProposesAPlanAndStoresNothing) {
  const Json found = Call(CalibrateOfKeys({"--json", "--threads", "1"})).json();
  EXPECT_EQ(found.at("recurrence"), 4);
  const Json& residuals = found.at("residuals");
  EXPECT_GE(residuals.at("positions"), 64);
  ASSERT_EQ(residuals.at("keys").size(), 3u);
  ASSERT_EQ(residuals.at("values")[2].size(), 6u);
  // Loops come nearer to the last one.
  for (size_t layer = 0; layer < 6; ++layer)
    EXPECT_GT(residuals.at("keys")[0][layer], residuals.at("keys")[2][layer]);
  const int64_t bf16 = found.at("bytes_per_token_bf16").get<int64_t>();
  EXPECT_EQ(bf16, Call({"inspect", "--model", OuroDemo(), "--json"})
                      .json()
                      .at("kv_bytes_per_token_bf16")
                      .get<int64_t>());
  // A plan that is int8 everywhere is int8.
  bool compared = false;
  for (const Json& plan : found.at("plans")) {
    EXPECT_LE(plan.at("bytes_per_token"), found.at("int8").at("bytes_per_token"));
    if (plan.at("plan") != "int8") continue;
    compared = true;
    EXPECT_EQ(plan.at("total_variation"), found.at("int8").at("total_variation"));
    EXPECT_EQ(plan.at("total_variation_from_int8"), 0.0);
  }
  EXPECT_TRUE(compared);
  // The same again with other threads.
  Json again = Call(CalibrateOfKeys({"--json", "--threads", "2"})).json();
  for (const char* each_run : {"command", "date"}) again[each_run] = found.at(each_run);
  EXPECT_EQ(again, found);
  EXPECT_FALSE(fs::exists(fs::path(OuroDemo()) / "loopspec-calibration.json"));
  const std::string text = Call(CalibrateOfKeys({})).out;
  for (const char* words : {"K, layer 6", "proposed: ", "spans of less than 64"})
    EXPECT_NE(text.find(words), std::string::npos) << text;
  // It ends with what decodes so, and that does.
  const auto kv_type = found.at("kv_type").get<std::string>();
  EXPECT_NE(text.find("to decode with it: --kv-type '" + kv_type + "'"), std::string::npos) << text;
  const auto proposed = found.at("proposed").get<std::string>();
  EXPECT_EQ(kv_type, proposed == "int8" ? proposed : "loops:" + proposed);
  EXPECT_EQ(Call({"generate", "--model", OuroDemo(), "--prompt", "x", "-n", "2", "--device", "cpu",
                  "--kv-type", kv_type})
                .code,
            0);
}

TEST(CalibrateKeys, RefusesWhatItCannotMeasure) {
  ExpectRefusal(CalibrateOfKeys({"--recurrence", "1"}), {"R = 1", "no loops"});
  ExpectRefusal(CalibrateOfKeys({"--device", "cuda"}), {"on the CPU", "cuda"});
  ExpectRefusal(CalibrateOfKeys({"--compute", "bf16"}), {"float32", "bf16"});
  ExpectRefusal(CalibrateOfKeys({"--kv-type", "int8"}), {"--kv-type", "int8"});
  ExpectRefusal(CalibrateOfKeys({"--plan", "int4"}), {"int4 is no form", "1 to 3"});
  ExpectRefusal(CalibrateOfKeys({"--reset"}), {"--reset", "--keys"});
  ExpectRefusal(CalibrateOfKeys({"--chat"}), {"--chat", "--keys"});
  ExpectRefusal({"calibrate", "--keys", "--model", OuroDemo(), "--positions", "96", "--span", "64"},
                {"--positions is 96", "128"});
  ExpectRefusal({"calibrate", "--model", OuroDemo(), "--span", "8"}, {"--span", "--keys"});
}

}  // namespace
}  // namespace loopspec::test
