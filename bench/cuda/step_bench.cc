// Times steps at the shapes of the released models, with random weights made on the device: what
// one recurrence costs against reading its weights and keys once, and what further rows at other
// depths add.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "backends/cuda/host/cuda_backend.h"
#include "backends/cuda/host/read_bandwidth.h"
#include "base/timer.h"
#include "model_shapes.h"

namespace loopspec {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  // `results`: takes a line "key value" for every figure that the table of scripts/gpu-check.sh
  // needs.
  Bench(const char* name, const ModelSpec& spec, std::vector<int> depths, int context,
        double bandwidth, std::ostream& results)
      : name_(name), context_(context), bandwidth_(bandwidth), results_(results) {
    BackendOptions options;
    options.readout_depths = std::move(depths);
    options.cells = 256;
    options.kv_positions = context + 1024;
    Timer timer;
    cuda::DeviceModel model = cuda::DeviceModel::Random(spec, 1);
    timer.Reset();
    backend_ = std::make_unique<cuda::CudaBackend>(std::move(model), options, 0);
    std::printf("%s: backend start %.3f s (weights excluded)\n", name, timer.Seconds());
    pages_.resize(static_cast<size_t>(backend_->pages()));
    std::iota(pages_.begin(), pages_.end(), 0);
    std::vector<int32_t> tokens(static_cast<size_t>(context));
    for (int i = 0; i < context; ++i) tokens[static_cast<size_t>(i)] = (i * 7919 + 13) % spec.vocab;
    backend_->Prefill({{pages_.data()}, 0, std::span(tokens).first(64)});
    timer.Reset();
    backend_->Prefill({{pages_.data()}, 0, tokens});
    std::printf("%s: prefill of %d tokens %.1f ms\n", name, context, timer.Seconds() * 1e3);
  }

  void SetWideFrom(int rows) { backend_->SetWideFrom(rows); }

  // Where a recurrence's time goes: mean microseconds of each kind of operation.
  void Trace(int rows, int distinct) {
    const cuda::Program& program = backend_->program();
    const int begin = program.ops_begin[cuda::kPhaseCore], end = program.ops_end[cuda::kPhaseCore];
    cuda::PinnedArray<uint64_t> clocks(static_cast<size_t>(program.ops.size() + 8));
    StepPlan plan;
    SamplingParams greedy;
    MakePlan(rows, distinct, 1, false, false, greedy, plan);
    backend_->Trace(clocks.data());
    double total[10] = {};
    int count[10] = {};
    const char* const names[10] = {"qkv",  "qkv",     "gate_up",   "o/down",  "head",
                                   "rows", "qk_norm", "attention", "combine", "start"};
    constexpr int kRounds = 20;
    for (int i = 0; i < kRounds; ++i) {
      backend_->Wait(backend_->Submit(plan));
      for (int at = -1; at < end - begin; ++at) {
        int kind = 9;
        if (at >= 0) {
          const cuda::Op& op = program.ops[static_cast<size_t>(begin + at)];
          kind = op.type == cuda::OpType::kMatrix
                     ? static_cast<int>(program.kinds[static_cast<size_t>(op.matrix)])
                 : op.type == cuda::OpType::kRows      ? 5
                 : op.type == cuda::OpType::kQkNorm    ? 6
                 : op.type == cuda::OpType::kAttention ? 7
                                                       : 8;
        }
        total[kind] += static_cast<double>(clocks.data()[at + 2] - clocks.data()[at + 1]) * 1e-3;
        ++count[kind];
      }
    }
    backend_->Trace(nullptr);
    std::printf("%-12s rows %3d, us per operation:", name_, rows);
    for (int k = 0; k < 10; ++k) {
      if (count[k] > 0) std::printf("  %s %.2f", names[k], total[k] / count[k]);
    }
    std::printf("\n");
  }

