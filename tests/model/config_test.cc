// config.json: what is read, what is refused and in which words; tensors that are missing, unknown
// or misshapen.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "model/model.h"
#include "tests/support/ifm_models.h"
#include "tests/support/models.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

const char kOuro[] =
    R"({"model_type":"ouro","vocab_size":100,"hidden_size":32,"intermediate_size":64,
  "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"hidden_act":"silu",
  "max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000.0,"rope_scaling":null,"total_ut_steps":4,
  "early_exit_threshold":1.0,"tie_word_embeddings":true,"layer_types":["full_attention","full_attention"],
  "use_sliding_window":false,"sliding_window":null})";
const char kRaven[] =
    R"({"model_type":"huginn_raven","n_embd":32,"n_heads":4,"num_key_value_heads":2,"head_dim":8,
  "n_layers_in_prelude":1,"n_layers_in_recurrent_block":2,"n_layers_in_coda":1,"mean_recurrence":8,
  "intermediate_size":64,"vocab_size":90,"padded_vocab_size":96,"norm_eps":1e-5,"rope_theta":500000.0,
  "tie_embeddings":false,"qk_bias":false,"bias":false,"injection_type":"linear","test_time_noise":0,
  "init_values":{"std":0.1,"embed_scale":2.0},"max_position_embeddings":256})";

const char kNanbeige[] =
    R"({"model_type":"nanbeige","vocab_size":100,"hidden_size":48,"intermediate_size":64,
  "num_hidden_layers":3,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":16,"hidden_act":"silu",
  "max_position_embeddings":262144,"rms_norm_eps":1e-5,"rope_theta":7e7,"rope_scaling":null,"num_loops":2,
  "loop_loss_weights":[],"skip_loop_final_norm":false,"tie_word_embeddings":false,"attention_bias":false,
  "kv_channels":16,"pretraining_tp":1})";
const char kHuginn[] =
    R"({"model_type":"huginn_raven","auto_map":{"AutoModelForCausalLM":"raven_modeling_minimal.RavenForCausalLM"},
  "n_embd":64,"n_heads":4,"n_layers_in_prelude":2,"n_layers_in_recurrent_block":4,"n_layers_in_coda":2,
  "mean_recurrence":32,"intermediate_size":96,"vocab_size":90,"padded_vocab_size":96,"norm_eps":1e-6,
  "rope_base":50000,"block_size":4096,"tie_embeddings":true,"qk_bias":true,"bias":false,"injection_type":"linear",
  "nonlin_name":"SiLU","test_time_noise":0,"init_values":{"std":0.079,"embed_scale":1.0}})";

ModelSpec With(const char* base, const ConfigOverrides& overrides, int recurrence = 0) {
  return ParseModelSpec(base, "config.json", overrides, recurrence);
}

