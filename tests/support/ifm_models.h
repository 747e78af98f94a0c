// Tiny checkpoints in IFM's format, one for every recipe that was released, with random weights
// away from their defaults. Written by the names and shapes of the format alone.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/philox.h"
#include "tensor/safetensors.h"

namespace loopspec {

inline std::vector<std::string> IfmRecipes() {
  return {"ouro",       "raw-injection", "middle",   "middle-injection", "loop-from-1", "huginn",
          "zero-state", "fixed",         "linear",   "parcae",           "orthoinj",    "moe-ouro",
          "moe-huginn", "shared-hl",     "split-hl", "split-hl-x2"};
}

// config.json of a recipe. Heads times head_dim is not the width.
inline Json IfmConfig(const std::string& recipe) {
  Json model = {{"arch", "huginn"},
                {"num_layers", 6},
                {"model_dim", 48},
                {"num_heads", 6},
                {"num_kv_heads", 2},
                {"head_dim", 16},
                {"ffn_hidden_dim", 80},
                {"vocab_size", 160},
                {"rope_base", 10000},
                {"rmsnorm_eps", 1e-6},
                {"apply_rmsnorm", true},
                {"swiglu", true},
                {"apply_bias_term", true},
                {"loop_times", 8},
                {"loop_start_layer", 1},
                {"loop_end_layers", 3},
                {"huginn_prelude_layers", 2},
                {"huginn_coda_layers", 1},
                {"huginn_state_init", "normal"}};
  const bool part2 =
      recipe == "fixed" || recipe == "linear" || recipe == "parcae" || recipe == "orthoinj";
  if (part2) {
    model["num_layers"] = 4;
    model["huginn_prelude_layers"] = 1;
    model["huginn_recurrent_layers"] = 2;
    model["loop_times"] = 5;
    model["huginn_depth_control"] = true;
    model["huginn_sampling_scheme"] = "poisson-lognormal-capped";
  }
  if (recipe.ends_with("ouro") || recipe == "raw-injection" || recipe == "loop-from-1") {
    model["arch"] = "transformer";
    model["num_layers"] = 3;
    model["loop_times"] = 4;
    model["loop_start_layer"] = recipe == "loop-from-1" ? 1 : 0;
    model["loop_end_layers"] = recipe == "loop-from-1" ? Json(2) : Json(nullptr);
    model["loop_input_injection"] = recipe == "raw-injection" ? "diagonal" : "none";
  }
  if (recipe.starts_with("moe")) {
    model["num_experts"] = 5;
    model["num_activated_experts"] = 2;
    model["expert_inter_dim"] = 24;
  }
  if (recipe.find("-hl") != std::string::npos) {
    model["num_layers"] = 7;
    model["huginn_hierarchical_state"] = recipe == "shared-hl" ? "shared_hl" : "split_hl";
    model["huginn_split_module_repeats"] = recipe == "split-hl-x2" ? 2 : 1;
  }
  if (recipe.starts_with("middle")) model["huginn_state_init"] = "input";
  if (recipe == "middle") model["huginn_input_injection"] = "none";
  if (recipe == "zero-state") model["huginn_state_init"] = "zero";
  if (recipe == "linear") {
    model["huginn_input_injection"] = "linear";
    model["huginn_recurrent_exit_norm"] = "parameterless_rms";
  }
  if (recipe == "parcae") model["huginn_prelude_norm"] = "rms";
  if (recipe == "orthoinj") {
    model["huginn_prelude_orthogonal"] = true;
    model["huginn_ortho_projection_eps"] = 1e-3;
  }
  return {{"model", model}, {"tokenizer", {{"type", "huggingface"}, {"path", "tokenizer"}}}};
}

struct IfmTensor {
  std::string name;
  std::vector<int64_t> shape;
  double centre = 0, spread = 0;  // uniform around the centre
};

inline std::vector<IfmTensor> IfmTensors(const Json& config) {
  const Json& m = config["model"];
  const int64_t h = m["model_dim"], v = m["vocab_size"], ff = m["ffn_hidden_dim"];
  const int64_t q = m["num_heads"].get<int64_t>() * m["head_dim"].get<int64_t>();
  const int64_t kv = m["num_kv_heads"].get<int64_t>() * m["head_dim"].get<int64_t>();
  const auto matrix = [](std::string name, int64_t rows, int64_t columns, double size = 1.0) {
    return IfmTensor{
        std::move(name), {rows, columns}, 0, size * 1.7 / std::sqrt(static_cast<double>(columns))};
  };
  std::vector<IfmTensor> all = {matrix("embed.weight", v, h, std::sqrt(static_cast<double>(h)) / 2),
                                matrix("output.output.weight", v, h, 2.0),
                                {"output.final_norm.weight", {h}, 0.1, 0.4}};
  for (int i = 0; i < m["num_layers"].get<int>(); ++i) {
    const std::string at = fmt::format("layers.{}.", i);
    all.push_back({at + "attention.norm.weight", {h}, 0.1, 0.4});
    all.push_back(matrix(at + "attention.wq.weight", q, h, 1.5));
    all.push_back(matrix(at + "attention.wk.weight", kv, h, 1.5));
    all.push_back(matrix(at + "attention.wv.weight", kv, h));
    all.push_back(matrix(at + "attention.wo.weight", h, q));
    if (m.contains("num_experts")) {
      const int64_t n = m["num_experts"], f = m["expert_inter_dim"];
      all.push_back({at + "moe.norm.weight", {h}, -0.1, 0.4});
      all.push_back(matrix(at + "moe.router.weight", n, h));
      all.push_back(matrix(at + "moe.experts.weight1", n * f, h));
      all.push_back(matrix(at + "moe.experts.weight2", n * h, f));
      all.push_back(matrix(at + "moe.experts.weight3", n * f, h));
      continue;
    }
    all.push_back({at + "nffn.norm.weight", {h}, -0.1, 0.4});
    all.push_back(matrix(at + "nffn.fc1.weight", ff, h));
    all.push_back(matrix(at + "nffn.fc2.weight", h, ff));
    all.push_back(matrix(at + "nffn.fc3.weight", ff, h));
  }
  const bool huginn = m["arch"] == "huginn";
  const std::string injection = m.value(huginn ? "huginn_input_injection" : "loop_input_injection",
                                        huginn ? std::string("diagonal") : std::string("none"));
  const std::string at = huginn ? "input_injection." : "loop_input_injection_module.";
  if (injection == "diagonal") {
    all.push_back(matrix(at + "input_adapter.weight", h, h));
    all.push_back({at + "A_log", {h}, 0.0, 0.7});
    all.push_back({at + "dt_bias", {h}, 0.3, 0.7});
  } else if (injection == "linear") {
    all.push_back(matrix(at + "adapter.weight", h, 2 * h));
    all.push_back({at + "adapter.bias", {h}, 0.0, 0.3});
  }
  if (m.value("huginn_prelude_norm", "none") == "rms")
    all.push_back({"huginn_prelude_norm_module.weight", {h}, 0.1, 0.4});
  return all;
}

// Writes the checkpoint as a release has it: bf16, one shard, an index.
inline void WriteIfmModel(const Json& config, const std::filesystem::path& folder) {
  std::vector<std::vector<uint16_t>> memory;
  std::vector<NamedTensor> tensors;
  Json index = {{"weight_map", Json::object()}};
  const std::string shard = "model-00001-of-00001.safetensors";
  for (const IfmTensor& plan : IfmTensors(config)) {
    TensorView view{nullptr, DType::kBF16, plan.shape};
    std::vector<uint16_t>& values = memory.emplace_back(static_cast<size_t>(view.elements()));
    const auto number = static_cast<uint32_t>(memory.size());
    for (uint32_t i = 0; i < values.size(); ++i) {
      const PhiloxBlock block = Philox4x32({{i, number, 0, 0}}, 41);
      const double noise = 2.0 * UniformFrom(block.v[0], block.v[1]) - 1.0;
      values[i] = FloatToBF16(static_cast<float>(plan.centre + plan.spread * noise));
    }
    view.data = reinterpret_cast<const std::byte*>(values.data());
    tensors.push_back({plan.name, view});
    index["weight_map"][plan.name] = shard;
  }
  WriteSafetensors(folder / shard, tensors);
  std::ofstream(folder / "model.safetensors.index.json") << index.dump();
  std::ofstream(folder / "config.json") << config.dump();
}

}  // namespace loopspec