  // `rows` rows over `distinct` depths, the deepest oldest; `prelude` new rows and `readouts`
  // readouts among them.
  void Run(int rows, int distinct, int recurrences, bool prelude, bool readout) {
    StepPlan plan;
    SamplingParams greedy;
    MakePlan(rows, distinct, recurrences, prelude, readout, greedy, plan);
    std::vector<double> wall, prelude_s, recur, read;
    for (int i = 0; i < 60; ++i) {
      Timer timer;
      const StepResult& result = backend_->Wait(backend_->Submit(plan));
      if (i < 10) continue;
      wall.push_back(timer.Seconds());
      prelude_s.push_back(result.prelude_seconds);
      recur.push_back(result.recur_seconds);
      read.push_back(result.readout_seconds);
    }
    Print(rows, distinct, recurrences, prelude, readout, Median(wall), Median(prelude_s),
          Median(recur), Median(read));
  }

 private:
  void MakePlan(int rows, int distinct, int recurrences, bool prelude, bool readout,
                const SamplingParams& greedy, StepPlan& plan) const {
    const ModelSpec& spec = backend_->spec();
    plan.sequences.push_back({pages_.data()});
    plan.recurrences = recurrences;
    const int stride = std::max(1, spec.recurrence / std::max(distinct, 1));
    for (int i = 0; i < rows; ++i) {
      const int level = i * distinct / rows;
      int depth = std::max(0, spec.recurrence - recurrences - level * stride);
      // A row that P has not been through has no state, unless P is the embedding alone.
      if (!prelude && depth == 0 && spec.prelude_layers > 0)
        depth = std::min(1, spec.recurrence - recurrences);
      if (prelude && level == distinct - 1) depth = 0;
      plan.rows.push_back({0, i, 100 + i, context_ + level, depth,
                           static_cast<int32_t>(plan.chains.size()), level});
      // One cell of every older level.
      for (int l = 0; l < level; ++l) plan.chains.push_back(l * rows / distinct);
    }
    if (readout) {
      for (int i = 0; i < rows; ++i) {
        ReadoutPlan r{};
        r.row = i;
        r.readout = i % static_cast<int>(backend_->options().readout_depths.size());
        r.purpose = ReadoutPurpose::kVerify;
        r.sampling = &greedy;
        r.logprobs = -1;
        plan.readouts.push_back(r);
      }
    }
  }

  void Print(int rows, int distinct, int recurrences, bool prelude, bool readout, double wall,
             double p, double b, double c) {
    const ModelSpec& spec = backend_->spec();
    const double token = 2.0 * spec.kv_size() * sizeof(uint16_t);
    const double kv = token * spec.core_layers * context_ * distinct;
    const double core = (static_cast<double>(backend_->model().core_bytes) + kv) * recurrences;
    std::printf("%-12s rows %3d depths %2d x%d%s%s  B %8.4f ms  %5.3f TB/s %5.1f %%", name_, rows,
                distinct, recurrences, prelude ? " P" : "  ", readout ? " C" : "  ", b * 1e3,
                core / b * 1e-12, core / b / bandwidth_ * 100);
    double floor = core / bandwidth_;
    if (prelude) {
      floor += static_cast<double>(backend_->model().prelude_bytes) / bandwidth_;
      std::printf("  P %.4f ms", p * 1e3);
    }
    if (readout) {
      floor += static_cast<double>(backend_->model().coda_bytes) / bandwidth_;
      std::printf("  C %.4f ms %5.1f %%", c * 1e3,
                  static_cast<double>(backend_->model().coda_bytes) / c / bandwidth_ * 100);
    }
    std::printf("  step %.4f ms, %4.1f %% outside the kernel, %5.1f %% of the floor\n", wall * 1e3,
                (wall - p - b - c) / wall * 100, floor / wall * 100);
    std::fflush(stdout);
    const std::string key = std::string(name_) + ".step.rows" + std::to_string(rows) + ".x" +
                            std::to_string(recurrences) + (prelude || readout ? ".PC" : "") + ".";
    results_ << key << "core_ms " << b * 1e3 << '\n'
             << key << "core_share " << core / b / bandwidth_ << '\n'
             << key << "ms " << wall * 1e3 << '\n'
             << key << "floor_share " << floor / wall << '\n'
             << key << "gap_share " << (wall - p - b - c) / wall << '\n'
             << std::flush;
  }

