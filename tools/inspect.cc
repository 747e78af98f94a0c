// loopspec inspect: what a checkpoint is, before anything runs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ctime>

#include "base/json.h"
#include "decode/depths.h"
#include "engine/load/device.h"
#include "engine/load/generation_defaults.h"
#include "engine/load/model_path.h"
#include "engine/load/step_cost.h"
#include "hub/pull.h"
#include "kv/kept_planes.h"
#include "kv/planes.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

std::string NormText(const ModelSpec& spec) {
  switch (spec.norms) {
    case NormPlacement::kPre:
      return "before each sublayer";
    case NormPlacement::kPost:
      return "after each sublayer";
    case NormPlacement::kSandwich:
      return "before and after each sublayer";
    case NormPlacement::kAfterSum:
      return "before each sublayer and after each sum";
  }
  return "";
}

std::string RopeText(const RopeSpec& rope) {
  const std::string theta =
      fmt::format("theta {:g}{}", rope.theta, rope.interleaved ? ", interleaved" : "");
  const char* scaling = rope.scaling == RopeScaling::kLinear   ? "linear"
                        : rope.scaling == RopeScaling::kLlama3 ? "llama3"
                                                               : "yarn";
  if (rope.scaling == RopeScaling::kNone) return theta;
  return fmt::format("{}, {} scaling by {:g}", theta, scaling, rope.factor);
}

std::string SamplingText(const GenerationDefaults& defaults) {
  if (!defaults.from_file) return "greedy (no generation_config.json)";
  std::string text = Described(defaults.sampling) + " (generation_config.json)";
  if (!defaults.ignored.empty())
    text += fmt::format("; not done here: {}", fmt::join(defaults.ignored, ", "));
  return text;
}

OrderedJson SamplingJson(const GenerationDefaults& defaults) {
  OrderedJson json = {{"from_file", defaults.from_file}};
  json.update(ToJson(defaults.sampling, [](const SamplingField& field) {
    return field.generation_config.has_value();
  }));
  json["ignored"] = defaults.ignored;
  return json;
}

// The default depths for greedy and for sampled text, and whether they were measured.
// "2026-11-18, today" or "2026-10-01, 48 days ago"; where, and how sure.
std::string CostOriginText(const StepCostOrigin& cost) {
  std::tm then{};
  std::string age = "at an unknown date";
  if (strptime(cost.date.c_str(), "%Y-%m-%d", &then) != nullptr) {
    const auto days = static_cast<int64_t>(std::time(nullptr) - timegm(&then)) / 86400;
    age = fmt::format("{}, {}", cost.date,
                      days < 1 ? "today" : fmt::format("{} day{} ago", days, days == 1 ? "" : "s"));
  }
  return fmt::format(
      "measured {} on {} ({}{}){}, two measurements {:.2f} apart{}", age, cost.device, cost.chip,
      cost.threads > 0 ? fmt::format(", {} thread{}", cost.threads, cost.threads == 1 ? "" : "s")
                       : "",
      cost.kv_type.empty() ? "" : ", keys " + cost.kv_type, cost.spread,
      cost.steady() ? "" : ": the machine was busy, a start after an hour measures again");
}

std::string DepthsText(const ModelSpec& spec, const ChosenDepths& chosen) {
  if (spec.recurrence < 2) return "none (R = 1)";
  const bool untrained = spec.draft_depths && spec.draft_depths->empty();
  if (untrained && !chosen.file) {
    return fmt::format(
        "none by default: {} was not trained to be read out before recurrence {}, so tokens are "
        "guessed from n-grams alone; loopspec calibrate measures whether a depth pays",
        spec.family, spec.recurrence);
  }
  const auto name = [](const std::vector<int>& depths) {
    return depths.empty() ? std::string("none (autoregressive decoding was fastest)")
                          : fmt::format("{}", fmt::join(depths, ","));
  };
  const std::string from = chosen.file ? "calibrated" : "by rule; loopspec calibrate measures";
  if (chosen.depths == chosen.sampled_depths)
    return fmt::format("{} by default ({})", name(chosen.depths), from);
  return fmt::format("{} for greedy, {} for sampled text by default ({})", name(chosen.depths),
                     name(chosen.sampled_depths), from);
}