std::string ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void ExpectRefused(const char* base, const std::string& key, const std::string& value,
                   const std::string& named = "") {
  const std::string error = ErrorOf([&] { With(base, {{key, value}}); });
  EXPECT_NE(error.find(named.empty() ? key : named), std::string::npos)
      << key << "=" << value << ": " << error;
  EXPECT_NE(error, "no error");
  EXPECT_LT(error.size(), 400u);
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(Config, Ouro) {
  const ModelSpec spec = With(kOuro, {});
  EXPECT_EQ(spec.family, "ouro");
  EXPECT_EQ(spec.hidden, 32);
  EXPECT_EQ(spec.q_size(), 32);
  EXPECT_EQ(spec.kv_size(), 16);
  EXPECT_EQ(spec.recurrence, 4);
  EXPECT_EQ(spec.core_layers, 2);
  EXPECT_EQ(spec.prelude_layers + spec.coda_layers, 0);
  EXPECT_TRUE(spec.loop_norm && spec.tied_head && !spec.adapter() && !spec.final_norm);
  EXPECT_EQ(spec.norms, NormPlacement::kSandwich);
  EXPECT_EQ(With(kOuro, {}, 9).recurrence, 9);
  EXPECT_EQ(With(kOuro, {{"num_key_value_heads", "null"}}).kv_heads, 4);
  EXPECT_EQ(With(kOuro, {{"head_dim", "null"}}).head_dim, 8);
  EXPECT_EQ(With(kOuro, {{"total_ut_steps", "4.0"}}).recurrence, 4);
}

TEST(Config, Raven) {
  const ModelSpec spec = With(kRaven, {});
  EXPECT_EQ(spec.family, "raven");
  EXPECT_EQ(spec.vocab, 96);
  EXPECT_EQ(spec.recurrence, 8);
  EXPECT_DOUBLE_EQ(spec.embed_scale, 2.0);
  EXPECT_DOUBLE_EQ(spec.state_std, 0.1);
  EXPECT_EQ(spec.norms, NormPlacement::kPre);
  EXPECT_TRUE(spec.adapter() && spec.final_norm && !spec.qk_norm);
  const ModelSpec olmo =
      With(kRaven, {{"auto_map.AutoModelForCausalLM", "raven_modeling_minimal_olmo.X"}});
  EXPECT_TRUE(olmo.qk_norm);
  EXPECT_EQ(olmo.norms, NormPlacement::kPost);
  EXPECT_EQ(With(kRaven, {{"init_values.std", "0"}}).state_std, 0.0);
}

TEST(Config, Nanbeige) {
  const ModelSpec spec = With(kNanbeige, {});
  EXPECT_EQ(spec.family, "nanbeige");
  EXPECT_EQ(spec.q_size(), 96);  // not the width
  EXPECT_EQ(spec.kv_size(), 32);
  EXPECT_EQ(spec.recurrence, 2);
  EXPECT_EQ(spec.max_positions, 262144);
  EXPECT_EQ(spec.norms, NormPlacement::kPre);
  EXPECT_TRUE(spec.loop_norm && !spec.final_norm && !spec.adapter() && !spec.tied_head);
  // Its first loop was not trained to be read out.
  ASSERT_TRUE(spec.draft_depths);
  EXPECT_TRUE(spec.draft_depths->empty());
  const ModelSpec skip = With(kNanbeige, {{"skip_loop_final_norm", "true"}, {"num_loops", "3"}});
  EXPECT_TRUE(skip.final_norm && !skip.loop_norm);
  EXPECT_EQ(skip.recurrence, 3);
  // Losses at the loops before the last say how many there are, and that they can be read out.
  const ModelSpec losses = With(kNanbeige, {{"loop_loss_weights", "[0.1,0.2,0.3]"}});
  EXPECT_EQ(losses.recurrence, 4);
  EXPECT_FALSE(losses.draft_depths);
}

TEST(Config, NanbeigeRefusesEachKeyOfLaterModels) {
  for (const char* key :
       {"attention_bias", "mlp_bias", "qk_layernorm", "enable_double_loop_split", "loop_share_kv",
        "enable_hyper_connection", "enable_mhc", "enable_depth_attention", "use_sliding_window"}) {
    ExpectRefused(kNanbeige, key, "true");
    EXPECT_NO_THROW(With(kNanbeige, {{key, "false"}})) << key;
    EXPECT_NO_THROW(With(kNanbeige, {{key, "null"}})) << key;
  }
  ExpectRefused(kNanbeige, "emb_neighbor_num", "2");
  EXPECT_NO_THROW(With(kNanbeige, {{"emb_neighbor_num", "0"}}));
  ExpectRefused(kNanbeige, "insert_ngram_layer_idx", "[3]");
  EXPECT_NO_THROW(With(kNanbeige, {{"insert_ngram_layer_idx", "[]"}}));
  ExpectRefused(kNanbeige, "ngram_vocab_size", "1000");
  ExpectRefused(kNanbeige, "ngram_hash", "fnv");
  ExpectRefused(kNanbeige, "hidden_act", "gelu");
  ExpectRefused(kNanbeige, "rope_scaling", R"({"type":"dynamic","factor":2.0})", "dynamic");
  EXPECT_EQ(With(kNanbeige, {{"rope_scaling", R"({"type":"linear","factor":2.0})"}}).rope.factor,
            2.0);
  ExpectRefused(kNanbeige, "loop_loss_weights", "3");
  ExpectRefused(kNanbeige, "num_loops", "null");
  ExpectRefused(kNanbeige, "num_loops", "0");
}

TEST(Config, Huginn) {
  const ModelSpec spec = With(kHuginn, {});
  EXPECT_EQ(spec.family, "huginn");
  EXPECT_EQ(spec.heads, 4);
  EXPECT_EQ(spec.kv_heads, 4);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.vocab, 96);
  EXPECT_EQ(spec.max_positions, 4096);
  EXPECT_EQ(spec.norms, NormPlacement::kAfterSum);
  EXPECT_TRUE(spec.qk_bias && spec.rope.interleaved && spec.coda_norm && spec.final_norm);
  EXPECT_TRUE(spec.adapter() && spec.tied_head && !spec.loop_norm && !spec.qk_norm);
  EXPECT_DOUBLE_EQ(spec.rope.theta, 50000);
  EXPECT_DOUBLE_EQ(spec.embed_scale, 8.0);  // the root of the width, not init_values.embed_scale
  EXPECT_DOUBLE_EQ(spec.state_std, 0.079);
  EXPECT_EQ(spec.draft_depths, (std::vector<int>{4, 16}));
  // By its bias where the modelling file is not named; by its tensors where neither is.
  EXPECT_EQ(With(kHuginn, {{"auto_map", "null"}}).family, "huginn");
  EXPECT_EQ(With(kHuginn, {{"auto_map", "null"}, {"qk_bias", "false"}}).family, "raven");
  EXPECT_FALSE(With(kHuginn, {{"qk_bias", "false"}}).qk_bias);
}

