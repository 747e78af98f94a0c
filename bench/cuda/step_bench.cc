// Times steps at the shapes of the released models, with random weights made on the device: what
// one recurrence costs against reading its weights and keys once, and what further rows at other
// depths, longer contexts and more requests add.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cuda/host/cuda_backend.h"
#include "backends/cuda/host/read_bandwidth.h"
#include "backends/cuda/program/wide_work.h"
#include "base/timer.h"
#include "model_shapes.h"

namespace loopspec {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

size_t FreeMemory() {
  size_t free = 0, total = 0;
  cuda::Check(cudaMemGetInfo(&free, &total), "asking for the free memory");
  return free;
}

inline constexpr int kContext = 1024;  // where nothing else is said

// The rows of a step: of `requests` requests, and of each over `depths` depths, the deepest oldest.
struct Rows {
  int count;
  int depths;
  int requests = 1;
};

// How keys are kept: "bf16", "int8" or "loops:PLAN".
struct KeyType {
  KvType type = KvType::kCompute;
  std::string plan = {};

  explicit KeyType(const std::string& text = "bf16") {
    if (text.starts_with("loops:")) {
      type = KvType::kLoops;
      plan = text.substr(6);
    } else if (text == "int8") {
      type = KvType::kInt8;
    } else if (text != "bf16") {
      throw std::runtime_error("--kv-type " + text + ": expected bf16, int8 or loops:PLAN");
    }
  }
};

class Bench {
 public:
  // `requests`: at most so many, each with a context of its own. `results`: takes a line "key
  // value" for every figure that the table of scripts/gpu-check.py needs.
  Bench(const char* name, const ModelSpec& spec, std::vector<int> depths, int context, int requests,
        double bandwidth, std::ostream& results, const KeyType& keys = KeyType(),
        cuda::WeightForm form = cuda::WeightForm::kBF16, int cells = 256)
      : name_(name), context_(context), bandwidth_(bandwidth), form_(form), results_(results) {
    BackendOptions options;
    options.kv_type = keys.type;
    if (keys.type == KvType::kLoops)
      options.key_plan = SpannedKeyPlan::Parse(keys.plan, spec.recurrence);
    if (keys.type != KvType::kCompute)
      keys_ = keys.type == KvType::kInt8 ? " int8 keys" : " keys " + options.key_plan->text();
    options.readout_depths = std::move(depths);
    options.cells = cells;
    const int each = (context + kPageSize - 1) / kPageSize + 1;  // pages
    options.kv_positions = int64_t{each} * kPageSize * requests;
    Timer timer;
    cuda::DeviceModel model = cuda::DeviceModel::Random(spec, 1, form);
    std::printf("%s: %s weights, %.3f GB\n", name, Weights(),
                static_cast<double>(model.matrices.bytes()) * 1e-9);
    timer.Reset();
    const size_t free = FreeMemory();
    backend_ = std::make_unique<cuda::CudaBackend>(std::move(model), options, 0);
    std::printf(
        "%s: backend start %.3f s (weights excluded), %.2f GB of memory:%s %.1f kB a token, "
        "%.1f MB a window\n",
        name, timer.Seconds(), static_cast<double>(free - FreeMemory()) * 1e-9, Keys(),
        static_cast<double>(backend_->page_bytes()) / kPageSize * 1e-3,
        static_cast<double>(backend_->page_bytes() * backend_->window_pages()) * 1e-6);
    pages_.resize(static_cast<size_t>(requests));
    for (int r = 0; r < requests; ++r) {
      auto& pages = pages_[static_cast<size_t>(r)];
      pages.resize(static_cast<size_t>(each));
      std::iota(pages.begin(), pages.end(), r * each);
      auto& window = windows_.emplace_back(static_cast<size_t>(backend_->window_pages()));
      std::iota(window.begin(), window.end(), requests * each + r * backend_->window_pages());
    }
    std::vector<int32_t> tokens(static_cast<size_t>(context));
    for (int i = 0; i < context; ++i) tokens[static_cast<size_t>(i)] = (i * 7919 + 13) % spec.vocab;
    backend_->Prefill({Sequence(0), 0, std::span(tokens).first(64)});
    timer.Reset();
    backend_->Prefill({Sequence(0), 0, tokens});
    std::printf("%s:%s prefill of %d tokens %.1f ms\n", name, Keys(), context,
                timer.Seconds() * 1e3);
    for (int r = 1; r < requests; ++r) backend_->Prefill({Sequence(r), 0, tokens});
  }

