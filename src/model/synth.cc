#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "tensor/dtype.h"

namespace loopspec {
namespace {

constexpr uint64_t kShardBytes = uint64_t{4} << 30;
constexpr size_t kPiece = size_t{1} << 19;  // elements made at a time

struct Shape {
  const char* name;
  bool raven, olmo;
  int prelude, core, coda, hidden, heads, kv_heads, head_dim, ff, vocab, recurrence, positions;
  double theta, eps;
  bool scaled_rope = false;  // llama3 scaling
};

constexpr Shape kShapes[] = {
    {"ouro-1.4b", false, false, 0, 24, 0, 2048, 16, 16, 128, 5632, 49152, 4, 65536, 1e6, 1e-6},
    {"ouro-2.6b", false, false, 0, 48, 0, 2048, 16, 16, 128, 5632, 49152, 4, 65536, 1e6, 1e-6},
    {"raven-llama", true, false, 4, 6, 4, 2048, 32, 8, 64, 8192, 128256, 32, 131072, 5e5, 1e-5,
     true},
    {"raven-olmo", true, true, 4, 6, 4, 2048, 16, 16, 128, 8192, 100352, 32, 4096, 5e5, 1e-6},
    {"raven-tinyllama", true, false, 4, 8, 4, 2048, 32, 4, 64, 5632, 32000, 32, 2048, 1e4, 1e-5},
};

// A tensor to be written: `scale` times uniform noise of variance one, plus `diagonal` on the
// diagonal of each square block (an adapter has two), or a constant (norms).
struct Plan {
  std::string name;
  std::vector<int64_t> shape;
  double scale = 0;
  double constant = 0;
  double diagonal[2] = {0, 0};

  int64_t elements() const { return shape.size() == 1 ? shape[0] : shape[0] * shape[1]; }
};

// How far states of different depths may lie apart, relative to their size, for the argmax over
// random logits to stay the same with this probability: the gap of the two largest of V normal
// logits is about 1 / sqrt(2 ln V) of their deviation, and a small shift s flips them with
// probability near 0.56 s sqrt(2 ln V).
double ShiftFor(double agreement, int vocab) {
  return (1.0 - agreement) / (0.56 * std::sqrt(2.0 * std::log(vocab)));
}

class Twin {
 public:
  Twin(const Shape& shape, double agreement) : s_(shape) {
    const double shift = ShiftFor(agreement, s_.vocab);
    if (s_.raven) {
      // x <- a x + (1 - a) e shrinks the distance to its limit by a in each recurrence; the drafts
      // come after two.
      keep_ = std::sqrt(std::min(shift, 0.9));
      branch_ = 0.02;
    } else {
      // Each recurrence moves the state by branch sqrt(2 layers), about the same way every time.
      branch_ = shift / (s_.recurrence - 1) / std::sqrt(2.0 * s_.core);
    }
  }

  std::vector<Plan> Tensors() const {
    std::vector<Plan> out;
    const std::string stem = s_.raven ? "transformer." : "model.";
    out.push_back(
        Matrix(stem + (s_.raven ? "wte.weight" : "embed_tokens.weight"), s_.vocab, s_.hidden, 1.0));
    if (s_.raven) {
      for (int i = 0; i < s_.prelude; ++i) RavenBlock(fmt::format("{}prelude.{}.", stem, i), out);
      Plan adapter = Matrix(stem + "adapter.weight", s_.hidden, 2 * s_.hidden, 1e-3);
      adapter.diagonal[0] = keep_;
      adapter.diagonal[1] = 1.0 - keep_;
      out.push_back(adapter);
      for (int i = 0; i < s_.core; ++i) RavenBlock(fmt::format("{}core_block.{}.", stem, i), out);
      for (int i = 0; i < s_.coda; ++i) RavenBlock(fmt::format("{}coda.{}.", stem, i), out);
      out.push_back(Norm(stem + "ln_f.weight", s_.hidden, 1.0));
    } else {
      for (int i = 0; i < s_.core; ++i) OuroBlock(fmt::format("{}layers.{}.", stem, i), out);
      out.push_back(Norm(stem + "norm.weight", s_.hidden, 1.0));
    }
    out.push_back(Matrix("lm_head.weight", s_.vocab, s_.hidden, 3.0 / std::sqrt(s_.hidden)));
    return out;
  }