TEST(Config, HuginnRefuses) {
  ExpectRefused(kHuginn, "test_time_noise", "0.1");
  ExpectRefused(kHuginn, "injection_type", "add");
  ExpectRefused(kHuginn, "nonlin_name", "GELU");
  ExpectRefused(kHuginn, "initial_state_mode", "zero");
  ExpectRefused(kHuginn, "bias", "true");
  ExpectRefused(kHuginn, "num_key_value_heads", "2");
  ExpectRefused(kHuginn, "n_layers_in_coda", "0");
  ExpectRefused(kHuginn, "block_size", "null");
  ExpectRefused(kHuginn, "rope_base", "null");
  // The retrofitted layouts have no such bias.
  const std::string error = ErrorOf([] {
    With(kRaven, {{"auto_map.AutoModelForCausalLM", "raven_modeling_minimal_llama.X"},
                  {"qk_bias", "true"}});
  });
  EXPECT_NE(error.find("qk_bias"), std::string::npos) << error;
}

// ---- IFM's: the facts are in an object "model" ----

ModelSpec Ifm(const std::string& recipe, const ConfigOverrides& overrides = {},
              int recurrence = 0) {
  return With(IfmConfig(recipe).dump().c_str(), overrides, recurrence);
}

TEST(IfmConfigs, Ouro) {
  const ModelSpec spec = Ifm("ouro");
  EXPECT_EQ(spec.family, "ifm");
  EXPECT_EQ(spec.hidden, 48);
  EXPECT_EQ(spec.heads, 6);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.ff, 80);
  EXPECT_EQ(spec.vocab, 160);
  EXPECT_EQ(spec.max_positions, 8192);
  EXPECT_EQ(spec.recurrence, 4);
  EXPECT_EQ(spec.norms, NormPlacement::kPre);
  EXPECT_TRUE(spec.final_norm && spec.rope.interleaved && !spec.loop_norm && !spec.tied_head);
  EXPECT_DOUBLE_EQ(spec.rope.theta, 10000);
  EXPECT_EQ(spec.injection, Injection::kNone);
  EXPECT_EQ(spec.start, StateStart::kPrelude);
  EXPECT_EQ(spec.draft_depths, std::vector<int>{});  // one depth was trained
  EXPECT_EQ(Ifm("raw-injection").injection, Injection::kDiagonal);
  const ModelSpec middle = Ifm("loop-from-1");
  EXPECT_EQ((std::vector{middle.prelude_layers, middle.core_layers, middle.coda_layers}),
            (std::vector{1, 1, 1}));
  EXPECT_EQ(Ifm("ouro", {{"model.num_kv_heads", "null"}}).kv_heads, 6);
  EXPECT_EQ(Ifm("ouro", {{"model.head_dim", "null"}}).head_dim, 8);
  EXPECT_EQ(Ifm("ouro", {{"model.loop_times", "null"}}).recurrence, 1);
  EXPECT_DOUBLE_EQ(Ifm("ouro", {{"model.rope_base", "null"}}).rope.theta, 100000);
}

TEST(IfmConfigs, Huginn) {
  const ModelSpec spec = Ifm("huginn");
  EXPECT_EQ((std::vector{spec.prelude_layers, spec.core_layers, spec.coda_layers}),
            (std::vector{2, 3, 1}));
  EXPECT_EQ(spec.injection, Injection::kDiagonal);
  EXPECT_EQ(spec.start, StateStart::kHashed);
  EXPECT_EQ(spec.recurrence, 8);
  EXPECT_EQ(Ifm("huginn", {}, 3).recurrence, 3);
  EXPECT_EQ(Ifm("huginn", {{"model.loop_times", "6"}}).recurrence, 6);
  const ModelSpec middle = Ifm("middle");
  EXPECT_EQ(middle.injection, Injection::kNone);
  EXPECT_EQ(middle.start, StateStart::kPrelude);
  const ModelSpec zero = Ifm("huginn", {{"model.huginn_state_init", "null"}});
  EXPECT_EQ(zero.start, StateStart::kNormal);
  EXPECT_EQ(zero.state_std, 0.0);
  const ModelSpec linear = Ifm("linear");
  EXPECT_TRUE(linear.adapter() && linear.adapter_bias && linear.loop_norm && linear.final_norm);
  EXPECT_FALSE(linear.draft_depths);  // trained at depths that were drawn
  EXPECT_FALSE(Ifm("linear", {{"model.apply_bias_term", "false"}}).adapter_bias);
  EXPECT_TRUE(Ifm("parcae").prelude_norm);
  const ModelSpec ortho = Ifm("orthoinj");
  EXPECT_EQ(ortho.injection, Injection::kOrthogonal);
  EXPECT_DOUBLE_EQ(ortho.injection_eps, 1e-3);
  EXPECT_EQ(Ifm("fixed", {{"model.huginn_sampling_scheme", "fixed"}}).draft_depths,
            std::vector<int>{});
}