  // Whether there is a kernel for each operation, at any number of rows, or a pass over the weights
  // for every 32 rows; without either, as the number of rows has it.
  void UseWide() { SetWideFrom(1); }
  void UsePasses() { SetWideFrom(1 << 30); }
  void UseUsual() { SetWideFrom(backend_->usual_wide_from()); }
  bool IsUsuallyWide(int rows) const { return rows >= backend_->usual_wide_from(); }
  void SetWideShape(int shape) { backend_->SetWideShape(shape); }
  bool HasWideShape(int shape) const { return backend_->HasWideShape(shape); }

  // Where a recurrence's time goes: mean microseconds of each kind of operation.
  void Trace(Rows rows) {
    const cuda::Program& program = backend_->program();
    const int begin = program.ops_begin[cuda::kPhaseCore], end = program.ops_end[cuda::kPhaseCore];
    cuda::PinnedArray<uint64_t> clocks(static_cast<size_t>(program.ops.size() + 8));
    StepPlan plan;
    SamplingParams greedy;
    MakePlan(rows, 1, false, false, greedy, plan);
    backend_->Trace(clocks.data());
    double total[10] = {};
    int count[10] = {};
    const char* const names[10] = {"qkv",  "qkv",       "gate_up",   "o/down",  "head",
                                   "rows", "finish_qk", "attention", "combine", "start"};
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
                 : op.type == cuda::OpType::kFinishQk  ? 6
                 : op.type == cuda::OpType::kAttention ? 7
                                                       : 8;
        }
        total[kind] += static_cast<double>(clocks.data()[at + 2] - clocks.data()[at + 1]) * 1e-3;
        ++count[kind];
      }
    }
    backend_->Trace(nullptr);
    std::printf("%-12s %s rows %3d%s, us per operation:", name_, Weights(), rows.count, Keys());
    for (int k = 0; k < 10; ++k) {
      if (count[k] > 0) std::printf("  %s %.2f", names[k], total[k] / count[k]);
    }
    std::printf("\n");
  }

  // `prelude`: some of the rows are new; `readout`: all are read out.
  void Run(Rows rows, int recurrences, bool prelude, bool readout) {
    StepPlan plan;
    SamplingParams greedy;
    MakePlan(rows, recurrences, prelude, readout, greedy, plan);
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
    Print(rows, recurrences, prelude, readout, Median(wall), Median(prelude_s), Median(recur),
          Median(read));
  }

 private:
  SequencePlan Sequence(int request) const {
    const auto r = static_cast<size_t>(request);
    return {pages_[r].data(), windows_[r].data()};
  }

  void SetWideFrom(int rows) {
    backend_->SetWideFrom(rows);
    passes_ = rows > cuda::kWideFrom;
  }

  void MakePlan(Rows rows, int recurrences, bool prelude, bool readout,
                const SamplingParams& greedy, StepPlan& plan) const {
    const ModelSpec& spec = backend_->spec();
    plan.recurrences = recurrences;
    const int stride = std::max(1, spec.recurrence / std::max(rows.depths, 1));
    const int each = rows.count / rows.requests;
    for (int request = 0; request < rows.requests; ++request) {
      plan.sequences.push_back(Sequence(request));
      for (int i = 0; i < each; ++i) {
        const int level = i * rows.depths / each, cell = request * each + i;
        int depth = std::max(0, spec.recurrence - recurrences - level * stride);
        // A row that P has not been through has no state, unless P is the embedding alone.
        if (!prelude && depth == 0 && spec.prelude_layers > 0)
          depth = std::min(1, spec.recurrence - recurrences);
        if (prelude && level == rows.depths - 1) depth = 0;
        plan.rows.push_back({request, cell, 100 + i, context_ + level, depth,
                             static_cast<int32_t>(plan.chains.size()), level});
        // One cell of every older level.
        for (int l = 0; l < level; ++l)
          plan.chains.push_back(request * each + l * each / rows.depths);
      }
    }
    if (readout) {
      for (int i = 0; i < static_cast<int>(plan.rows.size()); ++i) {
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

  void Print(Rows rows, int recurrences, bool prelude, bool readout, double wall, double p,
             double b, double c) {
    const ModelSpec& spec = backend_->spec();
    const double token =
        2.0 * spec.kv_heads * static_cast<double>(KvHeadBytes(backend_->options(), spec.head_dim));
    const double kv = token * spec.core_layers * context_ * rows.depths * rows.requests;
    const double core = (static_cast<double>(backend_->model().core_bytes) + kv) * recurrences;
    std::printf("%-12s %s context %5d%s requests %2d rows %3d depths %2d x%d%s%s  B %8.4f ms",
                name_, Weights(), context_, Keys(), rows.requests, rows.count, rows.depths,
                recurrences, prelude ? " P" : "  ", readout ? " C" : "  ", b * 1e3);
    std::printf("  %5.3f TB/s %5.1f %%", core / b * 1e-12, core / b / bandwidth_ * 100);
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
    std::string key = std::string(name_) + ".step.";
    if (context_ != kContext || rows.requests > 1) {
      key += "context" + std::to_string(context_) + ".requests" + std::to_string(rows.requests) +
             ".depths" + std::to_string(rows.depths) + ".";
    }
    key += "rows" + std::to_string(rows.count) + ".x" + std::to_string(recurrences) +
           (prelude || readout ? ".PC" : "") + (passes_ ? ".passes" : "") +
           (backend_->options().key_plan ? ".loops"
            : *Keys() != '\0'            ? ".int8"
                                         : "") +
           (form_ == cuda::WeightForm::kBF16 ? "" : std::string(".weights-") + Weights()) + ".";
    results_ << key << "core_ms " << b * 1e3 << '\n'
             << key << "core_share " << core / b / bandwidth_ << '\n'
             << key << "ms " << wall * 1e3 << '\n'
             << key << "floor_share " << floor / wall << '\n'
             << key << "gap_share " << (wall - p - b - c) / wall << '\n'
             << std::flush;
  }

  const char* Keys() const { return keys_.c_str(); }

  const char* Weights() const {
    return form_ == cuda::WeightForm::kBF16   ? "bf16"
           : form_ == cuda::WeightForm::kInt8 ? "int8"
                                              : "int4";
  }

  const char* name_;
  std::string keys_;     // what lines say of them; bf16: nothing
  bool passes_ = false;  // over the weights, for every 32 rows
  int context_;
  double bandwidth_;
  cuda::WeightForm form_;
  std::ostream& results_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::vector<std::vector<int32_t>> pages_, windows_;  // of each request
};

// Recurrences of many rows, where their time goes, and steps with readouts of all of them.
void RunRows(Bench& bench, Rows rows) {
  bench.Run(rows, 1, false, false);
  bench.Trace(rows);
  bench.Run(rows, 1, true, true);
  if (!bench.IsUsuallyWide(rows.count)) return;
  std::printf("the same with a pass over the weights for every 32 rows:\n");
  bench.UsePasses();
  bench.Run(rows, 1, false, false);
  bench.Trace(rows);
  bench.UseUsual();
}

// Products in tiles of every shape, to choose them by.
void RunShapes(Bench& bench, Rows rows) {
  bench.UseWide();
  for (int shape = 0; shape < cuda::kWideShapeCount; ++shape) {
    if (!bench.HasWideShape(shape)) continue;
    const cuda::WideShape& tile = cuda::kWideShapes[shape];
    std::printf("tiles of %d outputs by %d rows, %s:\n", tile.outputs, tile.rows,
                tile.hopper ? "wgmma" : "mma.sync");
    bench.SetWideShape(shape);
    bench.Trace(rows);
  }
  bench.SetWideShape(-1);
  bench.UseUsual();
}

struct Options {
  std::string family = "all";
  std::ofstream results;
  std::vector<int> rows;
  int depths = 0;  // 0: 4 for Ouro, 16 for Raven
  int context = kContext;
  int requests = 1;
  int cells = 256;
  int recurrences = 1;  // of a step
  std::vector<KeyType> keys = {KeyType()};
  std::vector<cuda::WeightForm> forms = {cuda::WeightForm::kBF16};
  bool shapes = false;
};

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::runtime_error(word + " needs a value");
      return argv[++i];
    };
    if (word == "--results") {
      options.results.open(value(), std::ios::app);
    } else if (word == "--rows") {
      std::stringstream list(value());
      for (std::string item; std::getline(list, item, ',');)
        options.rows.push_back(std::stoi(item));
    } else if (word == "--depths") {
      options.depths = std::stoi(value());
    } else if (word == "--context") {
      options.context = std::stoi(value());
    } else if (word == "--requests") {
      options.requests = std::stoi(value());
    } else if (word == "--cells") {
      options.cells = std::stoi(value());
    } else if (word == "--kv-type") {
      options.keys.clear();
      std::stringstream list(value());
      for (std::string item; std::getline(list, item, ';');) options.keys.emplace_back(item);
    } else if (word == "--recurrences") {
      options.recurrences = std::stoi(value());
    } else if (word == "--weights") {
      options.forms.clear();
      std::stringstream list(value());
      for (std::string item; std::getline(list, item, ',');) {
        if (item != "bf16" && item != "int8" && item != "int4")
          throw std::runtime_error("--weights " + item + ": expected bf16, int8 or int4");
        options.forms.push_back(item == "bf16"   ? cuda::WeightForm::kBF16
                                : item == "int8" ? cuda::WeightForm::kInt8
                                                 : cuda::WeightForm::kInt4);
      }
    } else if (word == "--shapes") {
      options.shapes = true;
    } else if (word == "ouro" || word == "raven" || word == "nanbeige" || word == "huginn" ||
               word == "all") {
      options.family = word;
    } else {
      throw std::runtime_error(
          "usage: cuda_step_bench [ouro|nanbeige|raven|huginn|all] [--results FILE] [--rows N,N] "
          "[--depths N] [--context N] [--requests N] [--cells N] [--recurrences N] "
          "[--kv-type bf16;int8;loops:PLAN] "
          "[--weights bf16,int8,int4] [--shapes]");
    }
  }
  return options;
}