// The CUDA backend has code for these.
bool RunsOnGpus(const ModelSpec& spec) {
  return spec.experts == 0 && !spec.two_states();
}

bool FewBits(const ModelWeights& weights) {
  return weights.core[0].qkv.parts[0].quantized != nullptr;
}

// Which precision to run this model in, and why.
std::string PrecisionText(const ModelSpec& spec, const ModelWeights& weights) {
  if (FewBits(weights)) {
    const LinearWeights& matrix = weights.core[0].qkv;
    return fmt::format("{} weights, read as they are{}", spec.weight_type,
                       matrix.IsInt8OfOutputs() || matrix.IsInt4OfGroups()
                           ? ""
                           : " on a CPU; on a GPU widened to bf16 at load");
  }
  return "int8 halves what is read and hardly changes the text (loopspec quantize --to int8); "
         "--kv-type int8 halves keys and values";
}

// What B starts with.
std::string InjectionText(const ModelSpec& spec) {
  switch (spec.injection) {
    case Injection::kNone:
      return "";
    case Injection::kLinear:
      return "adapter + ";
    case Injection::kDiagonal:
      return "injection by channel + ";
    case Injection::kOrthogonal:
      return "orthogonal injection + ";
  }
  return "";
}

// The state before the first recurrence.
std::string StateText(const ModelSpec& spec) {
  if (spec.start == StateStart::kPrelude) return "P's output";
  if (spec.start == StateStart::kHashed) return "a hash of position and channel";
  return spec.state_std > 0
             ? fmt::format("truncated normal, std {:.4g}", spec.state_std * spec.embed_scale)
             : "zeros";
}

constexpr int64_t kRequestTokens = 4096;

// Texts of kRequestTokens that 80 GB hold, each with a window of `window` bytes.
int64_t RequestsIn80Gb(int64_t per_token, int64_t window) {
  return 80'000'000'000 / (per_token * kRequestTokens + window);
}

// Keys and values by a plan; a GPU's take more where heads are padded.
struct PlannedKeys {
  int64_t per_token, window;
  int64_t requests() const { return RequestsIn80Gb(per_token, window); }
};

PlannedKeys PlanKeys(const ModelSpec& spec, int readouts, const SpannedKeyPlan& plan) {
  const KeptPlanes kept(spec, readouts, plan);
  const int64_t per_token =
      kept.BytesPerPosition(spec.kv_heads * 2 * KeyBytes(kOwnKeys, spec.head_dim));
  return {per_token, per_token * kPageSize * kept.window_pages()};
}