TEST(IfmConfigs, RefusesWhatWouldChangeTheArithmetic) {
  const std::pair<const char*, const char*> refused[] = {
      {"attn_act_func", "softdelta"},
      {"qknorm", "true"},
      {"apply_attn_gate", "true"},
      {"scale_emb", "true"},
      {"moe_router_bias", "true"},
      {"apply_rmsnorm", "false"},
      {"apply_rmsnorm", "null"},
      {"swiglu", "false"},
      {"swiglu", "null"},
      {"norm_affine", "false"},
      {"layernorm_num_groups", "2"},
      {"residual_func", "ortho"},
      {"num_values", "4"},
      {"rope_head_dim", "8"},
      {"rope_head_dim", "0"},
      {"v_head_dim", "32"},
      {"output_size", "100"},
      {"terminal_kv", "true"},
      {"dense_prelude_input_injection", "diagonal"},
      {"num_experts", "-1"},
      {"num_shared_experts", "1"},
      {"num_dense_layers", "1"},
      {"moe_router_score_func", "softmax"},
      {"moe_router_scaling_factor", "2.5"},
      {"huginn_hierarchical_state", "three"},
      {"student", "{\"depth\": 2}"},
      {"arch", "gekko"},
      {"arch", "null"},
      {"huginn_state_init", "uniform"},
      {"huginn_input_injection", "add"},
      {"huginn_prelude_norm", "layer"},
      {"huginn_recurrent_exit_norm", "rms"},
      {"huginn_sampling_scheme", "uniform"},
      {"loop_times", "0"},
      {"num_layers", "3"},
      {"num_layers", "null"},
      {"model_dim", "0"},
      {"vocab_size", "null"},
      {"huginn_recurrent_layers", "2"},
      {"huginn_prelude_layers", "-1"},
      {"rmsnorm_eps", "-1"},
      {"huginn_prelude_orthogonal", "1"}};
  for (const auto& [key, value] : refused)
    ExpectRefused(IfmConfig("huginn").dump().c_str(), std::string("model.") + key, value, key);
  Json config = IfmConfig("huginn");
  for (const char* fine : {"causal_attn_backend", "fused_block", "recompute_q", "init_mode",
                           "huginn_diagonal_dt_init", "chunk_size", "huginn_depth_prior"})
    config["model"][fine] = "whatever";
  EXPECT_NO_THROW(With(config.dump().c_str(), {}));
}

TEST(IfmConfigs, MixturesAndTwoStates) {
  const ModelSpec moe = Ifm("moe-huginn");
  EXPECT_EQ(moe.experts, 5);
  EXPECT_EQ(moe.active_experts, 2);
  EXPECT_EQ(moe.ff, 24);
  EXPECT_EQ(moe.core_calls(), 3);
  const ModelSpec shared = Ifm("shared-hl");
  EXPECT_EQ(shared.recurrence, 2);
  EXPECT_EQ(shared.low_cycles, 3);
  EXPECT_EQ(shared.core_calls(), 4 * 4);
  EXPECT_FALSE(shared.split_core);
  EXPECT_EQ(Ifm("split-hl").core_calls(), 4 * 2);
  EXPECT_EQ(Ifm("split-hl-x2").core_calls(), 4 * 2 * 2);
  const auto error = [](const char* recipe, const char* key, const char* value) {
    return ErrorOf([&] { Ifm(recipe, {{std::string("model.") + key, value}}); });
  };
  EXPECT_NE(error("moe-ouro", "num_activated_experts", "6").find("num_activated_experts"),
            std::string::npos);
  EXPECT_NE(error("moe-ouro", "expert_inter_dim", "0").find("expert_inter_dim"), std::string::npos);
  EXPECT_NE(error("shared-hl", "loop_times", "5").find("loop_times is 5"), std::string::npos);
  EXPECT_NE(error("split-hl", "num_layers", "6").find("even number"), std::string::npos);
}

