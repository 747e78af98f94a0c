// IFM's looped models in plain double precision, from the formulas: every loop over the whole text,
// no key/value cache, no ModelSpec.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/safetensors.h"

namespace loopspec {

class IfmReference {
 public:
  using Vector = std::vector<double>;
  using Rows = std::vector<Vector>;  // one of each position

  // `model`: the inner object of config.json.
  IfmReference(const Json& model, const TensorMap& tensors)
      : m_(model),
        tensors_(tensors),
        heads_(model["num_heads"]),
        kv_heads_(model["num_kv_heads"]),
        dim_(model["head_dim"]),
        eps_(model["rmsnorm_eps"]) {}

  // Logits of every position after each of the first `loops` loops: [loop][position][token].
  std::vector<Rows> Logits(std::span<const int32_t> tokens, int loops) const {
    const bool huginn = m_["arch"] == "huginn";
    const int layers = m_["num_layers"];
    const int start =
        m_.value(huginn ? "huginn_prelude_layers" : "loop_start_layer", huginn ? 1 : 0);
    const int end =
        huginn ? layers - m_.value("huginn_coda_layers", 1) : OrElse("loop_end_layers", layers);
    Rows e;
    for (const int32_t token : tokens) e.push_back(Row("embed.weight", token));
    const Rows embedding = e;
    for (int i = 0; i < start; ++i) Layer(i, e);
    if (Text("huginn_prelude_norm", "none") == "rms") {
      for (Vector& row : e) row = Norm(row, "huginn_prelude_norm_module.weight");
    }
    const std::string begin = huginn ? Text("huginn_state_init", "zero") : "input";
    Rows s = e;
    for (size_t p = 0; p < s.size() && begin != "input"; ++p) {
      for (size_t c = 0; c < s[p].size(); ++c)
        s[p][c] = begin == "zero" ? 0.0 : HashedState(p, c, s[p].size());
    }
    if (Text("huginn_hierarchical_state", "none") != "none")
      return TwoStates(e, s, start, end, loops);
    std::vector<Rows> all;
    for (int loop = 0; loop < loops; ++loop) {
      for (size_t p = 0; p < s.size(); ++p)
        s[p] = huginn ? Injected(s[p], e[p], Text("huginn_input_injection", "diagonal"),
                                 "input_injection.")
                      : Injected(s[p], embedding[p], Text("loop_input_injection", "none"),
                                 "loop_input_injection_module.");
      for (int i = start; i < end; ++i) Layer(i, s);
      if (Text("huginn_recurrent_exit_norm", "none") != "none") {
        for (Vector& row : s) row = Norm(row, "");
      }
      all.push_back(ReadOut(s, end));
    }
    return all;
  }

  // Float32 steps, the sine rounded from double precision.
  static double HashedState(size_t position, size_t channel, size_t width) {
    float x = static_cast<float>(channel) * 0.013579f;
    float of_position = static_cast<float>(position) * 0.021713f;
    x = x + of_position;
    x = x + 0.123457f;
    float v = static_cast<float>(std::sin(static_cast<double>(x))) * 43758.5453123f;
    float z = v - std::floor(v);
    z = std::clamp<float>(z, 1e-6f, 0.999999f);
    float y = 2.0f * z;
    y = y - 1.0f;
    // The root of erf(t) = y by Newton's method.
    double t = 0.0;
    for (int i = 0; i < 100; ++i) {
      const double off = y > 0 ? -std::erfc(t) + (1.0 - static_cast<double>(y))
                               : std::erfc(-t) - (1.0 + static_cast<double>(y));
      t -= std::clamp(off / (2.0 / std::sqrt(M_PI) * std::exp(-t * t)), -0.5, 0.5);
    }
    return t * std::sqrt(2.0 / static_cast<double>(width));
  }

 private:
  Rows ReadOut(Rows s, int end) const {
    for (int i = end; i < m_["num_layers"].get<int>(); ++i) Layer(i, s);
    for (Vector& row : s)
      row = Times("output.output.weight", Norm(row, "output.final_norm.weight"));
    return s;
  }

