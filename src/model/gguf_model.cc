#include "model/gguf_model.h"

#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "tensor/gguf.h"

namespace loopspec {
namespace {

struct Pair {
  std::string_view from, to;
};
// Names inside a layer. Ouro has four norms, Nanbeige two; releases name the second ones either
// way.
constexpr std::array<Pair, 13> kLayerNames = {
    {{"attn_q.weight", "self_attn.q_proj.weight"},
     {"attn_k.weight", "self_attn.k_proj.weight"},
     {"attn_v.weight", "self_attn.v_proj.weight"},
     {"attn_output.weight", "self_attn.o_proj.weight"},
     {"ffn_gate.weight", "mlp.gate_proj.weight"},
     {"ffn_up.weight", "mlp.up_proj.weight"},
     {"ffn_down.weight", "mlp.down_proj.weight"},
     {"attn_norm.weight", "input_layernorm.weight"},
     {"attn_post_norm.weight", "input_layernorm_2.weight"},
     {"post_attention_norm.weight", "input_layernorm_2.weight"},
     {"ffn_norm.weight", "post_attention_layernorm.weight"},
     {"ffn_post_norm.weight", "post_attention_layernorm_2.weight"},
     {"post_ffw_norm.weight", "post_attention_layernorm_2.weight"}}};
constexpr std::array<Pair, 3> kTopNames = {{{"token_embd.weight", "model.embed_tokens.weight"},
                                            {"output_norm.weight", "model.norm.weight"},
                                            {"output.weight", "lm_head.weight"}}};

// The released name; unknown names stay and are named when the model is bound.
std::string ReleasedName(const std::string& name) {
  for (const Pair& pair : kTopNames) {
    if (name == pair.from) return std::string(pair.to);
  }
  if (!name.starts_with("blk.")) return name;
  const size_t dot = name.find('.', 4);
  if (dot == std::string::npos) return name;
  for (const Pair& pair : kLayerNames) {
    if (std::string_view(name).substr(dot + 1) == pair.from)
      return fmt::format("model.layers.{}.{}", name.substr(4, dot - 4), pair.to);
  }
  return name;
}

OrderedJson MakeConfig(const Json& metadata, const TensorMap& tensors, const std::string& what) {
  const std::string architecture = FindString(metadata, "general.architecture", what).value_or("");
  if (architecture != "ouro" && architecture != "nanbeige") {
    Fail(
        "{}: architecture {:.40}, expected ouro or nanbeige (a looped model that says llama was "
        "converted without its loops: convert it again)",
        what, Printable(architecture.empty() ? "missing" : architecture));
  }
  const auto integer = [&](const char* key) -> OrderedJson {
    const std::string name = architecture + "." + key;
    const auto value = FindInt(metadata, name, what, 0, int64_t{1} << 40);
    if (!value) Fail("{}: {} is missing", what, name);
    return *value;
  };
  const auto number = [&](const char* key) -> OrderedJson {
    const std::string name = architecture + "." + key;
    const auto value = FindNumber(metadata, name, what);
    if (!value) Fail("{}: {} is missing", what, name);
    return *value;
  };
  const std::string loops = architecture + ".num_loops";
  if (!FindInt(metadata, loops, what, 1, 4096)) {
    Fail(
        "{}: {} is missing: the file does not say how often its layers are run, and once would "
        "answer garbage; convert it again",
        what, loops);
  }
  const auto embedding = tensors.find("token_embd.weight");
  if (embedding == tensors.end() || embedding->second.shape.size() != 2)
    Fail("{}: tensor token_embd.weight is missing or no matrix", what);
  if (const auto scaling = FindString(metadata, architecture + ".rope.scaling.type", what);
      scaling && *scaling != "none")
    Fail("{}: rotary scaling {:.40} is not supported in GGUF files", what, Printable(*scaling));
  OrderedJson config = {{"model_type", architecture},
                        {"vocab_size", embedding->second.shape[0]},
                        {"hidden_size", integer("embedding_length")},
                        {"intermediate_size", integer("feed_forward_length")},
                        {"num_hidden_layers", integer("block_count")},
                        {"num_attention_heads", integer("attention.head_count")},
                        {"num_key_value_heads", integer("attention.head_count_kv")},
                        {"max_position_embeddings", integer("context_length")},
                        {"rms_norm_eps", number("attention.layer_norm_rms_epsilon")},
                        {"rope_theta", number("rope.freq_base")},
                        {"tie_word_embeddings", !tensors.contains("output.weight")}};
  if (metadata.contains(architecture + ".attention.key_length"))
    config["head_dim"] = integer("attention.key_length");
  for (const char* id : {"bos", "eos"}) {
    const std::string name = fmt::format("tokenizer.ggml.{}_token_id", id);
    if (const auto value = FindInt(metadata, name, what, 0, INT32_MAX))
      config[fmt::format("{}_token_id", id)] = *value;
  }
  config[architecture == "ouro" ? "total_ut_steps" : "num_loops"] = integer("num_loops");
  if (architecture == "nanbeige") {
    config["skip_loop_final_norm"] =
        FindBool(metadata, "nanbeige.skip_loop_final_norm", what).value_or(false);
  }
  return config;
}

// Rows of q and k are stored for interleaved rotary: put back for half-split.
void Deinterleave(TensorView& view, int64_t head_dim,
                  std::vector<std::unique_ptr<std::byte[]>>& own) {
  if (view.quantized != nullptr) {
    auto matrix = std::make_shared<QuantizedTensor>(*view.quantized);
    matrix->interleaved_heads = head_dim;
    view.quantized = std::move(matrix);
    return;
  }
  const auto row_bytes = static_cast<size_t>(view.shape[1]) * SizeOf(view.dtype);
  auto copy = std::make_unique<std::byte[]>(view.bytes());
  for (int64_t row = 0; row < view.shape[0]; ++row) {
    const int64_t j = row % head_dim;
    const int64_t from = row - j + (j < head_dim / 2 ? 2 * j : 2 * (j - head_dim / 2) + 1);
    std::memcpy(copy.get() + static_cast<size_t>(row) * row_bytes,
                view.data + static_cast<size_t>(from) * row_bytes, row_bytes);
  }
  view.data = copy.get();
  own.push_back(std::move(copy));
}

}  // namespace

bool IsGguf(const std::filesystem::path& path) {
  return path.extension() == ".gguf";
}

std::string ParseGgufModel(std::span<const std::byte> file, const std::string& what,
                           TensorMap& tensors, std::vector<std::unique_ptr<std::byte[]>>& own) {
  Json metadata;
  TensorMap found = ParseGguf(file, what, metadata);
  const OrderedJson config = MakeConfig(metadata, found, what);
  const auto heads = config["num_attention_heads"].get<int64_t>();
  const int64_t head_dim = config.contains("head_dim") ? config["head_dim"].get<int64_t>()
                           : heads > 0 ? config["hidden_size"].get<int64_t>() / heads
                                       : 0;
  for (auto& [name, view] : found) {
    if (name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight")) {
      if (view.shape.size() != 2 || head_dim < 2 || head_dim % 2 != 0 ||
          view.shape[0] % head_dim != 0) {
        Fail("{}: tensor {} has shape {}, expected rows for heads of {}", what, Printable(name),
             ShapeText(view.shape), head_dim);
      }
      Deinterleave(view, head_dim, own);
    }
    if (!tensors.emplace(ReleasedName(name), std::move(view)).second)
      Fail("{}: two tensors stand for {}", what, ReleasedName(name));
  }
  return config.dump();
}

GgufModel OpenGguf(const std::filesystem::path& path) {
  MappedFile file(path);
  TensorMap tensors;
  std::vector<std::unique_ptr<std::byte[]>> own;
  GgufModel model;
  model.config = ParseGgufModel(file.bytes(), path.string(), tensors, own);
  model.checkpoint = Checkpoint::Of(path, std::move(file), std::move(tensors), std::move(own));
  return model;
}

}  // namespace loopspec
