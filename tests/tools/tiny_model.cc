#include "tests/tools/tiny_model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace loopspec::test {
namespace {

// Small values that differ from element to element; norms are ones.
float Value(const std::string& name, int64_t index, int64_t rank) {
  if (rank == 1) return 1.0f;
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  hash = (hash ^ static_cast<uint32_t>(index)) * 16777619u;
  hash ^= hash >> 15;
  return static_cast<float>(hash % 2001) / 1000.0f - 1.0f;
}

}  // namespace

TinyModel TinyModel::Ouro() {
  TinyModel model;
  model.config = {
      {"model_type", "ouro"},        {"vocab_size", 3},        {"hidden_size", 4},
      {"intermediate_size", 6},      {"num_hidden_layers", 1}, {"num_attention_heads", 2},
      {"num_key_value_heads", 1},    {"head_dim", 2},          {"max_position_embeddings", 64},
      {"rms_norm_eps", 1e-6},        {"rope_theta", 10000.0},  {"total_ut_steps", 4},
      {"tie_word_embeddings", false}};
  const std::string at = "model.layers.0.";
  model.tensors = {{"model.embed_tokens.weight", {3, 4}},
                   {at + "input_layernorm.weight", {4}},
                   {at + "input_layernorm_2.weight", {4}},
                   {at + "post_attention_layernorm.weight", {4}},
                   {at + "post_attention_layernorm_2.weight", {4}},
                   {at + "self_attn.q_proj.weight", {4, 4}},
                   {at + "self_attn.k_proj.weight", {2, 4}},
                   {at + "self_attn.v_proj.weight", {2, 4}},
                   {at + "self_attn.o_proj.weight", {4, 4}},
                   {at + "mlp.gate_proj.weight", {6, 4}},
                   {at + "mlp.up_proj.weight", {6, 4}},
                   {at + "mlp.down_proj.weight", {4, 6}},
                   {"model.norm.weight", {4}},
                   {"lm_head.weight", {3, 4}}};
  return model;
}

TinyModel TinyModel::Raven() {
  TinyModel model;
  model.config = {{"model_type", "huginn_raven"},
                  {"vocab_size", 3},
                  {"padded_vocab_size", 3},
                  {"n_embd", 4},
                  {"n_heads", 2},
                  {"num_key_value_heads", 1},
                  {"head_dim", 2},
                  {"intermediate_size", 6},
                  {"n_layers_in_prelude", 1},
                  {"n_layers_in_recurrent_block", 1},
                  {"n_layers_in_coda", 1},
                  {"mean_recurrence", 8},
                  {"norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"tie_embeddings", false},
                  {"max_position_embeddings", 64},
                  {"init_values", {{"std", 0.4}, {"embed_scale", 1.0}}}};
  model.tensors = {{"transformer.wte.weight", {3, 4}}};
  for (const char* stack : {"prelude", "core_block", "coda"}) {
    const std::string at = std::string("transformer.") + stack + ".0.";
    for (const TinyTensor& tensor : std::vector<TinyTensor>{{at + "norm_1.weight", {4}},
                                                            {at + "norm_2.weight", {4}},
                                                            {at + "attn.Wqkv.weight", {8, 4}},
                                                            {at + "attn.proj.weight", {4, 4}},
                                                            {at + "mlp.fc.weight", {12, 4}},
                                                            {at + "mlp.proj.weight", {4, 6}}}) {
      model.tensors.push_back(tensor);
    }
  }
  model.tensors.push_back({"transformer.adapter.weight", {4, 8}});
  model.tensors.push_back({"transformer.ln_f.weight", {4}});
  model.tensors.push_back({"lm_head.weight", {3, 4}});
  return model;
}

TinyTensor& TinyModel::tensor(const std::string& name) {
  for (TinyTensor& entry : tensors) {
    if (entry.name == name) return entry;
  }
  throw std::out_of_range(name);
}

void TinyModel::Remove(const std::string& name) {
  std::erase_if(tensors, [&](const TinyTensor& entry) { return entry.name == name; });
}

std::string TinyModel::Safetensors() const {
  Json header = Json::object();
  std::string data;
  for (const TinyTensor& entry : tensors) {
    int64_t count = 1;
    for (const int64_t extent : entry.shape) count *= extent;
    const size_t begin = data.size();
    for (int64_t i = 0; i < count; ++i) {
      const float value = Value(entry.name, i, static_cast<int64_t>(entry.shape.size()));
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof(size));
  return file + text + data;
}

std::string TinyModel::Save(const Scratch& scratch, const std::string& folder) const {
  scratch.Write(folder + "/config.json", config.dump());
  scratch.Write(folder + "/model.safetensors", Safetensors());
  return scratch / folder;
}

}  // namespace loopspec::test
