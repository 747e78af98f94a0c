// Plain references for the GPU's prompts, in double precision on the host: slow, and easy to read.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <vector>

#include "backends/cuda/host/device_model.h"
#include "backends/cuda/host/transfers.h"

namespace loopspec {

inline double ToDouble(uint16_t bits) {
  return BF16ToFloat(bits);
}

template <typename T>
std::vector<T> Download(const T* from, size_t count) {
  std::vector<T> out(count);
  cuda::CopyToHostAndWait(out.data(), from, count * sizeof(T), "a result");
  return out;
}

// A matrix of weights in the checkpoint's order of rows.
class ReferenceMatrix {
 public:
  ReferenceMatrix(const cuda::DeviceMatrix& m, const cuda::TileLayout& layout, int rows)
      : rows_(rows),
        cols_(m.cols),
        values_(static_cast<size_t>(rows) * static_cast<size_t>(m.cols)) {
    const auto bits = Download(reinterpret_cast<const uint16_t*>(m.data),
                               static_cast<size_t>(m.rows) * static_cast<size_t>(m.ld));
    for (int r = 0; r < m.rows; ++r) {
      const int to = layout.Source(r);
      if (to < 0 || to >= rows) continue;
      for (int c = 0; c < m.cols; ++c)
        values_[static_cast<size_t>(to) * static_cast<size_t>(cols_) + static_cast<size_t>(c)] =
            ToDouble(
                bits[static_cast<size_t>(r) * static_cast<size_t>(m.ld) + static_cast<size_t>(c)]);
    }
  }
  std::vector<double> Times(const std::vector<double>& x) const {
    std::vector<double> out(static_cast<size_t>(rows_));
    for (size_t r = 0; r < out.size(); ++r) {
      double sum = 0;
      for (size_t c = 0; c < x.size(); ++c) sum += values_[r * x.size() + c] * x[c];
      out[r] = sum;
    }
    return out;
  }
  const double* Row(int r) const {
    return values_.data() + static_cast<size_t>(r) * static_cast<size_t>(cols_);
  }

 private:
  int rows_, cols_;
  std::vector<double> values_;
};

// RMSNorm with weights of one (DeviceModel::Random).
inline std::vector<double> ReferenceNorm(std::vector<double> x, double eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (double& v : x) v *= scale;
  return x;
}

// One head's output for a query that sees `count` keys and values, each [count][dim].
inline std::vector<double> ReferenceAttention(const double* query, const double* keys,
                                              const double* values, int count, int dim) {
  std::vector<double> weights(static_cast<size_t>(count)), out(static_cast<size_t>(dim));
  double top = -INFINITY, sum = 0;
  for (int i = 0; i < count; ++i) {
    double score = 0;
    for (int d = 0; d < dim; ++d) score += query[d] * keys[i * dim + d];
    weights[static_cast<size_t>(i)] = score / std::sqrt(static_cast<double>(dim));
    top = std::max(top, weights[static_cast<size_t>(i)]);
  }
  for (double& w : weights) sum += w = std::exp(w - top);
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < dim; ++d)
      out[static_cast<size_t>(d)] += weights[static_cast<size_t>(i)] / sum * values[i * dim + d];
  }
  return out;
}

// Logits of every position at depth R, for a model without adapter, prelude and coda whose norms'
// weights are all one.
std::vector<double> ReferenceLogits(const cuda::DeviceModel& model,
                                    const std::vector<int32_t>& tokens);

}  // namespace loopspec