// What the table of scripts/gpu-check.py has.
void RunOuro(double bandwidth, std::ostream& results) {
  const auto bench = [&](int context, int requests) {
    return Bench("ouro-1.4b", Ouro14(), {1, 2, 4}, context, requests, bandwidth, results);
  };
  {
    Bench ouro = bench(kContext, 32);
    ouro.Run({1, 1}, 1, false, false);
    ouro.Run({2, 2}, 1, false, false);
    ouro.Run({4, 4}, 1, false, false);
    for (const int rows : {1, 4, 32}) ouro.Trace({rows, std::min(rows, 4)});
    ouro.Run({8, 4}, 1, false, false);
    ouro.Run({1, 1}, 4, true, true);
    ouro.Run({4, 4}, 1, true, true);
    ouro.Run({32, 4}, 1, true, true);
    for (const int rows : {64, 128, 256}) RunRows(ouro, {rows, 4});
    for (const int requests : {8, 32}) ouro.Run({4 * requests, 4, requests}, 1, false, false);
  }
  {
    Bench ouro = bench(4096, 1);
    ouro.Run({4, 4}, 1, false, false);
  }
  Bench ouro = bench(16384, 1);
  for (const Rows rows : {Rows{1, 1}, Rows{4, 4}, Rows{8, 2}}) {
    ouro.Run(rows, 1, false, false);
    ouro.Trace(rows);
  }
}