TEST(IfmConfigs, RefusesWhatDoesNotGoTogether) {
  const auto error = [](const char* recipe, const ConfigOverrides& overrides) {
    return ErrorOf([&] { Ifm(recipe, overrides); });
  };
  EXPECT_NE(error("linear", {{"model.huginn_prelude_orthogonal", "true"}}).find("diagonal"),
            std::string::npos);
  EXPECT_NE(error("middle", {{"model.huginn_state_init", "normal"}}).find("reach the state"),
            std::string::npos);
  EXPECT_NE(error("loop-from-1", {{"model.loop_input_injection", "diagonal"}})
                .find("loop_start_layer of 1"),
            std::string::npos);
  EXPECT_NE(error("ouro", {{"model.loop_start_layer", "3"}}).find("loop_start_layer"),
            std::string::npos);
  EXPECT_NE(error("ouro", {{"model.loop_end_layers", "4"}}).find("loop_end_layers"),
            std::string::npos);
  EXPECT_NE(error("huginn", {{"student", "{}"}}).find("student"), std::string::npos);
  // A key that nobody reads is a slip of the pen.
  EXPECT_NE(error("huginn", {{"model.loop_time", "4"}}).find("model.loop_time has no effect"),
            std::string::npos);
  EXPECT_NE(error("huginn", {{"loop_times", "4"}}).find("no effect"), std::string::npos);
}

TEST(IfmConfigs, NamesTensorsThatAreMissingOrUnknown) {
  const auto load = [](const Json& written, const Json& read) {
    return ErrorOf([&] {
      const TemporaryFolder folder;
      WriteIfmModel(written, folder.path());
      std::ofstream(folder / "config.json") << read.dump();
      Model::Load(folder.path());
    });
  };
  EXPECT_EQ(load(IfmConfig("parcae"), IfmConfig("parcae")), "no error");
  EXPECT_NE(load(IfmConfig("fixed"), IfmConfig("parcae")).find("huginn_prelude_norm_module.weight"),
            std::string::npos);
  EXPECT_NE(load(IfmConfig("parcae"), IfmConfig("fixed")).find("huginn_prelude_norm_module.weight"),
            std::string::npos);
  EXPECT_NE(load(IfmConfig("ouro"), IfmConfig("raw-injection")).find("input_adapter.weight"),
            std::string::npos);
}

TEST(Config, LoopedModelsOfLaterAreNamed) {
  for (const char* type : {"iquestloopcoder", "hrm_text", "parcae", "loopcoder"}) {
    ExpectRefused(kOuro, "model_type", type, type);
    ExpectRefused(kOuro, "model_type", type, "not supported yet");
  }
}

TEST(Config, RefusesWhatIsNotSupported) {
  ExpectRefused(kOuro, "use_sliding_window", "true");
  ExpectRefused(kOuro, "layer_types", R"(["full_attention","sliding_attention"])",
                "sliding_attention");
  ExpectRefused(kOuro, "layer_types", "3");
  ExpectRefused(kOuro, "early_exit_threshold", "0.5");
  ExpectRefused(kOuro, "early_exit_step", "2");
  ExpectRefused(kOuro, "attention_bias", "true");
  ExpectRefused(kOuro, "mlp_bias", "true");
  ExpectRefused(kOuro, "hidden_act", "gelu");
  ExpectRefused(kOuro, "model_type", "llama");
  ExpectRefused(kOuro, "rope_scaling.type", "dynamic", "dynamic");
  ExpectRefused(kOuro, "rope_scaling", "3");
  ExpectRefused(kRaven, "test_time_noise", "0.1");
  ExpectRefused(kRaven, "qk_bias", "true", "num_key_value_heads");  // a Huginn, then
  ExpectRefused(kRaven, "injection_type", "add");
  ExpectRefused(kRaven, "nonlin_name", "GELU");
  ExpectRefused(kRaven, "sliding_window", "512");
  ExpectRefused(kRaven, "initial_state_mode", "zero");
}

TEST(Config, RefusesWhatIsMissingOrOutOfRange) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings", "rms_norm_eps",
                          "rope_theta", "total_ut_steps", "model_type"}) {
    ExpectRefused(kOuro, key, "null");
    ExpectRefused(kOuro, key, "[1]");
    ExpectRefused(kOuro, key, "{}");
    if (std::string(key) == "model_type") continue;
    ExpectRefused(kOuro, key, "0");
    ExpectRefused(kOuro, key, "-1");
    ExpectRefused(kOuro, key, "text");
    ExpectRefused(kOuro, key, "true");
    if (std::string(key) == "rms_norm_eps" || std::string(key) == "rope_theta") continue;
    ExpectRefused(kOuro, key, "1.5");
    ExpectRefused(kOuro, key, "99999999999999999999");
    ExpectRefused(kOuro, key, "4000000000");
  }
  for (const char* key : {"n_embd", "n_heads", "n_layers_in_prelude", "n_layers_in_recurrent_block",
                          "n_layers_in_coda", "mean_recurrence", "norm_eps", "intermediate_size"}) {
    ExpectRefused(kRaven, key, "null");
    ExpectRefused(kRaven, key, "-1");
  }
  ExpectRefused(kOuro, "num_key_value_heads", "3", "3 key/value heads");
  ExpectRefused(kOuro, "head_dim", "7");
  ExpectRefused(kOuro, "head_dim", "0");
  ExpectRefused(kRaven, "init_values", "3");
  ExpectRefused(kRaven, "init_values.std", "-0.5", "std");
  ExpectRefused(kRaven, "init_values.embed_scale", "x", "embed_scale");
  ExpectRefused(kOuro, "rope_scaling", R"({"type":"llama3","factor":8.0})", "low_freq_factor");
  ExpectRefused(
      kOuro, "rope_scaling",
      R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,"original_max_position_embeddings":64})",
      "high_freq_factor");
}

