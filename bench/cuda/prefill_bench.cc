// Times prompts at the shapes of the released models, with random weights made on the device:
// milliseconds and TFLOP/s of whole prompts, or of the parts that they are made of.
//   cuda_prefill_bench [ouro|nanbeige|raven|huginn|all] [--lengths N,N] [--repeat N] [--rows N]
//                      [--width N] [--cluster N] [--portable] [--weights bf16|int8|int4]
//                      [--results FILE]
//   cuda_prefill_bench parts [ouro|nanbeige|raven|huginn|all] [--lengths N,N]
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "backends/cuda/host/cuda_backend.h"
#include "backends/cuda/host/transfers.h"
#include "base/error.h"
#include "base/timer.h"
#include "model_shapes.h"

namespace loopspec {
namespace {

struct Options {
  bool parts = false;
  std::string model = "all";
  std::vector<int> lengths;
  int repeat = 5;
  cuda::PrefillSettings settings;
  cuda::WeightForm form = cuda::WeightForm::kBF16;
  std::ofstream results;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<int32_t> Tokens(int count, const ModelSpec& spec) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = (i * 7919 + 13) % spec.vocab;
  return tokens;
}

double MatrixFlop(const cuda::DeviceMatrix& m, double rows) {
  return 2.0 * m.rows * m.cols * rows;
}

// What a prompt of `length` computes, all layers whole: products, and half of all pairs of
// positions.
double PromptFlop(const cuda::DeviceModel& model, int readouts, double length) {
  const ModelSpec& spec = model.spec;
  const auto stack = [&](const std::vector<cuda::DeviceLayer>& layers) {
    double flop = 0;
    for (const cuda::DeviceLayer& b : layers) {
      for (const auto* m : {&b.qkv, &b.attn_out, &b.gate_up, &b.down})
        flop += MatrixFlop(*m, length);
      flop += 4 * length * length / 2 * spec.q_size();
    }
    return flop;
  };
  return stack(model.prelude) +
         spec.recurrence * (stack(model.core) + MatrixFlop(model.adapter, length)) +
         readouts * stack(model.coda);
}

void TimePrompts(const char* name, const ModelSpec& spec, const std::vector<int>& depths,
                 const std::vector<int>& lengths, Options& options) {
  BackendOptions backend_options;
  backend_options.readout_depths = depths;
  backend_options.cells = 32;
  backend_options.kv_positions = *std::max_element(lengths.begin(), lengths.end()) + 64;
  cuda::CudaBackend backend(cuda::DeviceModel::Random(spec, 1, options.form), backend_options, 0,
                            options.settings);
  std::vector<int32_t> pages(static_cast<size_t>(backend.pages()));
  std::iota(pages.begin(), pages.end(), 0);
  for (const int length : lengths) {
    const std::vector<int32_t> tokens = Tokens(length, spec);
    const PrefillPlan plan{{pages.data()}, 0, tokens};
    std::vector<double> seconds;
    for (int i = 0; i < options.repeat + 2; ++i) {
      Timer timer;
      backend.Prefill(plan);
      if (i >= 2) seconds.push_back(timer.Seconds());
    }
    const double s = Median(seconds);
    const double flop =
        PromptFlop(backend.model(), static_cast<int>(depths.size()), static_cast<double>(length));
    std::printf("%-12s prefill %6d tokens  %9.2f ms (%.2f to %.2f)  %6.1f TFLOP  %5.0f TFLOP/s\n",
                name, length, s * 1e3, *std::min_element(seconds.begin(), seconds.end()) * 1e3,
                *std::max_element(seconds.begin(), seconds.end()) * 1e3, flop * 1e-12,
                flop / s * 1e-12);
    std::fflush(stdout);
    options.results << name << ".prefill." << length << ".ms " << s * 1e3 << '\n' << std::flush;
  }
}

// ---- Parts ----

// Milliseconds of one of `launch`, which puts kernels on the stream.
double Time(cudaStream_t stream, const std::function<void()>& launch) {
  cudaEvent_t begin, end;
  cuda::Check(cudaEventCreate(&begin), "creating an event");
  cuda::Check(cudaEventCreate(&end), "creating an event");
  constexpr int kTimes = 20;
  for (int i = 0; i < 3; ++i) launch();
  cuda::Check(cudaEventRecord(begin, stream), "timing");
  for (int i = 0; i < kTimes; ++i) launch();
  cuda::Check(cudaEventRecord(end, stream), "timing");
  cuda::Check(cudaEventSynchronize(end), "timing");
  float ms = 0;
  cuda::Check(cudaEventElapsedTime(&ms, begin, end), "timing");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms / kTimes;
}

class Parts {
 public:
  Parts(const char* name, ModelSpec spec, int rows) : name_(name), rows_(rows) {
    spec.core_layers = 1;
    spec.prelude_layers = spec.coda_layers = 0;
    spec.vocab = 256;
    spec_ = spec;
    model_ = cuda::DeviceModel::Random(spec, 1);
    cuda::Check(cudaDeviceGetAttribute(&launch_.multiprocessors, cudaDevAttrMultiProcessorCount, 0),
                "reading the device");
    launch_.stream = stream_.get();
    cuda::PrepareGemm(cuda::WeightForm::kBF16);
  }