void RunRaven(double bandwidth, std::ostream& results) {
  const auto bench = [&](int context) {
    return Bench("raven-llama", RavenLlama(), {2, 8, 32}, context, 1, bandwidth, results);
  };
  {
    Bench raven = bench(kContext);
    for (const int rows : {1, 16, 24, 32}) {
      raven.Run({rows, std::min(rows, 16)}, 1, false, false);
      raven.Trace({rows, std::min(rows, 16)});
    }
    raven.Run({1, 1}, 32, true, true);
    raven.Run({32, 16}, 2, true, true);
    for (const int rows : {64, 128, 256}) RunRows(raven, {rows, 16});
  }
  Bench raven = bench(8000);
  raven.Run({16, 16}, 1, false, false);
  raven.Trace({16, 16});
}

// Nanbeige and Huginn: one recurrence of few and of many rows, and where its time goes, in one
// kernel and in a kernel for each operation. `steps`: recurrences of a step of LoopSpec.
void RunWider(const char* name, const ModelSpec& spec, const std::vector<int>& readouts, int depths,
              int steps, double bandwidth, std::ostream& results) {
  Bench bench(name, spec, readouts, kContext, 1, bandwidth, results);
  for (const bool wide : {false, true}) {
    std::printf(wide ? "a kernel for each operation:\n" : "a pass for every 32 rows:\n");
    wide ? bench.UseWide() : bench.UsePasses();
    for (const int rows : {1, 2, 4, 6, 8, 16, 32, 64, 128}) {
      bench.Run({rows, std::min(rows, depths)}, 1, false, false);
      bench.Trace({rows, std::min(rows, depths)});
    }
    bench.Run({1, 1}, spec.recurrence, true, true);
    bench.Run({6, std::min(6, depths)}, steps, true, true);
  }
}