  // H from e, L from `low`: L l times, then H, each from their sum.
  std::vector<Rows> TwoStates(const Rows& e, Rows low, int start, int end, int cycles) const {
    const bool split = Text("huginn_hierarchical_state", "") == "split_hl";
    const int half = start + (end - start) / 2;
    Rows high = e;
    const auto update = [&](Rows& state, const Rows& other, int first, int last) {
      for (size_t p = 0; p < state.size(); ++p) {
        Add(state[p], other[p]);
        state[p] = Injected(state[p], e[p], Text("huginn_input_injection", "diagonal"),
                            "input_injection.");
      }
      for (int i = 0; i < m_.value("huginn_split_module_repeats", 1); ++i) {
        for (int layer = first; layer < last; ++layer) Layer(layer, state);
      }
    };
    std::vector<Rows> all;
    for (int cycle = 0; cycle < cycles; ++cycle) {
      for (int i = 0; i < m_.value("huginn_hierarchical_l_cycles", 3); ++i)
        update(low, high, split ? half : start, end);
      update(high, low, start, split ? half : end);
      all.push_back(ReadOut(high, end));
    }
    return all;
  }

  std::string Text(const char* key, const char* otherwise) const {
    return m_.value(key, std::string(otherwise));
  }
  int OrElse(const char* key, int otherwise) const {
    return m_.contains(key) && !m_[key].is_null() ? m_[key].get<int>() : otherwise;
  }

  // The rows of a tensor, read once.
  const Rows& Values(const std::string& name) const {
    Rows& rows = values_[name];
    if (!rows.empty()) return rows;
    const TensorView& view = tensors_.at(name);
    const int64_t width = view.shape.back();
    for (int64_t at = 0; at < view.elements(); ++at) {
      if (at % width == 0) rows.emplace_back();
      rows.back().push_back(LoadElement(view.data, view.dtype, at));
    }
    return rows;
  }
  const Vector& Row(const std::string& name, int64_t row) const {
    return Values(name)[static_cast<size_t>(row)];
  }
  const Vector& All(const std::string& name) const { return Row(name, 0); }

  Vector Times(const std::string& name, const Vector& x) const {
    Vector out;
    for (const Vector& row : Values(name)) out.push_back(Dot(row, x));
    return out;
  }

  static double Dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }

  // Weights are one more than stored; without a name there are none.
  Vector Norm(const Vector& x, const std::string& name) const {
    const double scale = 1.0 / std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + eps_);
    const Vector stored = name.empty() ? Vector(x.size(), 0.0) : All(name);
    Vector out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * (1.0 + stored[i]));
    return out;
  }

  Vector Injected(const Vector& s, const Vector& e, const std::string& kind,
                  const std::string& at) const {
    if (kind == "none") return s;
    if (kind == "linear") {
      Vector both = s;
      both.insert(both.end(), e.begin(), e.end());
      Vector out = Times(at + "adapter.weight", both);
      const Vector bias = All(at + "adapter.bias");
      for (size_t i = 0; i < out.size(); ++i) out[i] += bias[i];
      return out;
    }
    const Vector we = Times(at + "input_adapter.weight", e), log_a = All(at + "A_log"),
                 bias = All(at + "dt_bias");
    Vector k, u;
    for (size_t i = 0; i < s.size(); ++i) {
      const double dt = std::log(1.0 + std::exp(bias[i]));
      k.push_back(std::exp(-dt * std::exp(log_a[i])) * s[i]);
      u.push_back(dt * we[i]);
    }
    const bool orthogonal = m_.value("huginn_prelude_orthogonal", false);
    const double part =
        orthogonal ? Dot(k, u) / (Dot(u, u) + m_.value("huginn_ortho_projection_eps", 1e-6)) : 0.0;
    for (size_t i = 0; i < s.size(); ++i) k[i] += u[i] - part * u[i];
    return k;
  }

  // Pairs (2i, 2i + 1) turn by position * base^(-2i / dim).
  void Rotate(Vector& x, int heads, size_t position) const {
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < dim_; i += 2) {
        const double angle = static_cast<double>(position) *
                             std::pow(m_["rope_base"].get<double>(), -1.0 * i / dim_);
        double& a = x[static_cast<size_t>(head * dim_ + i)];
        double& b = x[static_cast<size_t>(head * dim_ + i + 1)];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = turned;
      }
    }
  }

  void Layer(int layer, Rows& x) const {
    const std::string at = fmt::format("layers.{}.", layer);
    Rows q, k, v;
    for (size_t p = 0; p < x.size(); ++p) {
      const Vector n = Norm(x[p], at + "attention.norm.weight");
      q.push_back(Times(at + "attention.wq.weight", n));
      k.push_back(Times(at + "attention.wk.weight", n));
      v.push_back(Times(at + "attention.wv.weight", n));
      Rotate(q[p], heads_, p);
      Rotate(k[p], kv_heads_, p);
    }
    for (size_t p = 0; p < x.size(); ++p) {
      Vector mixed;
      for (int head = 0; head < heads_; ++head) {
        const auto from = static_cast<size_t>(head * dim_);
        const auto shared = static_cast<size_t>(head / (heads_ / kv_heads_) * dim_);
        Vector weights;
        double sum = 0;
        for (size_t other = 0; other <= p; ++other) {
          double score = 0;
          for (size_t i = 0; i < static_cast<size_t>(dim_); ++i)
            score += q[p][from + i] * k[other][shared + i];
          weights.push_back(std::exp(score / std::sqrt(dim_)));
          sum += weights.back();
        }
        for (size_t i = 0; i < static_cast<size_t>(dim_); ++i) {
          double out = 0;
          for (size_t other = 0; other <= p; ++other)
            out += weights[other] / sum * v[other][shared + i];
          mixed.push_back(out);
        }
      }
      Add(x[p], Times(at + "attention.wo.weight", mixed));
      if (m_.value("num_experts", 0) > 0) {
        Mixture(at + "moe.", x[p]);
        continue;
      }
      const Vector n = Norm(x[p], at + "nffn.norm.weight");
      Vector gate = Times(at + "nffn.fc1.weight", n);
      const Vector up = Times(at + "nffn.fc3.weight", n);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
      Add(x[p], Times(at + "nffn.fc2.weight", gate));
    }
  }

  void Mixture(const std::string& at, Vector& x) const {
    const Vector n = Norm(x, at + "norm.weight");
    Vector score = Times(at + "router.weight", n);
    for (double& s : score) s = 1.0 / (1.0 + std::exp(-s));
    std::vector<size_t> order(score.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return score[a] > score[b]; });
    order.resize(m_["num_activated_experts"].get<size_t>());
    double sum = 0;
    for (const size_t expert : order) sum += score[expert];
    const int64_t f = m_["expert_inter_dim"], h = static_cast<int64_t>(x.size());
    Vector out(x.size(), 0.0);
    for (const size_t expert : order) {
      const auto e = static_cast<int64_t>(expert);
      Vector inner;
      for (int64_t i = 0; i < f; ++i) {
        const double gate = Dot(Row(at + "experts.weight1", e * f + i), n);
        inner.push_back(gate / (1.0 + std::exp(-gate)) *
                        Dot(Row(at + "experts.weight3", e * f + i), n));
      }
      for (int64_t i = 0; i < h; ++i)
        out[static_cast<size_t>(i)] +=
            score[expert] / sum * Dot(Row(at + "experts.weight2", e * h + i), inner);
    }
    Add(x, out);
  }

  static void Add(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const Json& m_;
  const TensorMap& tensors_;
  mutable std::map<std::string, Rows> values_;
  const int heads_, kv_heads_, dim_;
  const double eps_;
};

}  // namespace loopspec