  const char* name_;
  int context_;
  double bandwidth_;
  std::ostream& results_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::vector<int32_t> pages_;
};

// Recurrences of many rows, where their time goes, and steps with readouts of all of them.
void RunRows(Bench& bench, const std::vector<int>& counts, int depths) {
  for (const int rows : counts) {
    bench.Run(rows, std::min(rows, depths), 1, false, false);
    bench.Trace(rows, std::min(rows, depths));
    bench.Run(rows, std::min(rows, depths), 1, true, true);
    if (rows <= cuda::kPassRows) continue;
    const bool wide = rows >= cuda::kWideFrom;
    std::printf("the same with %s:\n",
                wide ? "a pass over the weights for every 32 rows" : "one pass over the weights");
    bench.SetWideFrom(wide ? 1 << 30 : 0);
    bench.Run(rows, std::min(rows, depths), 1, false, false);
    bench.Trace(rows, std::min(rows, depths));
    bench.SetWideFrom(cuda::kWideFrom);
  }
}

int Main(int argc, char** argv) {
  // [ouro|raven|all] [--results FILE] [--rows N,N]: only these numbers of rows, over all depths
  std::string which = "all";
  std::ofstream results;
  std::vector<int> row_counts;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--results" && i + 1 < argc) {
      results.open(argv[++i], std::ios::app);
    } else if (word == "--rows" && i + 1 < argc) {
      std::stringstream list(argv[++i]);
      for (std::string item; std::getline(list, item, ',');) row_counts.push_back(std::stoi(item));
    } else {
      which = word;
    }
  }
  cuda::Check(cudaSetDevice(0), "selecting the GPU");
  const double bandwidth = cuda::MeasureReadBandwidth();
  std::printf("read bandwidth %.3f TB/s\n", bandwidth * 1e-12);
  results << "bandwidth_TBps " << bandwidth * 1e-12 << '\n';
  if (which == "all" || which == "ouro") {
    Bench ouro("ouro-1.4b", Ouro14(), {1, 2, 4}, 1024, bandwidth, results);
    if (!row_counts.empty()) {
      RunRows(ouro, row_counts, 4);
    } else {
      ouro.Run(1, 1, 1, false, false);
      ouro.Run(2, 2, 1, false, false);
      ouro.Run(4, 4, 1, false, false);
      ouro.Trace(1, 1);
      ouro.Trace(4, 4);
      ouro.Trace(32, 4);
      ouro.Run(8, 4, 1, false, false);
      ouro.Run(1, 1, 4, true, true);
      ouro.Run(4, 4, 1, true, true);
      ouro.Run(32, 4, 1, true, true);
      RunRows(ouro, {64, 128, 256}, 4);
    }
  }
  if (which == "all" || which == "raven") {
    Bench raven("raven-llama", RavenLlama(), {2, 8, 32}, 1024, bandwidth, results);
    if (!row_counts.empty()) {
      RunRows(raven, row_counts, 16);
    } else {
      raven.Run(1, 1, 1, false, false);
      raven.Run(16, 16, 1, false, false);
      raven.Run(24, 16, 1, false, false);
      raven.Run(32, 16, 1, false, false);
      raven.Trace(1, 1);
      raven.Trace(16, 16);
      raven.Trace(24, 16);
      raven.Trace(32, 16);
      raven.Run(1, 1, 32, true, true);
      raven.Run(32, 16, 2, true, true);
      RunRows(raven, {64, 128, 256}, 16);
    }
  }
  return 0;
}

}  // namespace
}  // namespace loopspec

int main(int argc, char** argv) {
  try {
    return loopspec::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
