#include "tests/backends/cuda/prefill_reference.h"

namespace loopspec {
namespace {

using Vector = std::vector<double>;

struct Layer {
  ReferenceMatrix qkv, attn_out, gate_up, down;
};

void Rotate(const ModelSpec& spec, int position, double* head) {
  const std::vector<double> frequencies = spec.RopeFrequencies();
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const double cosine = std::cos(position * frequencies[i]);
    const double sine = std::sin(position * frequencies[i]);
    double& a = head[spec.rope.interleaved ? 2 * i : i];
    double& b = head[spec.rope.interleaved ? 2 * i + 1 : i + half];
    const double low = a, high = b;
    a = low * cosine - high * sine;
    b = high * cosine + low * sine;
  }
}

void Add(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// All positions through one layer.
void RunLayer(const ModelSpec& spec, const Layer& layer, std::vector<Vector>& stream) {
  const bool before = spec.norms != NormPlacement::kPost;
  const bool after = spec.norms == NormPlacement::kPost || spec.norms == NormPlacement::kSandwich;
  const bool after_sum = spec.norms == NormPlacement::kAfterSum;
  const auto in = [&](const Vector& x) { return before ? ReferenceNorm(x, spec.norm_eps) : x; };
  const auto out = [&](const Vector& x) { return after ? ReferenceNorm(x, spec.norm_eps) : x; };
  const auto dim = static_cast<size_t>(spec.head_dim), positions = stream.size();
  // [head][position][dim]
  std::vector<Vector> keys(static_cast<size_t>(spec.kv_heads)), values(keys);
  std::vector<Vector> queries;
  for (size_t t = 0; t < positions; ++t) {
    Vector qkv = layer.qkv.Times(in(stream[t]));
    // Vectors of random models are ones.
    for (int i = 0; spec.qk_bias && i < spec.q_size() + spec.kv_size(); ++i)
      qkv[static_cast<size_t>(i)] += 1;
    for (int h = 0; h < spec.heads + spec.kv_heads; ++h)
      Rotate(spec, static_cast<int>(t), qkv.data() + static_cast<size_t>(h) * dim);
    for (size_t h = 0; h < keys.size(); ++h) {
      const double* key = qkv.data() + static_cast<size_t>(spec.q_size()) + h * dim;
      const double* value = key + spec.kv_size();
      keys[h].insert(keys[h].end(), key, key + dim);
      values[h].insert(values[h].end(), value, value + dim);
    }
    queries.push_back(std::move(qkv));
  }
  for (size_t t = 0; t < positions; ++t) {
    Vector heads;
    for (int h = 0; h < spec.heads; ++h) {
      const auto kv = static_cast<size_t>(h / (spec.heads / spec.kv_heads));
      const Vector o =
          ReferenceAttention(queries[t].data() + static_cast<size_t>(h) * dim, keys[kv].data(),
                             values[kv].data(), static_cast<int>(t) + 1, spec.head_dim);
      heads.insert(heads.end(), o.begin(), o.end());
    }
    Add(stream[t], out(layer.attn_out.Times(heads)));
    if (after_sum) stream[t] = ReferenceNorm(stream[t], spec.norm_eps);
    const Vector gate_up = layer.gate_up.Times(in(stream[t]));
    const auto ff = static_cast<size_t>(spec.ff);
    Vector mixed(ff);
    for (size_t i = 0; i < ff; ++i)
      mixed[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[ff + i];
    Add(stream[t], out(layer.down.Times(mixed)));
    if (after_sum) stream[t] = ReferenceNorm(stream[t], spec.norm_eps);
  }
}

}  // namespace

std::vector<double> ReferenceLogits(const cuda::DeviceModel& model,
                                    const std::vector<int32_t>& tokens) {
  using cuda::TileLayout;
  const ModelSpec& spec = model.spec;
  std::vector<Layer> layers;
  for (const cuda::DeviceLayer& b : model.core) {
    layers.push_back(
        {ReferenceMatrix(b.qkv, TileLayout::Qkv(spec), spec.q_size() + 2 * spec.kv_size()),
         ReferenceMatrix(b.attn_out, TileLayout::Plain(spec.hidden), spec.hidden),
         ReferenceMatrix(b.gate_up, TileLayout::GateUp(spec), 2 * spec.ff),
         ReferenceMatrix(b.down, TileLayout::Plain(spec.hidden), spec.hidden)});
  }
  const TileLayout words = TileLayout::Plain(spec.vocab);
  const ReferenceMatrix embedding(model.embedding, words, spec.vocab);
  const ReferenceMatrix head(model.head, words, spec.vocab);
  std::vector<Vector> stream;
  for (const int32_t token : tokens) {
    stream.emplace_back(embedding.Row(token), embedding.Row(token) + spec.hidden);
    for (double& v : stream.back()) v *= spec.embed_scale;
  }
  for (int r = 0; r < spec.recurrence; ++r) {
    for (const Layer& layer : layers) RunLayer(spec, layer, stream);
    if (!spec.loop_norm) continue;
    for (Vector& x : stream) x = ReferenceNorm(x, spec.norm_eps);
  }
  Vector logits;
  for (const Vector& x : stream) {
    const Vector row = head.Times(spec.final_norm ? ReferenceNorm(x, spec.norm_eps) : x);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace loopspec
