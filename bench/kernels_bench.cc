// Matrix kernels against the floor that each names: bytes over the machine's read bandwidth, or
// multiply-adds over its rate.
//
//   kernels_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "backends/cpu/bandwidth.h"
#include "backends/cpu/matmul.h"
#include "backends/cpu/matmul_quantized.h"
#include "backends/cpu/memory.h"
#include "base/thread_pool.h"
#include "base/timer.h"
#include "bench/fma_rate.h"

namespace loopspec::cpu {
namespace {

constexpr int64_t kInputs = 2048;
constexpr int64_t kBytes = int64_t{768} << 20;  // of weights: far larger than any cache

ThreadPool& Pool() {
  static ThreadPool pool(0);
  return pool;
}

double Bandwidth() {
  static const double bandwidth = MeasureReadBandwidth();
  return bandwidth;
}

// Small random numbers in every representation; the values do not matter, but zeros and denormals
// would.
const std::byte* Weights(DType type) {
  static std::map<DType, LazyBuffer> made;
  LazyBuffer& buffer = made[type];
  if (buffer.data() == nullptr) {
    buffer = LazyBuffer(static_cast<size_t>(kBytes));
    Pool().Run([&](Worker& worker) {
      const auto [begin, end] = worker.Share(kBytes / static_cast<int64_t>(SizeOf(type)));
      uint32_t state = 12345u + static_cast<uint32_t>(worker.index());
      for (int64_t i = begin; i < end; ++i) {
        state = state * 1664525u + 1013904223u;
        const float value = (static_cast<float>(state >> 8) * 0x1.0p-24f - 0.5f) * 0.1f;
        if (type == DType::kF32) reinterpret_cast<float*>(buffer.data())[i] = value;
        if (type == DType::kBF16)
          reinterpret_cast<uint16_t*>(buffer.data())[i] = FloatToBF16(value);
        if (type == DType::kF16)
          reinterpret_cast<uint16_t*>(buffer.data())[i] =
              static_cast<uint16_t>(0x2000u + (state >> 22));
      }
    });
  }
  return buffer.data();
}

double FmaRate() {
  static const double rate = MeasureFmaRate(Pool());
  return rate;
}

void MatMul(benchmark::State& state, const MatMulKernel* kernel, DType weights, int rows) {
  const int64_t outputs = kBytes / static_cast<int64_t>(SizeOf(weights)) / kInputs;
  const std::byte* w = Weights(weights);
  std::vector<std::byte> packed(kernel->PackedBytes(rows, kInputs));
  std::vector<float> row(kInputs);
  for (int r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kInputs; ++i)
      row[static_cast<size_t>(i)] = std::sin(static_cast<float>(i + r));
    kernel->pack(packed.data(), r, kInputs, 0, row.data(), kInputs);
  }
  std::vector<float> out(static_cast<size_t>(rows * outputs));
  double best = 1e30;
  for (auto _ : state) {
    Timer timer;
    Pool().Run([&](Worker& worker) {
      const auto [begin, end] = worker.Share(outputs, kernel->grain);
      kernel->multiply({w + begin * kInputs * static_cast<int64_t>(SizeOf(weights)), end - begin,
                        kInputs, packed.data(), rows, out.data() + begin, outputs});
    });
    const double seconds = timer.Seconds();
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const double bytes_floor = static_cast<double>(kBytes) / Bandwidth();
  state.counters["GB/s"] = static_cast<double>(kBytes) / best / 1e9;
  state.counters["of_bandwidth_%"] = 100.0 * bytes_floor / best;
  const double madds = static_cast<double>(outputs) * static_cast<double>(kInputs) * rows;
  state.counters["GMAC/s"] = madds / best / 1e9;
  if (kernel->element_bytes == 4)
    state.counters["of_FMA_rate_%"] = 100.0 * madds / best / FmaRate();
}

void Register(DType weights, DType activations) {
  for (const MatMulKernel* kernel : AllMatMuls(weights, activations)) {
    for (const int rows : {1, 2, 4, 8, 16, 32, 64}) {
      const std::string name =
          fmt::format("{}x{}/{}/rows:{}", NameOf(weights), NameOf(activations), kernel->name, rows);
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { MatMul(state, kernel, weights, rows); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.3);
    }
  }
}

// ---- Weights of few bits ----

struct FewBits {
  const char* name;
  int bits;
  int64_t group;  // 0: one scale per output
};
constexpr FewBits kFewBits[] = {
    {"int8", 8, 0}, {"int8g32", 8, 32}, {"int4g32", 4, 32}, {"int4g128", 4, 128}};
constexpr int64_t kFewOutputs = int64_t{768} << 20 >> 12;  // as many as bf16 has

const PackedQuantized& FewWeights(const FewBits& form, const QuantizedKernel& kernel) {
  static std::map<std::pair<const char*, const QuantizedKernel*>, PackedQuantized> made;
  const auto [it, fresh] = made.try_emplace({form.name, &kernel});
  if (!fresh) return it->second;
  const int64_t groups = form.group == 0 ? 1 : kInputs / form.group;
  std::vector<std::byte> codes(static_cast<size_t>(kFewOutputs * kInputs * form.bits / 8));
  uint32_t state = 1;
  for (std::byte& code : codes) {
    state = state * 1664525u + 1013904223u;
    code = static_cast<std::byte>(state >> 24);
  }
  const std::vector<uint16_t> scales(static_cast<size_t>(kFewOutputs * groups),
                                     FloatToBF16(0.001f));
  QuantizedTensor tensor;
  tensor.layout =
      form.bits == 8 ? QuantizedTensor::Layout::kSigned8 : QuantizedTensor::Layout::kNibbles;
  tensor.rows = kFewOutputs;
  tensor.columns = kInputs;
  tensor.group = kInputs / groups;
  tensor.codes = codes.data();
  tensor.scales = {reinterpret_cast<const std::byte*>(scales.data()), DType::kBF16};
  it->second = PackQuantized(tensor, kernel.layout);
  return it->second;
}

void FewBitsMatMul(benchmark::State& state, const QuantizedKernel* kernel, const FewBits& form,
                   int rows) {
  const PackedQuantized& weights = FewWeights(form, *kernel);
  LazyBuffer packed(kernel->kernel.PackedBytes(rows, kInputs));
  std::vector<float> row(kInputs), out(static_cast<size_t>(rows * kFewOutputs));
  for (int r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kInputs; ++i)
      row[static_cast<size_t>(i)] = std::sin(static_cast<float>(i + r));
    kernel->kernel.pack(packed.data(), r, kInputs, 0, row.data(), kInputs);
  }
  double best = 1e30;
  for (auto _ : state) {
    Timer timer;
    Pool().Run([&](Worker& worker) {
      const auto [begin, end] = worker.Share(kFewOutputs, kernel->kernel.grain);
      MatMulCall call{nullptr, end - begin,        kInputs,    packed.data(),
                      rows,    out.data() + begin, kFewOutputs};
      call.quantized = &weights.matrix;
      call.first = begin;
      kernel->kernel.multiply(call);
    });
    const double seconds = timer.Seconds();
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const auto bytes = static_cast<double>(weights.memory.size());
  state.counters["GB/s"] = bytes / best / 1e9;
  state.counters["of_bandwidth_%"] = 100.0 * bytes / Bandwidth() / best;
  state.counters["GMAC/s"] =
      static_cast<double>(kFewOutputs) * static_cast<double>(kInputs) * rows / best / 1e9;
  // Beside bf16's time for as many weights, were it at the bandwidth.
  state.counters["of_bf16_floor"] = best * Bandwidth() / static_cast<double>(kBytes);
}

void RegisterFewBits() {
  for (const FewBits& form : kFewBits) {
    for (const QuantizedKernel* kernel : AllQuantized()) {
      for (const int rows : {1, 2, 4, 8, 16, 32, 64}) {
        const std::string name = fmt::format("{}/{}/rows:{}", form.name, kernel->kernel.name, rows);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [=](benchmark::State& state) { FewBitsMatMul(state, kernel, form, rows); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(0.3);
      }
    }
  }
}

}  // namespace
}  // namespace loopspec::cpu

int main(int argc, char** argv) {
  using namespace loopspec;
  fmt::print("read bandwidth {:.1f} GB/s, float32 multiply-adds {:.1f} G/s, {} threads\n",
             cpu::Bandwidth() / 1e9, cpu::FmaRate() / 1e9, cpu::Pool().size());
  cpu::Register(DType::kBF16, DType::kBF16);
  cpu::Register(DType::kBF16, DType::kF32);
  cpu::Register(DType::kF32, DType::kF32);
  cpu::Register(DType::kF16, DType::kF32);
  cpu::RegisterFewBits();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