// Without head_dim it is hidden / heads, which must come out even and whole; products must stay in
// range.
TEST(Config, RefusesHeadsThatDoNotFit) {
  const auto refused = [](const ConfigOverrides& overrides) {
    return ErrorOf([&] { With(kOuro, overrides); });
  };
  EXPECT_NE(
      refused({{"head_dim", "null"}, {"num_attention_heads", "64"}, {"num_key_value_heads", "64"}})
          .find("head"),
      std::string::npos);
  EXPECT_NE(
      refused({{"head_dim", "null"}, {"num_attention_heads", "3"}, {"num_key_value_heads", "3"}})
          .find("head"),
      std::string::npos);
  EXPECT_NE(refused({{"head_dim", "null"},
                     {"num_attention_heads", "1"},
                     {"num_key_value_heads", "1"},
                     {"hidden_size", "1000000"}})
                .find("head"),
            std::string::npos);
  EXPECT_NE(refused({{"head_dim", "4096"},
                     {"num_attention_heads", "1048576"},
                     {"num_key_value_heads", "1048576"}})
                .find("head"),
            std::string::npos);
}

TEST(Config, RecurrenceOverrideHasBoundsToo) {
  EXPECT_NE(ErrorOf([] { With(kOuro, {}, 2000000000); }).find("recurrence"), std::string::npos);
  EXPECT_EQ(With(kOuro, {}, 4096).recurrence, 4096);
}

TEST(Config, NotAConfig) {
  for (const char* text : {"", "{", "[]", "3", "null", "\"x\"", "{}", "{\"model_type\":3}",
                           "{\"model_type\":\"\"}", "\xFF"}) {
    EXPECT_THROW(ParseModelSpec(text, "config.json"), Error) << text;
  }
  EXPECT_NE(ErrorOf([] { ParseModelSpec(std::string(100000, '{'), "c"); }).find("nested"),
            std::string::npos);
  EXPECT_THROW(ReadModelSpec("/no/such/folder"), Error);
  EXPECT_THROW(ReadModelSpec(std::string(5000, 'x')), Error);
  EXPECT_THROW(ReadModelSpec("/dev/null/x"), Error);
}

TEST(Config, Overrides) {
  EXPECT_EQ(ParseOverride("a.b=c=d"), (std::pair<std::string, std::string>{"a.b", "c=d"}));
  EXPECT_THROW(ParseOverride("novalue"), Error);
  EXPECT_THROW(ParseOverride("=3"), Error);
  EXPECT_THROW(With(kOuro, {{"a..b", "1"}}), Error);
  EXPECT_THROW(With(kOuro, {{".a", "1"}}), Error);
  EXPECT_THROW(With(kOuro, {{"hidden_size.x", "1"}}), Error);
  EXPECT_THROW(With(kOuro, {{"hidden_size", std::string(120000, '[')}}), Error);
  EXPECT_THROW(With(kOuro, {{"hidden_size", std::string(60000, '[') + std::string(60000, ']')}}),
               Error);
}

TEST(Config, OverridesTakeWhatTheFileTakes) {
  // Read elsewhere, or in the file and read by nobody.
  EXPECT_NO_THROW(With(kOuro, {{"eos_token_id", "2"}}));
  EXPECT_NO_THROW(With(kRaven, {{"eos_token_id", "[1,2]"}, {"bos_token_id", "null"}}));
  const std::string more =
      R"({"torch_dtype": "bfloat16", "sliding_window": null, )" + std::string(kOuro).substr(1);
  EXPECT_NO_THROW(ParseModelSpec(more, "config.json", {{"torch_dtype", "float32"}}));
  EXPECT_NO_THROW(ParseModelSpec(more, "config.json", {{"sliding_window", "4096"}}));
  // A slip of the pen.
  EXPECT_THROW(ParseModelSpec(more, "config.json", {{"total_ut_step", "2"}}), Error);
}

