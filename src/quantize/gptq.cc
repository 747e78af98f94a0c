#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace loopspec {
namespace {

struct Range {
  int low, high;
};
Range CodeRange(int bits) {
  return bits == 8 ? Range{-127, 127} : Range{-8, 7};
}

constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52: what is added to it becomes whole

int RoundTo(double value, const Range& range) {
  const double within = std::clamp<double>(value, range.low, range.high);
  return static_cast<int>((within + kRounder) - kRounder);
}

// The squared error of values rounded by a scale. Eight sums side by side, which a compiler may put
// into vectors.
double ScaleError(const double* values, int64_t count, double scale, const Range& range) {
  const double inverse = 1 / scale, low = range.low, high = range.high;
  double sums[8] = {};
  for (int64_t i = 0; i < count; i += 8) {
    const int64_t n = std::min<int64_t>(8, count - i);
    const auto add = [&](int64_t j) {
      const double within = std::clamp(values[i + j] * inverse, low, high);
      const double off = values[i + j] - scale * ((within + kRounder) - kRounder);
      sums[j] += off * off;
    };
    if (n == 8) {
      for (int64_t j = 0; j < 8; ++j) add(j);
    } else {
      for (int64_t j = 0; j < n; ++j) add(j);
    }
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The scale of one group, as bf16. 8 bits: the largest value becomes 127. 4 bits: the one of the
// least squared error among some smaller ones; `values` has a stride of one.
uint16_t GroupScale(const double* values, int64_t count, int bits) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  if (largest == 0 || !std::isfinite(largest)) return FloatToBF16(1.0f);
  const Range range = CodeRange(bits);
  if (bits == 8) return FloatToBF16(static_cast<float>(largest / range.high));
  uint16_t best = 0;
  double least = -1;
  for (int step = 0; step <= 24; ++step) {
    const uint16_t scale =
        FloatToBF16(static_cast<float>(largest / range.high * (1.0 - 0.02 * step)));
    const auto s = static_cast<double>(BF16ToFloat(scale));
    if (s == 0) continue;
    const double error = ScaleError(values, count, s, range);
    if (least < 0 || error < least) {
      least = error;
      best = scale;
    }
  }
  return best;
}

// body(begin, end) over [0, n): shared among the threads of `pool` where there is one and it pays.
template <class F>
void Shared(ThreadPool* pool, int64_t n, bool worth, F&& body) {
  if (pool == nullptr || !worth) return body(0, n);
  pool->Run([&](Worker& worker) {
    const Worker::Range mine = worker.Share(n);
    body(mine.begin, mine.end);
  });
}

}  // namespace

QuantizedCodes RoundMatrix(const std::vector<float>& values, int64_t rows, int64_t columns,
                           int64_t group, int bits, ThreadPool* pool) {
  const Range range = CodeRange(bits);
  QuantizedCodes result;
  result.codes.resize(values.size());
  result.scales.resize(static_cast<size_t>(rows * (columns / group)));
  Shared(pool, rows, true, [&](int64_t begin, int64_t end) {
    std::vector<double> piece(static_cast<size_t>(group));
    for (int64_t at = begin * columns; at < end * columns; at += group) {
      for (int64_t i = 0; i < group; ++i)
        piece[static_cast<size_t>(i)] = static_cast<double>(values[static_cast<size_t>(at + i)]);
      const uint16_t scale = GroupScale(piece.data(), group, bits);
      result.scales[static_cast<size_t>(at / group)] = scale;
      const auto s = static_cast<double>(BF16ToFloat(scale));
      for (int64_t i = 0; i < group; ++i) {
        result.codes[static_cast<size_t>(at + i)] =
            static_cast<int8_t>(RoundTo(piece[static_cast<size_t>(i)] / s, range));
      }
    }
  });
  return result;
}

namespace {

// Eight sums side by side, which a compiler may put into vectors.
double Dot(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The upper triangular U with inverse(H) = U^T U, in place of H [n, n]; H is symmetric and
// positive. With H = L L^T, U is the transpose of the Cholesky factor of inverse(H).
void InverseFactor(std::vector<double>& h, int64_t n, ThreadPool* pool) {
  const auto at = [&](int64_t i, int64_t j) -> double& {
    return h[static_cast<size_t>(i * n + j)];
  };
  const auto cholesky = [&] {  // lower triangle
    for (int64_t j = 0; j < n; ++j) {
      double* row_j = &at(j, 0);
      const double diagonal = row_j[j] - Dot(row_j, row_j, j);
      LOOPSPEC_CHECK(diagonal > 0);
      row_j[j] = std::sqrt(diagonal);
      const auto below = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double* row_i = &at(i, 0);
          row_i[j] = (row_i[j] - Dot(row_i, row_j, j)) / row_j[j];
        }
      };
      Shared(pool, n - j - 1, (n - j) * j > 100000,
             [&](int64_t begin, int64_t end) { below(j + 1 + begin, j + 1 + end); });
    }
  };
  cholesky();
  // M = inverse(L), lower; rows in order.
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> row(static_cast<size_t>(i), 0.0);
    for (int64_t k = 0; k < i; ++k) {
      const double l = at(i, k);
      const double* m = &at(k, 0);
      for (int64_t j = 0; j <= k; ++j) row[static_cast<size_t>(j)] += l * m[j];
    }
    const double inverse = 1.0 / at(i, i);
    for (int64_t j = 0; j < i; ++j) at(i, j) = -row[static_cast<size_t>(j)] * inverse;
    at(i, i) = inverse;
  }
  // inverse(H) = M^T M, into the lower triangle.
  std::vector<double> product(static_cast<size_t>(n * n), 0.0);
  Shared(pool, n, true, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < n; ++k) {
      const double* m = &at(k, 0);
      for (int64_t i = begin; i < std::min(end, k + 1); ++i) {
        double* to = product.data() + i * n;
        const double mi = m[i];
        for (int64_t j = 0; j <= i; ++j) to[j] += mi * m[j];
      }
    }
  });
  h = std::move(product);
  cholesky();
  for (int64_t i = 0; i < n; ++i) {  // transpose
    for (int64_t j = 0; j < i; ++j) {
      at(j, i) = at(i, j);
      at(i, j) = 0;
    }
  }
}

}  // namespace

