// loopspec simulate: what decoding would cost at given rates, without running a model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "calibrate/simulate.h"
#include "decode/depths.h"
#include "decode/row_choice.h"
#include "engine/load/device.h"
#include "engine/load/step_cost.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct SimulateOptions {
  ModelOptions model;
  std::string depths = "auto", rates = "0.90,0.075", guesses, cost = "ouro-1.4b", group = "auto";
  double gate = 0.10, bandwidth = 4.0;
  int recurrence = 0, tokens = 4000, max_rows = 0;
  int64_t context = 1024;
  uint64_t seed = 1;
  bool json = false;
};

// What is read, of whom, and how long it takes.
struct Costs {
  std::string name;
  std::string assumed;  // about the time of a step, in words
  int recurrence = 4;
  ReadBytes bytes;
  StepCost step;
};

std::vector<double> ParseNumbers(const std::string& text, const char* option) {
  std::vector<double> numbers;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    numbers.push_back(std::strtod(at, &end));
    if (end == at || (*end != '\0' && *end != ',') || (*end == ',' && end[1] == '\0') ||
        !std::isfinite(numbers.back()) || numbers.back() < 0) {
      Fail("{} {}: expected numbers from 0 with commas between", option, text);
    }
    at = *end == ',' ? end + 1 : end;
  }
  return numbers;
}

std::vector<double> ParseShares(const std::string& text, const char* option) {
  const std::vector<double> shares = ParseNumbers(text, option);
  double sum = 0;
  for (const double share : shares) sum += share;
  if (sum > 1 + 1e-9) Fail("{} {}: expected shares that sum to at most 1", option, text);
  return shares;
}

Costs NamedCosts(const SimulateOptions& options) {
  Costs costs;
  costs.name = options.cost;
  costs.assumed = fmt::format(
      "every step reads at {:g} TB/s (--bandwidth), and nothing else takes "
      "time",
      options.bandwidth);
  if (options.cost == "ouro-1.4b") {
    costs.bytes = {2.47e9, 0, 0.20e9, 196.6e3};
  } else if (options.cost == "raven-llama") {
    costs.recurrence = 32;
    costs.bytes = {0.75e9, 0.49e9, 1.01e9, 12.3e3};
  } else {
    const std::vector<double> b = ParseNumbers(options.cost, "--cost");
    if (b.size() != 4 || !(b[0] > 0))
      Fail(
          "--cost {}: expected ouro-1.4b, raven-llama, or four sizes in bytes: B's weights, P's, "
          "C's, and keys and values of a position at one depth",
          options.cost);
    costs.bytes = {b[0], b[1], b[2], b[3]};
  }
  if (!(options.bandwidth > 0) || !std::isfinite(options.bandwidth))
    Fail("--bandwidth {}: expected terabytes per second above 0", options.bandwidth);
  costs.step = CostOfReading(costs.bytes, options.bandwidth * 1e12);
  return costs;
}

Costs MeasuredCosts(const SimulateOptions& options) {
  EngineOptions engine = options.model.ToEngineOptions();
  const Model model = LoadModel(engine);
  engine.kv_positions = std::clamp<int64_t>(options.context, 1024, model.spec.max_positions);
  const auto backend = MakeBackend(model, engine, options.model.ChooseDepths(model).depths);
  const StepCost cost = LoadStepCost(*backend);
  std::string when;
  for (const StepCostOrigin& kept : KeptStepCosts(model.spec)) {
    const bool same_keys = kept.kv_type.empty() || kept.kv_type == NameOfKvType(backend->options());
    if (kept.chip == backend->chip() && kept.device == backend->device() && same_keys &&
        when.empty())
      when = fmt::format(", measured {}{}", kept.date, kept.steady() ? "" : " on a busy machine");
  }
  Costs costs;
  costs.name = fmt::format("{} on {} ({}), {}", options.model.model, backend->device(),
                           backend->chip(), NameOfPrecision(backend->options()));
  costs.recurrence = model.spec.recurrence;
  costs.bytes = BytesOf(model, backend->options().compute);
  costs.step = cost;
  costs.assumed = "every step takes what one took when it was timed here" + when;
  return costs;
}

SimulationRequest MakeRequest(const SimulateOptions& options, const Costs& costs) {
  SimulationRequest request;
  request.recurrence = options.recurrence > 0 ? options.recurrence : costs.recurrence;
  request.depths =
      options.depths == "auto" ? DefaultDepths(request.recurrence) : ParseDepths(options.depths);
  CheckDepths(request.depths, request.recurrence);
  request.assumed.rates = ParseShares(options.rates, "--rates");
  request.assumed.rates.resize(request.depths.size());
  if (!(options.gate >= 0 && options.gate <= 1))
    Fail("--gate {}: expected a share from 0 to 1", options.gate);
  request.assumed.gate = options.gate;
  if (!options.guesses.empty()) {
    const std::vector<double> guesses = ParseNumbers(options.guesses, "--guesses");
    if (guesses.size() != 2 || guesses[0] > 1 || guesses[1] > 1)
      Fail("--guesses {}: expected two shares, such as 0.29,0.73", options.guesses);
    request.guesses = guesses[0] > 0;
    request.assumed.guess_offered = guesses[0];
    request.assumed.guess_right = guesses[1];
  }
  request.group = 0;
  if (options.group != "auto") {
    const std::vector<int> group = ParseDepths(options.group);
    if (group.size() != 1 || group[0] < 1 || group[0] > kMaxGroup)
      Fail("--group {}: expected auto, or a whole number from 1 to {}", options.group, kMaxGroup);
    request.group = group[0];
  }
  request.context = options.context;
  request.tokens = options.tokens;
  request.max_rows = options.max_rows;
  request.seed = options.seed;
  request.cost = costs.step;
  return request;
}