// Only the rows that were asked for; types of keys and of weights in turn.
void RunChosen(const char* name, const ModelSpec& spec, const std::vector<int>& readouts,
               int depths, double bandwidth, Options& options) {
  std::vector<std::unique_ptr<Bench>> benches;
  for (const cuda::WeightForm form : options.forms) {
    for (const KeyType& keys : options.keys) {
      benches.push_back(std::make_unique<Bench>(name, spec, readouts, options.context,
                                                options.requests, bandwidth, options.results, keys,
                                                form, options.cells));
    }
  }
  if (options.depths > 0) depths = options.depths;
  for (const int count : options.rows) {
    const int each = count / options.requests;
    const Rows rows{each * options.requests, std::min(each, depths), options.requests};
    for (const auto& bench : benches) {
      if (benches.size() > 1) {
        bench->Run(rows, options.recurrences, false, false);
        bench->Trace(rows);
        if (options.shapes) RunShapes(*bench, rows);
        continue;
      }
      RunRows(*bench, rows);
      if (options.shapes) RunShapes(*bench, rows);
    }
  }
}

int Main(int argc, char** argv) {
  Options options = Parse(argc, argv);
  cuda::Check(cudaSetDevice(0), "selecting the GPU");
  const double bandwidth = cuda::MeasureReadBandwidth();
  std::printf("read bandwidth %.3f TB/s\n", bandwidth * 1e-12);
  options.results << "bandwidth_TBps " << bandwidth * 1e-12 << '\n';
  const auto wanted = [&](const char* family) {
    return options.family == "all" || options.family == family;
  };
  const auto run = [&](const char* family, const char* name, const ModelSpec& spec,
                       const std::vector<int>& readouts, int depths, const auto& table) {
    if (!wanted(family)) return;
    if (options.rows.empty()) {
      table(name, spec, readouts, depths);
    } else {
      RunChosen(name, spec, readouts, depths, bandwidth, options);
    }
  };
  const auto wider = [&](const char* name, const ModelSpec& spec, const std::vector<int>& readouts,
                         int depths) {
    RunWider(name, spec, readouts, depths, readouts[0], bandwidth, options.results);
  };
  run("ouro", "ouro-1.4b", Ouro14(), {1, 2, 4}, 4,
      [&](const auto&...) { RunOuro(bandwidth, options.results); });
  run("raven", "raven-llama", RavenLlama(), {2, 8, 32}, 16,
      [&](const auto&...) { RunRaven(bandwidth, options.results); });
  run("nanbeige", "nanbeige4.2-3b", Nanbeige42(), {1, 2}, 2, wider);
  run("huginn", "huginn-0125", Huginn0125(), {4, 16, 32}, 8, wider);
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