// ---- Rotary embedding ----

// The text of an Ouro config with `rope` in place of its own rope keys.
std::string OuroWithRope(const Json& rope, int head_dim, int positions) {
  Json config = Json::parse(kOuro);
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config.update(rope);
  config["head_dim"] = head_dim;
  config["max_position_embeddings"] = positions;
  return config.dump();
}

// The frequencies and the attention factor of PyPI transformers (make_rope_data.py), which are
// float32, from a config of transformers 5 and from one of those before it.
TEST(Rope, ScalingAsTransformersHasIt) {
  const Json data = ReadJsonFile(std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "tests" / "model" /
                                 "data" / "rope.json");
  ASSERT_GE(data.at("cases").size(), 9u);
  for (const Json& entry : data.at("cases")) {
    const Json& parameters = entry.at("rope_parameters");
    Json scaling = parameters, older_scaling = parameters;
    scaling.erase("rope_theta");
    older_scaling.erase("rope_theta");
    older_scaling.erase("rope_type");
    older_scaling["type"] = parameters.at("rope_type");
    const Json forms[] = {
        {{"rope_parameters", parameters}},
        {{"rope_parameters", {{"full_attention", parameters}}}},
        {{"rope_theta", parameters.at("rope_theta")}, {"rope_scaling", scaling}},
        {{"rope_theta", parameters.at("rope_theta")}, {"rope_scaling", older_scaling}}};
    for (const Json& form : forms) {
      const ModelSpec spec = ParseModelSpec(
          OuroWithRope(form, entry.at("head_dim"), entry.at("max_position_embeddings")), "c");
      const auto expected = entry.at("frequencies").get<std::vector<double>>();
      const std::vector<double> found = spec.RopeFrequencies();
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 2e-6 * expected[i]) << parameters << " " << i;
      const double factor = entry.at("attention_factor").get<double>();
      EXPECT_NEAR(spec.rope.attention_factor, factor, 1e-12) << parameters;
      EXPECT_NEAR(spec.AttentionScale(), factor * factor / std::sqrt(spec.head_dim), 1e-12);
    }
  }
}

// What transformers 5 writes for a model without scaling: rope_parameters and dtype instead of
// rope_theta, rope_scaling and torch_dtype.
TEST(Rope, ConfigsOfTransformers5) {
  for (const char* base : {kOuro, kRaven, kNanbeige, kHuginn}) {
    Json config = Json::parse(base);
    const double theta = config.value("rope_theta", 50000.0);
    config.erase("rope_theta");
    config.erase("rope_base");
    config.erase("rope_scaling");
    config["dtype"] = "bfloat16";
    for (const char* type : {"default", ""}) {
      config["rope_parameters"] = {{"rope_theta", theta}};
      if (*type != 0) config["rope_parameters"]["rope_type"] = type;
      const ModelSpec spec = ParseModelSpec(config.dump(), "config.json");
      EXPECT_EQ(spec.RopeFrequencies(), With(base, {}).RopeFrequencies());
      EXPECT_EQ(spec.rope.scaling, RopeScaling::kNone);
    }
    // Nothing to go by.
    config["rope_parameters"] = Json::object();
    EXPECT_NE(ErrorOf([&] { ParseModelSpec(config.dump(), "c"); }).find("rope_"),
              std::string::npos);
    // Two answers.
    config["rope_parameters"] = {{"rope_theta", theta}};
    config["rope_theta"] = theta + 1;
    EXPECT_NE(ErrorOf([&] { ParseModelSpec(config.dump(), "c"); }).find("rope_parameters"),
              std::string::npos);
    config["rope_theta"] = theta;
    EXPECT_NO_THROW(ParseModelSpec(config.dump(), "c"));
  }
}

TEST(Rope, RefusesOtherScalingByName) {
  for (const char* type : {"dynamic", "longrope", "proportional", "su", ""}) {
    ExpectRefused(kOuro, "rope_scaling", fmt::format(R"({{"type":"{}","factor":2.0}})", type),
                  *type == 0 ? "rope_scaling" : type);
    ExpectRefused(kOuro, "rope_parameters",
                  fmt::format(R"({{"rope_type":"{}","rope_theta":10000.0,"factor":2.0}})", type),
                  *type == 0 ? "rope_parameters" : type);
  }
  ExpectRefused(kOuro, "rope_scaling", R"({"type":"linear"})", "factor");
  ExpectRefused(kOuro, "rope_scaling", R"({"type":"linear","factor":0})", "factor");
  ExpectRefused(kOuro, "rope_scaling", R"({"type":"yarn","factor":2,"beta_fast":1,"beta_slow":2})",
                "beta_fast");
  ExpectRefused(kOuro, "rope_parameters", "3");
  ExpectRefused(kOuro, "rope_parameters", R"({"full_attention":3})", "full_attention");
  ExpectRefused(kOuro, "rope_parameters",
                R"({"full_attention":{"rope_theta":1e4},"sliding_attention":{"rope_theta":1e5}})",
                "full_attention");
  ExpectRefused(kOuro, "partial_rotary_factor", "0.5");
  ExpectRefused(kOuro, "rope_parameters", R"({"rope_theta":1e4,"partial_rotary_factor":0.25})",
                "partial_rotary_factor");
}