  void Products() {
    const cuda::DeviceLayer& layer = model_.core[0];
    for (const int cluster : {1, 2}) {
      for (const int width : {0, 128, 160, 192, 256}) {
        launch_.width = width;
        launch_.cluster = cluster;
        const bool fused = spec_.head_dim != 96 && !spec_.qk_bias;  // q and k are finished with it
        Product("o", layer.attn_out, 0);
        Product("down", layer.down, 0);
        if (width % 64 == 0) Product("gate_up", layer.gate_up, 1);
        if (width % 64 == 0 || !fused) Product("qkv", layer.qkv, fused ? 2 : 0);
      }
    }
  }

  // Queries [start, start + rows) of one sequence.
  void Attention(int start) {
    const int end = start + rows_, pages = PagesFor(end);
    Memory(pages);
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    const std::vector<int32_t> tokens = Tokens(rows_, spec_);
    const PrefillPlan plan{{table.data()}, start, tokens};
    const cuda::EncodedPrompt prompt = cuda::EncodePrompt({&plan, 1}, memory_, rows_, spec_.vocab);
    Describe(prompt);
    cuda::DeviceArray<cuda::AttentionTile> tiles = Up(prompt.tiles);
    cuda::DeviceArray<int32_t> page_list = Up(prompt.pages);
    cuda::DeviceArray<bf16> out(Rows(spec_.q_size()), "a benchmark");
    buffers_.attention = out.data();
    buffers_.ld_attention = spec_.q_size();
    const cuda::AttentionArguments arguments{
        buffers_,     memory_,          0,
        tiles.data(), page_list.data(), static_cast<int>(prompt.tiles.size())};
    const cuda::HopperAttention attention(buffers_, memory_, rows_);
    const double ms = Time(stream_.get(), [&] { attention.Run(arguments, stream_.get()); });
    const double pairs =
        static_cast<double>(rows_) * start + static_cast<double>(rows_) * rows_ / 2;
    const double flop = 4 * pairs * spec_.q_size();
    std::printf("%-6s rows %5d attention from %5d               %8.4f ms %6.0f TFLOP/s\n", name_,
                rows_, start, ms, flop / ms * 1e-9);
    std::fflush(stdout);
  }

