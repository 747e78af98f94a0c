// config.json: what is read, what is refused and in which words; tensors that are missing, unknown
// or misshapen.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "model/model.h"
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
  EXPECT_TRUE(spec.loop_norm && spec.tied_head && !spec.adapter && !spec.final_norm);
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
  EXPECT_TRUE(spec.adapter && spec.final_norm && !spec.qk_norm);
  const ModelSpec olmo =
      With(kRaven, {{"auto_map.AutoModelForCausalLM", "raven_modeling_minimal_olmo.X"}});
  EXPECT_TRUE(olmo.qk_norm);
  EXPECT_EQ(olmo.norms, NormPlacement::kPost);
  EXPECT_EQ(With(kRaven, {{"init_values.std", "0"}}).state_std, 0.0);
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
  ExpectRefused(kOuro, "rope_scaling.type", "yarn", "yarn");
  ExpectRefused(kOuro, "rope_scaling", "3");
  ExpectRefused(kRaven, "test_time_noise", "0.1");
  ExpectRefused(kRaven, "qk_bias", "true");
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

TEST(Config, Llama3Frequencies) {
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
    if (name.find("early_exit_gate") != std::string::npos)
      continue;  // may be there and is not used
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
    if (name.find("early_exit_gate") != std::string::npos) continue;
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
                         testing::Values("ouro-tiny-f32", "ouro-tiny-gqa-bf16-sharded",
                                         "raven-llama-tiny-f32", "raven-olmo-tiny-bf16"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace loopspec