TEST(Rope, Llama3Frequencies) {
  const ModelSpec plain = With(kOuro, {{"head_dim", "64"}});
  const ModelSpec scaled = With(
      kOuro,
      {{"head_dim", "64"},
       {"rope_scaling",
        R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":512})"}});
  const auto a = plain.RopeFrequencies(), b = scaled.RopeFrequencies();
  ASSERT_EQ(a.size(), 32u);
  bool kept = false, divided = false, between = false;
  for (size_t i = 0; i < a.size(); ++i) {
    const double turns = 512 * a[i] / (2 * M_PI);
    if (turns > 4) {
      EXPECT_DOUBLE_EQ(b[i], a[i]);
      kept = true;
    } else if (turns < 1) {
      EXPECT_DOUBLE_EQ(b[i], a[i] / 8);
      divided = true;
    } else {
      EXPECT_GE(b[i], a[i] / 8);
      EXPECT_LE(b[i], a[i]);
      between = true;
    }
    if (i > 0) {
      EXPECT_LT(b[i], b[i - 1]);
    }
  }
  EXPECT_TRUE(kept && divided && between);
}

// ---- Tensors ----

class Tampered : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::filesystem::copy_file(GoldenFolder() / GetParam() / "config.json",
                               folder_ / "config.json");
    original_ = std::make_unique<Checkpoint>(Checkpoint::Open(GoldenFolder() / GetParam()));
  }

  // Writes the checkpoint with `change` applied to its list of tensors, and loads it.
  std::string LoadError(const std::function<void(std::vector<NamedTensor>&)>& change) {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, view] : original_->tensors()) tensors.push_back({name, view});
    change(tensors);
    WriteSafetensors(folder_ / "model.safetensors", tensors);
    return ErrorOf([&] { Model::Load(folder_.path()); });
  }

  // May be there and is not used: Ouro's exit gate, Huginn's table of angles and its second copy of
  // the embedding.
  bool IsPassedOver(const std::string& name) const {
    const bool huginn = std::string(GetParam()).starts_with("huginn");
    return name.find("early_exit_gate") != std::string::npos || name == "freqs_cis" ||
           (huginn && name == "lm_head.weight");
  }

  TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> original_;
};

TEST_P(Tampered, EveryTensorIsMissedByName) {
  EXPECT_EQ(LoadError([](auto&) {}), "no error");
  const size_t count = original_->tensors().size();
  for (size_t i = 0; i < count; ++i) {
    std::string name;
    const std::string error = LoadError([&](std::vector<NamedTensor>& tensors) {
      name = tensors[i].name;
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
    });
    if (IsPassedOver(name)) continue;
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error, "no error") << name;
  }
}

TEST_P(Tampered, UnknownMisshapenAndMistyped) {
  const std::string unknown = LoadError([](auto& tensors) {
    tensors.push_back({"something.else", tensors[0].view});
  });
  EXPECT_NE(unknown.find("something.else"), std::string::npos) << unknown;
  for (size_t i = 0; i < original_->tensors().size(); i += 3) {
    std::string name;
    const std::string misshapen = LoadError([&](std::vector<NamedTensor>& tensors) {
      name = tensors[i].name;
      tensors[i].view.shape.back() -= 1;
    });
    if (IsPassedOver(name)) continue;
    EXPECT_NE(misshapen.find(name), std::string::npos) << misshapen;
    EXPECT_NE(misshapen.find("expected"), std::string::npos) << misshapen;
    const std::string mistyped = LoadError([&](std::vector<NamedTensor>& tensors) {
      auto& view = tensors[i].view;
      if (SizeOf(view.dtype) == 4) view.dtype = DType::kI32;
    });
    if (SizeOf(original_->tensors().at(name).dtype) == 4) {
      EXPECT_NE(mistyped.find("I32"), std::string::npos) << mistyped;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Tampered,
                         testing::Values("huginn-tiny-f32", "nanbeige-tiny-f32",
                                         "nanbeige-tiny-skipnorm-bf16", "ouro-tiny-f32",
                                         "ouro-tiny-gqa-bf16-sharded", "raven-llama-tiny-f32",
                                         "raven-olmo-tiny-bf16"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace loopspec