  OrderedJson Config() const {
    OrderedJson c;
    c["loopspec_synthetic"] = true;
    c["torch_dtype"] = "bfloat16";
    c["vocab_size"] = s_.vocab;
    c["num_key_value_heads"] = s_.kv_heads;
    c["head_dim"] = s_.head_dim;
    c["intermediate_size"] = s_.ff;
    c["max_position_embeddings"] = s_.positions;
    c["rope_theta"] = s_.theta;
    if (s_.raven) {
      c["model_type"] = "huginn_raven";
      c["architectures"] = {"RavenForCausalLM"};
      c["auto_map"] = {
          {"AutoModelForCausalLM", s_.olmo ? "raven_modeling_minimal_olmo.RavenForCausalLM"
                                           : "raven_modeling_minimal_llama.RavenForCausalLM"}};
      c["n_embd"] = s_.hidden;
      c["n_heads"] = s_.heads;
      c["n_layers_in_prelude"] = s_.prelude;
      c["n_layers_in_recurrent_block"] = s_.core;
      c["n_layers_in_coda"] = s_.coda;
      c["mean_recurrence"] = s_.recurrence;
      c["padded_vocab_size"] = s_.vocab;
      c["norm_eps"] = s_.eps;
      c["tie_embeddings"] = false;
      c["bias"] = false;
      c["qk_bias"] = false;
      c["test_time_noise"] = 0;
      c["init_values"] = {{"std", 0.02}, {"embed_scale", 1.0}};
      if (s_.scaled_rope) {
        c["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", 32.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 8192}};
      }
    } else {
      c["model_type"] = "ouro";
      c["architectures"] = {"OuroForCausalLM"};
      c["hidden_size"] = s_.hidden;
      c["num_attention_heads"] = s_.heads;
      c["num_hidden_layers"] = s_.core;
      c["total_ut_steps"] = s_.recurrence;
      c["rms_norm_eps"] = s_.eps;
      c["hidden_act"] = "silu";
      c["early_exit_threshold"] = 1.0;
      c["tie_word_embeddings"] = false;
      c["rope_scaling"] = nullptr;
      c["bos_token_id"] = 0;
      c["eos_token_id"] = 0;
    }
    return c;
  }

 private:
  static Plan Matrix(std::string name, int64_t rows, int64_t cols, double deviation) {
    Plan plan{std::move(name), {rows, cols}};
    plan.scale = deviation;
    return plan;
  }
  static Plan Norm(std::string name, int64_t size, double value) {
    Plan plan{std::move(name), {size}};
    plan.constant = value;
    return plan;
  }
  double Unit(int in) const { return 1.0 / std::sqrt(in); }
  // Output of a sublayer whose norm comes before it: the matrix itself must be small.
  double Branch(int in) const { return (s_.olmo ? 1.0 : branch_) / std::sqrt(in); }

  void RavenBlock(const std::string& at, std::vector<Plan>& out) const {
    const int q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
    const double norm = s_.olmo ? branch_ : 1.0;
    out.push_back(Norm(at + "norm_1.weight", s_.hidden, norm));
    out.push_back(Norm(at + "norm_2.weight", s_.hidden, norm));
    if (s_.olmo) {
      out.push_back(Norm(at + "attn.q_norm.weight", q, 1.0));
      out.push_back(Norm(at + "attn.k_norm.weight", kv, 1.0));
    }
    out.push_back(Matrix(at + "attn.Wqkv.weight", q + 2 * kv, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "attn.proj.weight", s_.hidden, q, Branch(q)));
    out.push_back(Matrix(at + "mlp.fc.weight", 2 * s_.ff, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "mlp.proj.weight", s_.hidden, s_.ff, Branch(s_.ff)));
  }

  void OuroBlock(const std::string& at, std::vector<Plan>& out) const {
    const int q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
    out.push_back(Norm(at + "input_layernorm.weight", s_.hidden, 1.0));
    out.push_back(Norm(at + "input_layernorm_2.weight", s_.hidden, branch_));
    out.push_back(Norm(at + "post_attention_layernorm.weight", s_.hidden, 1.0));
    out.push_back(Norm(at + "post_attention_layernorm_2.weight", s_.hidden, branch_));
    out.push_back(Matrix(at + "self_attn.q_proj.weight", q, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "self_attn.k_proj.weight", kv, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "self_attn.v_proj.weight", kv, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "self_attn.o_proj.weight", s_.hidden, q, Unit(q)));
    out.push_back(Matrix(at + "mlp.gate_proj.weight", s_.ff, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "mlp.up_proj.weight", s_.ff, s_.hidden, Unit(s_.hidden)));
    out.push_back(Matrix(at + "mlp.down_proj.weight", s_.hidden, s_.ff, Unit(s_.ff)));
  }