  void RowSteps() {
    cuda::DeviceArray<float> x(Rows(spec_.hidden), "a benchmark", true),
        sums(x.size(), "a benchmark", true);
    cuda::DeviceArray<bf16> out(Rows(spec_.hidden), "a benchmark");
    buffers_.hidden = spec_.hidden;
    buffers_.eps = 1e-6f;
    cuda::RowStep step;
    step.source = cuda::RowStep::Source::kAdd;
    step.from = step.x = x.data();
    step.sums = sums.data();
    step.post_norm = model_.core[0].attn_norm_out;
    step.pre_norm = model_.core[0].mlp_norm_in;
    step.out = out.data();
    step.ld = spec_.hidden;
    const double ms =
        Time(stream_.get(), [&] { cuda::RunRows(step, buffers_, {}, rows_, stream_.get()); });
    const double bytes = static_cast<double>(x.size()) * 14;
    std::printf("%-6s rows %5d sum and norm                        %8.4f ms %6.2f TB/s\n", name_,
                rows_, ms, bytes / ms * 1e-9);
  }

 private:
  using bf16 = cuda::bf16;
  size_t Rows(int width) const { return static_cast<size_t>(rows_) * static_cast<size_t>(width); }

  template <typename T>
  cuda::DeviceArray<T> Up(const std::vector<T>& from) {
    return cuda::Upload(from, "a benchmark");
  }
  // Numbers as they come in a model: products on zeros would run faster.
  cuda::DeviceArray<bf16> RandomArray(size_t count) {
    std::vector<uint16_t> some(size_t{1} << 20);
    uint32_t state = 12345;
    for (uint16_t& v : some) {
      state = state * 1664525u + 1013904223u;
      v = FloatToBF16((static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * 1.7f);
    }
    cuda::DeviceArray<bf16> out(count, "a benchmark");
    for (size_t at = 0; at < count; at += some.size()) {
      cuda::CopyToDeviceAndWait(out.data() + at, some.data(), std::min(some.size(), count - at) * 2,
                                "a benchmark");
    }
    return out;
  }
  void Memory(int pages) {
    const int stride = spec_.head_dim == 96 ? 128 : spec_.head_dim;  // as the backend has it
    memory_ = {nullptr, pages, 1, spec_.kv_heads, spec_.head_dim, stride};
    kv_ = RandomArray(static_cast<size_t>(pages) * kPageSize * 2 *
                      static_cast<size_t>(spec_.kv_heads * stride));
    memory_.pages = kv_.data();
  }
  void Describe(const cuda::EncodedPrompt& prompt) {
    info_ = Up(prompt.rows);
    q_ = RandomArray(Rows(spec_.heads * memory_.head_stride));
    rope_ = cuda::DeviceArray<float2>(Rows(spec_.head_dim / 2), "a benchmark", true);
    buffers_.heads = spec_.heads;
    buffers_.attention_scale = 1.44269504f / std::sqrt(static_cast<float>(spec_.head_dim));
    buffers_.rows = info_.data();
    buffers_.q = q_.data();
    buffers_.rope = rope_.data();
  }

  void Product(const char* what, const cuda::DeviceMatrix& matrix, int epilogue) {
    const cuda::GemmWeights weights = cuda::DescribeWeights(matrix);
    cuda::DeviceArray<bf16> in = RandomArray(Rows(matrix.ld));
    const cuda::GemmInput input = cuda::DescribeInput(in.data(), rows_, matrix.ld);
    const cuda::GemmRows rows{0, rows_};
    cuda::DeviceArray<float> sums(epilogue == 0 ? Rows(matrix.rows) : 0, "a benchmark");
    cuda::DeviceArray<bf16> out(epilogue == 1 ? Rows(matrix.rows / 2) : 0, "a benchmark");
    if (epilogue == 2) {
      Memory(PagesFor(rows_));
      std::vector<int32_t> table(static_cast<size_t>(PagesFor(rows_)));
      std::iota(table.begin(), table.end(), 0);
      const std::vector<int32_t> tokens = Tokens(rows_, spec_);
      const PrefillPlan plan{{table.data()}, 0, tokens};
      Describe(cuda::EncodePrompt({&plan, 1}, memory_, rows_, spec_.vocab));
    }
    const double ms = Time(stream_.get(), [&] {
      if (epilogue == 0) {
        cuda::GemmSums(launch_, weights, input, rows, sums.data(), matrix.rows, matrix.rows);
      } else if (epilogue == 1) {
        cuda::GemmSwiGlu(launch_, weights, input, rows, out.data(), matrix.rows / 2);
      } else {
        cuda::GemmQkv(launch_, weights, input, rows, buffers_, memory_, 0);
      }
    });
    std::printf("%-6s rows %5d %-8s %5d x %4d width %3d cluster %d %8.4f ms %6.0f TFLOP/s\n", name_,
                rows_, what, matrix.rows, matrix.cols, launch_.width, launch_.cluster, ms,
                MatrixFlop(matrix, rows_) / ms * 1e-9);
    std::fflush(stdout);
  }

  const char* name_;
  int rows_;
  ModelSpec spec_;
  cuda::DeviceModel model_;
  cuda::GemmLaunch launch_;
  cuda::Stream stream_;
  cuda::PromptMemory memory_;
  cuda::PromptBuffers buffers_;
  cuda::DeviceArray<bf16> kv_, q_;
  cuda::DeviceArray<cuda::PromptRow> info_;
  cuda::DeviceArray<float2> rope_;
};

void TimeParts(const char* name, const ModelSpec& spec, const std::vector<int>& lengths) {
  for (const int rows : lengths) {
    Parts parts(name, spec, rows);
    parts.Products();
    parts.Attention(0);
    parts.Attention(3 * rows);
    parts.RowSteps();
  }
}

std::vector<int> Numbers(const std::string& text) {
  std::vector<int> numbers;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');) numbers.push_back(std::stoi(item));
  return numbers;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      if (i + 1 >= argc) Fail("{} needs a value", word);
      return std::string(argv[++i]);
    };
    if (word == "parts") {
      options.parts = true;
    } else if (word == "--lengths") {
      options.lengths = Numbers(value());
    } else if (word == "--repeat") {
      options.repeat = std::stoi(value());
    } else if (word == "--rows") {
      options.settings.rows = std::stoi(value());
    } else if (word == "--width") {
      options.settings.gemm_width = std::stoi(value());
    } else if (word == "--cluster") {
      options.settings.gemm_cluster = std::stoi(value());
    } else if (word == "--weights") {
      const std::string form = value();
      if (form != "bf16" && form != "int8" && form != "int4")
        Fail("--weights {}: expected bf16, int8 or int4", form);
      options.form = form == "int8"   ? cuda::WeightForm::kInt8
                     : form == "int4" ? cuda::WeightForm::kInt4
                                      : cuda::WeightForm::kBF16;
    } else if (word == "--portable") {
      options.settings.portable = true;
    } else if (word == "--results") {
      options.results.open(value(), std::ios::app);
    } else if (word == "ouro" || word == "raven" || word == "nanbeige" || word == "huginn" ||
               word == "all") {
      options.model = word;
    } else {
      Fail("{} is no option, see the first lines of bench/cuda/prefill_bench.cc", word);
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  Options options = Parse(argc, argv);
  cuda::Check(cudaSetDevice(0), "selecting the GPU");
  const auto lengths = [&](std::vector<int> usual) {
    return options.lengths.empty() ? usual : options.lengths;
  };
  const auto run = [&](const char* family, const char* name, const ModelSpec& spec,
                       const std::vector<int>& readouts, const std::vector<int>& usual) {
    if (options.model != "all" && options.model != family) return;
    if (options.parts) {
      TimeParts(family, spec, lengths({1024, 4096}));
    } else {
      TimePrompts(name, spec, readouts, lengths(usual), options);
    }
  };
  run("ouro", "ouro-1.4b", Ouro14(), {1, 2, 4}, {1024, 4096, 16384});
  run("raven", "raven-llama", RavenLlama(), {2, 8, 32}, {1024, 8000});
  run("nanbeige", "nanbeige4.2-3b", Nanbeige42(), {1, 2}, {1024, 8000});
  run("huginn", "huginn-0125", Huginn0125(), {4, 16, 32}, {1024, 4000});
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