QuantizedCodes GptqMatrix(const std::vector<float>& values, int64_t rows, int64_t columns,
                          int64_t group, int bits, const std::vector<float>& hessian,
                          double damping, ThreadPool* pool) {
  const Range range = CodeRange(bits);
  const int64_t n = columns;
  std::vector<double> h(hessian.begin(), hessian.end());
  double mean = 0;
  for (int64_t i = 0; i < n; ++i)
    mean += h[static_cast<size_t>(i * n + i)] / static_cast<double>(n);
  if (mean <= 0) return RoundMatrix(values, rows, columns, group, bits, pool);
  for (int64_t i = 0; i < n; ++i) h[static_cast<size_t>(i * n + i)] += damping * mean;
  InverseFactor(h, n, pool);

  QuantizedCodes result;
  result.codes.resize(values.size());
  result.scales.resize(static_cast<size_t>(rows * (columns / group)));
  const auto fit = [&](int64_t begin, int64_t end) {
    std::vector<double> w(static_cast<size_t>(n));
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(values.begin() + r * n, n, w.begin());
      double scale = 1;
      for (int64_t i = 0; i < n; ++i) {
        if (i % group == 0) {
          const uint16_t bits_of = GroupScale(w.data() + i, group, bits);
          result.scales[static_cast<size_t>(r * (columns / group) + i / group)] = bits_of;
          scale = static_cast<double>(BF16ToFloat(bits_of));
        }
        const double* u = h.data() + i * n;
        const int code = RoundTo(w[static_cast<size_t>(i)] / scale, range);
        result.codes[static_cast<size_t>(r * n + i)] = static_cast<int8_t>(code);
        const double error = (w[static_cast<size_t>(i)] - scale * code) / u[i];
        for (int64_t j = i + 1; j < n; ++j) w[static_cast<size_t>(j)] -= error * u[j];
      }
    }
  };
  Shared(pool, rows, true, fit);
  return result;
}

}  // namespace loopspec