void RunInspect(const ModelOptions& options, bool json, bool verify) {
  if (verify) {
    const int files = hub::VerifyFiles(TextFolder(ResolveModel(options.model)));
    fmt::print(stderr, "{} files are what the manifest says\n", files);
  }
  const Model model = options.Load();
  const ModelSpec& spec = model.spec;
  const ModelWeights& weights = model.weights;
  const ChosenDepths chosen = options.ChooseDepths(model);
  const std::vector<int>& depths = chosen.depths;
  const PlaneMap planes(spec, static_cast<int>(depths.size()) + 1);
  const int64_t kv_per_token = int64_t{planes.count()} * spec.kv_size() * 2 * 2;
  const int64_t kv_int8 = int64_t{planes.count()} * spec.kv_heads * 2 * (spec.head_dim + 4);
  const KvChoice keys =
      ParseKvType(options.kv_type, ParseCompute(options.compute), spec,
                  IsCpu(options.ToEngineOptions()) ? DeviceClass::kCpu : DeviceClass::kGpu);
  const std::optional<PlannedKeys> planned =
      keys.plan ? std::optional(PlanKeys(spec, static_cast<int>(depths.size()) + 1, *keys.plan))
                : std::nullopt;
  const std::string dtype(weights.head.parts[0].type_name());
  const GenerationDefaults defaults =
      ReadGenerationDefaults(TextFolder(ResolveModel(options.model)));
  if (json) {
    OrderedJson out = {
        {"family", spec.family},
        {"parameters", weights.parameters},
        {"dtype", dtype},
        {"recurrence", spec.recurrence},
        {"hidden", spec.hidden},
        {"heads", spec.heads},
        {"kv_heads", spec.kv_heads},
        {"head_dim", spec.head_dim},
        {"ff", spec.ff},
        {"vocab", spec.vocab},
        {"max_positions", spec.max_positions},
        {"layers",
         {{"prelude", spec.prelude_layers},
          {"core", spec.core_layers},
          {"coda", spec.coda_layers}}},
        {"bytes",
         {{"prelude", weights.prelude_bytes()},
          {"core", weights.core_bytes()},
          {"coda", weights.coda_bytes()}}},
        {"gpu_weight_bytes",
         RunsOnGpus(spec) ? OrderedJson(weights.gpu_bytes()) : OrderedJson(nullptr)},
        {"default_depths", depths},
        {"default_depths_sampling", chosen.sampled_depths},
        {"calibration", chosen.file ? OrderedJson(chosen.file->string()) : OrderedJson(nullptr)},
        {"calibration_note", chosen.note.empty() ? OrderedJson(nullptr) : OrderedJson(chosen.note)},
        {"default_sampling", SamplingJson(defaults)},
        {"kv_planes", planes.count()},
        {"weight_type", spec.weight_type},
        {"kv_bytes_per_token_bf16", kv_per_token},
        {"kv_bytes_per_token_int8", kv_int8},
        {"bytes_per_token_autoregressive",
         weights.prelude_bytes() + weights.core_bytes() * static_cast<size_t>(spec.recurrence) +
             weights.coda_bytes()}};
    if (planned) {
      out["kv_type"] = "loops:" + keys.plan->text();
      out["kv_bytes_per_token"] = planned->per_token;
      out["kv_bytes_per_window"] = planned->window;
      out["requests_of_4096_tokens_in_80_gb"] = {{"bf16", RequestsIn80Gb(kv_per_token, 0)},
                                                 {"int8", RequestsIn80Gb(kv_int8, 0)},
                                                 {"plan", planned->requests()}};
    }
    fmt::print("{}\n", out.dump(2));
    return;
  }
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<28}{}\n", name, value);
  };
  fmt::print("{}: {} parameters, {}\n", spec.family,
             HumanCount(static_cast<double>(weights.parameters)), dtype);
  row("recurrences R", std::to_string(spec.recurrence));
  row("P, prelude", fmt::format("embedding + {} blocks{}{}, {}", spec.prelude_layers,
                                spec.prelude_norm ? " + norm" : "",
                                spec.injects_update() ? " + what B injects" : "",
                                HumanBytes(static_cast<double>(weights.prelude_bytes()))));
  row("B, one recurrence", fmt::format("{}{} blocks{}, {} read each time", InjectionText(spec),
                                       spec.core_layers, spec.loop_norm ? " + norm" : "",
                                       HumanBytes(static_cast<double>(weights.core_bytes()))));
  row("C, readout",
      fmt::format("{} blocks{} + head{}, {}", spec.coda_layers, spec.final_norm ? " + norm" : "",
                  spec.tied_head ? " (the embedding)" : "",
                  HumanBytes(static_cast<double>(weights.coda_bytes()))));
  row("block", fmt::format("hidden {}, heads {} / {} of {}, SwiGLU {}{}, norms {}{}", spec.hidden,
                           spec.heads, spec.kv_heads, spec.head_dim, spec.ff,
                           spec.experts > 0 ? fmt::format(", {} of {} experts", spec.active_experts,
                                                          spec.experts)
                                            : "",
                           NormText(spec), spec.qk_norm ? ", q and k normed" : ""));
  if (spec.two_states())
    row("states",
        fmt::format("two: {} updates of L, then one of H, {}{}", spec.low_cycles,
                    spec.split_core ? "half of the blocks each" : "all blocks",
                    spec.core_repeats > 1 ? fmt::format(" {} times", spec.core_repeats) : ""));
  row("vocabulary, context", fmt::format("{}, {} positions", spec.vocab, spec.max_positions));
  row("rotary", RopeText(spec.rope));
  if (spec.keeps_input()) row("initial state", StateText(spec));
  std::vector<int> readouts = depths;  // none where drafts do not pay
  readouts.push_back(spec.recurrence);
  row("KV per token, bf16",
      fmt::format("{} on {} planes (readouts at {})", HumanBytes(static_cast<double>(kv_per_token)),
                  planes.count(), fmt::join(readouts, ",")));
  row("KV per 1,000 tokens",
      fmt::format("{} as bf16, {} as int8", HumanBytes(1000.0 * static_cast<double>(kv_per_token)),
                  HumanBytes(1000.0 * static_cast<double>(kv_int8))));
  if (planned) {
    const auto per_token = static_cast<double>(planned->per_token);
    row("KV by the plan",
        fmt::format("{}: {} per token, {:.1f} % of bf16, and {} for the window of a text",
                    keys.plan->text(), HumanBytes(per_token),
                    100.0 * per_token / static_cast<double>(kv_per_token),
                    HumanBytes(static_cast<double>(planned->window))));
    row("texts of 4,096 in 80 GB",
        fmt::format("{} as bf16, {} as int8, {} by the plan", RequestsIn80Gb(kv_per_token, 0),
                    RequestsIn80Gb(kv_int8, 0), planned->requests()));
  }
  row("precision", PrecisionText(spec, weights));
  if (RunsOnGpus(spec))
    row("weights in GPU memory", HumanBytes(static_cast<double>(weights.gpu_bytes())));
  const double per_token = static_cast<double>(weights.prelude_bytes()) +
                           static_cast<double>(weights.core_bytes()) * spec.recurrence +
                           static_cast<double>(weights.coda_bytes());
  row("one token, autoregressive", fmt::format("{} of weights read", HumanBytes(per_token)));
  row("LoopSpec depths", DepthsText(spec, chosen));
  for (const auto& [view, choice] : {std::pair{"greedy", &chosen.greedy_choice},
                                     std::pair{"sampling", &chosen.sampled_choice}}) {
    if (choice->has_value())
      row("",
          fmt::format("{}: measured {} on {}, loopspec {}, {} positions of context, prompts: {}",
                      view, (*choice)->date, NameOf((*choice)->machine), (*choice)->version,
                      (*choice)->context, (*choice)->prompts));
  }
  if (chosen.file) row("", "from " + chosen.file->string());
  if (!chosen.note.empty()) row("", chosen.note);
  for (const StepCostOrigin& cost : KeptStepCosts(spec)) row("step costs", CostOriginText(cost));
  row("sampling by default", SamplingText(defaults));
  for (const auto& depth : {depths}) {
    if (depth.size() == 2 && depth[1] % depth[0] == 0 && spec.recurrence % depth[0] == 0) {
      row("branches at most", std::to_string(BranchBound(depth[0], depth[1], spec.recurrence)));
    }
  }
}

}  // namespace

void AddInspectCommand(Command app) {
  auto options = std::make_shared<ModelOptions>();
  auto json = std::make_shared<bool>(false);
  auto verify = std::make_shared<bool>(false);
  const Command command =
      app.AddCommand("inspect", "Show a model's parts, sizes and what one pass must read");
  options->AddTo(command);
  command.AddFlag("--json", *json, "Print JSON");
  command.AddFlag(
      "--verify", *verify,
      "Read all files and compare them with the release's artifact_manifest.json first");
  command.SetAction([options, json, verify] { RunInspect(*options, *json, *verify); });
}

}  // namespace loopspec::tools