  Shape s_;
  double branch_ = 0;  // size of a sublayer's contribution, beside a state of size one
  double keep_ = 0;    // Raven: how much of the state a recurrence keeps
};

// Elements [begin, begin + count) of a tensor; `number` keys its noise.
void Fill(const Plan& plan, uint64_t seed, uint32_t number, int64_t begin, size_t count,
          uint16_t* out) {
  const float width = static_cast<float>(plan.scale * std::sqrt(3.0));
  for (size_t i = 0; i < count;) {
    const uint64_t at = static_cast<uint64_t>(begin) + i;
    const PhiloxBlock block = Philox4x32(
        {{static_cast<uint32_t>(at / 8), static_cast<uint32_t>(at / 8 >> 32), number, 0}}, seed);
    for (uint64_t lane = at % 8; lane < 8 && i < count; ++lane, ++i) {
      const uint32_t half = block.v[lane / 2] >> (lane % 2 * 16) & 0xFFFFu;
      const float noise = (static_cast<float>(half) + 0.5f) * 0x1.0p-15f - 1.0f;
      out[i] = FloatToBF16(static_cast<float>(plan.constant) + width * noise);
    }
  }
  if (plan.diagonal[0] == 0 && plan.diagonal[1] == 0) return;
  const int64_t rows = plan.shape[0], cols = plan.shape[1];
  for (int64_t row = begin / cols; row <= (begin + static_cast<int64_t>(count) - 1) / cols; ++row) {
    for (int block = 0; block < 2; ++block) {
      const int64_t at = row * cols + block * rows + row - begin;
      if (at >= 0 && at < static_cast<int64_t>(count))
        out[at] = FloatToBF16(static_cast<float>(plan.diagonal[block]));
    }
  }
}

void WriteShard(const std::filesystem::path& path, const std::vector<Plan>& plans, size_t first,
                size_t last, uint64_t seed) {
  OrderedJson header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (size_t i = first; i < last; ++i) {
    const uint64_t end = offset + static_cast<uint64_t>(plans[i].elements()) * 2;
    header[plans[i].name] = {
        {"dtype", "BF16"}, {"shape", plans[i].shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream file(path, std::ios::binary);
  const auto length = static_cast<uint64_t>(text.size());
  for (int byte = 0; byte < 8; ++byte) file.put(static_cast<char>(length >> (8 * byte) & 0xFF));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<uint16_t> piece(kPiece);
  for (size_t i = first; i < last && file; ++i) {
    for (int64_t at = 0; at < plans[i].elements() && file; at += static_cast<int64_t>(kPiece)) {
      const size_t count = static_cast<size_t>(std::min<int64_t>(kPiece, plans[i].elements() - at));
      Fill(plans[i], seed, static_cast<uint32_t>(i), at, count, piece.data());
      file.write(reinterpret_cast<const char*>(piece.data()),
                 static_cast<std::streamsize>(count * 2));
    }
  }
  file.close();
  if (!file) Fail("{} cannot be written: is the disk full?", path.string());
}

void WriteJson(const std::filesystem::path& path, const OrderedJson& json) {
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) Fail("{} cannot be written", path.string());
}

}  // namespace

std::vector<std::string> SynthNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

SynthResult WriteSynthetic(const SynthRequest& request) {
  const auto* found = std::find_if(std::begin(kShapes), std::end(kShapes),
                                   [&](const Shape& s) { return request.like == s.name; });
  if (found == std::end(kShapes)) {
    Fail("there is no synthetic twin of {}, expected one of {}", request.like,
         fmt::join(SynthNames(), ", "));
  }
  if (!(request.agreement >= 0.0 && request.agreement <= 1.0))
    Fail("agreement is {}, expected 0 to 1", request.agreement);
  if (request.layers < 0 || request.layers > 4096)
    Fail("layers is {}, expected 1 to 4096", request.layers);
  Shape shape = *found;
  if (request.layers > 0) shape.core = request.layers;
  std::error_code error;
  std::filesystem::create_directories(request.output, error);
  if (error) Fail("{} cannot be made: {}", request.output.string(), error.message());
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    if (std::filesystem::exists(request.output / name, error)) {
      Fail("{} has a {} already, expected an empty folder", request.output.string(), name);
    }
  }

  const Twin twin(shape, request.agreement);
  const std::vector<Plan> plans = twin.Tensors();
  SynthResult result;
  result.tensors = static_cast<int>(plans.size());
  // Shards of at most kShardBytes; no tensor is larger.
  std::vector<size_t> cuts{0};
  uint64_t shard = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const uint64_t bytes = static_cast<uint64_t>(plans[i].elements()) * 2;
    if (shard > 0 && shard + bytes > kShardBytes) {
      cuts.push_back(i);
      shard = 0;
    }
    shard += bytes;
    result.bytes += bytes;
  }
  cuts.push_back(plans.size());
  result.files = static_cast<int>(cuts.size()) - 1;
  OrderedJson index;
  index["metadata"]["total_size"] = result.bytes;
  for (int f = 0; f < result.files; ++f) {
    const std::string name =
        result.files == 1 ? std::string("model.safetensors")
                          : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, result.files);
    WriteShard(request.output / name, plans, cuts[static_cast<size_t>(f)],
               cuts[static_cast<size_t>(f) + 1], request.seed);
    for (size_t i = cuts[static_cast<size_t>(f)]; i < cuts[static_cast<size_t>(f) + 1]; ++i) {
      index["weight_map"][plans[i].name] = name;
    }
  }
  if (result.files > 1) WriteJson(request.output / "model.safetensors.index.json", index);
  WriteJson(request.output / "config.json", twin.Config());
  return result;
}

}  // namespace loopspec