void RunSimulate(const SimulateOptions& options) {
  const Costs costs = options.model.model.empty() ? NamedCosts(options) : MeasuredCosts(options);
  const SimulationRequest request = MakeRequest(options, costs);
  SimulationRequest plain = request;
  plain.depths.clear();
  plain.assumed = {};
  plain.guesses = false;
  plain.group = 1;
  const SimulationResult baseline = Simulate(plain), result = Simulate(request);
  const double bytes = BytesPerToken(result, costs.bytes, request.context);
  const double baseline_bytes = BytesPerToken(baseline, costs.bytes, request.context);
  const double speedup = baseline.seconds / result.seconds;
  if (options.json) {
    const OrderedJson out = {
        {"cost", costs.name},
        {"assumed", costs.assumed},
        {"recurrence", request.recurrence},
        {"depths", request.depths},
        {"rates", request.assumed.rates},
        {"gate", request.assumed.gate},
        {"context", request.context},
        {"tokens", request.tokens},
        {"tokens_per_pass", result.tokens_per_pass},
        {"rows_mean", result.rows},
        {"group", result.group},
        {"per_token",
         {{"recurrences", result.steps},
          {"planes", result.planes},
          {"readouts", result.readouts},
          {"preludes", result.preludes},
          {"bytes", bytes},
          {"seconds", result.seconds}}},
        {"autoregressive", {{"bytes", baseline_bytes}, {"seconds", baseline.seconds}}},
        {"tokens_per_second", 1 / result.seconds},
        {"speedup", speedup}};
    fmt::print("{}\n", out.dump(2));
    return;
  }
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<24}{}\n", name, value);
  };
  fmt::print("SIMULATION over {} tokens: outcomes drawn at given rates, costs of {}\n",
             request.tokens, costs.name);
  row("R, depths",
      fmt::format(
          "{}, {}", request.recurrence,
          request.depths.empty() ? "none" : fmt::format("{}", fmt::join(request.depths, ","))));
  row("accepted, gate open",
      fmt::format("{}; {:g}", fmt::join(request.assumed.rates, " / "), request.assumed.gate));
  row("context", fmt::format("{} positions", request.context));
  row("assumed", costs.assumed);
  row("tokens per pass", fmt::format("{:.2f}", result.tokens_per_pass));
  row("rows of a step", fmt::format("{:.1f} on average, groups of {}", result.rows, result.group));
  row("read per token",
      fmt::format("{}, autoregressive {}", HumanBytes(bytes), HumanBytes(baseline_bytes)));
  row("time per token", fmt::format("{}, autoregressive {}", HumanSeconds(result.seconds),
                                    HumanSeconds(baseline.seconds)));
  row("predicted",
      fmt::format("{:.1f} tokens/s, {:.2f}x autoregressive", 1 / result.seconds, speedup));
}

}  // namespace

void AddSimulateCommand(Command app) {
  auto options = std::make_shared<SimulateOptions>();
  const Command command = app.AddCommand(
      "simulate", "Predict speed from acceptance rates: the real decoder, without a model");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.AddOption(name, value, help).ShowDefault();
  };
  add("--rates", options->rates, "Share of tokens that each proposal gives; the rest restarts");
  add("--gate", options->gate, "Share of later readouts whose gate opens, right or not");
  command.AddOption("--guesses", options->guesses,
                    "Early children: how often there is a guess, and how often it is right, such "
                    "as 0.29,0.73; none by default");
  add("--depths", options->depths, "Depths that draft, such as 1,2; auto chooses by R");
  command
      .AddOption("--recurrence", options->recurrence,
                 "R; default: that of the model or of the named cost")
      .Range(1, 4096);
  add("--context", options->context, "Committed positions that attention reads").Range(0, 1 << 24);
  add("--cost", options->cost,
      "What is read: ouro-1.4b, raven-llama, or bytes of B, P, C and of a position's keys and "
      "values at one depth, with commas between");
  add("--bandwidth", options->bandwidth, "Terabytes per second that are read, with --cost");
  command.AddOption("--model,-m", options->model.model,
                    "Take the step costs of this model on this machine instead of --cost");
  add("--device", options->model.device, "Where the model runs: auto, cpu, cuda or cuda:N");
  add("--max-rows", options->max_rows, "Maximum rows of a step; 0: as many as are worth their time")
      .Range(0, 256);
  add("--group", options->group, "Tokens that pass the later depths together: 1 to 16, or auto");
  add("--max-tokens,-n", options->tokens, "Tokens to simulate").Range(1, 1000000);
  add("--seed", options->seed, "Seed of the outcomes");
  command.AddFlag("--json", options->json, "Print JSON");
  command.SetFooter(
      "\nExample:\n  loopspec simulate --cost raven-llama --depths 2,8 --rates 0.92,0.075 --gate "
      "0.20 --context 4096");
  command.SetAction([=] { RunSimulate(*options); });
}

}  // namespace loopspec::tools
