#include "calibrate/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/memory_limit.h"
#include "base/thread_pool.h"
#include "kv/ledger.h"
#include "tensor/safetensors.h"

namespace loopspec {
namespace {

constexpr int64_t kGroup = 32;  // inputs of an int4 group

// A matrix to be quantized: the tensor it comes from and the name it is written under.
struct Job {
  std::string name;        // stem: without .weight
  const TensorView* from;  // in the checkpoint
  const std::byte* key;    // the product whose inputs it sees: that of its first part
};

std::vector<Job> ListJobs(const Model& model) {
  std::map<const std::byte*, std::string> names;
  for (const auto& [name, view] : model.checkpoint.tensors()) names[view.data] = name;
  std::vector<Job> jobs;
  const auto add = [&](const LinearWeights& linear) {
    for (const TensorView& part : linear.parts) {
      if (part.quantized != nullptr)
        Fail("{} is quantized already ({}): take the original", model.checkpoint.path().string(),
             part.type_name());
      const std::string& name = names.at(part.data);
      jobs.push_back(
          {name.substr(0, name.size() - std::strlen(".weight")), &part, linear.parts[0].data});
    }
  };
  for (const auto* stack : {&model.weights.prelude, &model.weights.core, &model.weights.coda}) {
    for (const BlockWeights& block : *stack) {
      add(block.qkv);
      add(block.attn_out);
      add(block.gate_up);
      add(block.down);
    }
  }
  add(model.weights.head);
  if (model.spec.tied_head) jobs.back().name = "lm_head";
  return jobs;
}

// Where finished matrices wait until all are there.
std::filesystem::path PartFile(const QuantizeRequest& request, const std::string& name) {
  return request.output / "parts" / (name + ".safetensors");
}

void WriteMatrix(const QuantizeRequest& request, const Job& job, const QuantizedCodes& result,
                 int64_t rows, int64_t columns, int64_t group) {
  std::vector<NamedTensor> tensors;
  std::vector<std::byte> packed;
  const int64_t shape[2] = {rows, columns};
  if (request.bits == 8) {
    tensors.push_back(
        {job.name + ".weight",
         {reinterpret_cast<const std::byte*>(result.codes.data()), DType::kI8, {rows, columns}}});
  } else {
    // Eight codes to an int32, the first in the lowest bits, each plus 8.
    packed.resize(result.codes.size() / 2);
    for (size_t i = 0; i < packed.size(); ++i) {
      packed[i] =
          static_cast<std::byte>((result.codes[2 * i] + 8) | (result.codes[2 * i + 1] + 8) << 4);
    }
    tensors.push_back(
        {job.name + ".weight_packed", {packed.data(), DType::kI32, {rows, columns / 8}}});
    tensors.push_back({job.name + ".weight_shape",
                       {reinterpret_cast<const std::byte*>(shape), DType::kI64, {2}}});
  }
  tensors.push_back({job.name + ".weight_scale",
                     {reinterpret_cast<const std::byte*>(result.scales.data()),
                      DType::kBF16,
                      {rows, columns / group}}});
  WriteSafetensors(PartFile(request, job.name), tensors);
}

std::vector<float> ValuesOf(const Job& job) {
  std::vector<float> values(static_cast<size_t>(job.from->elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadElement(job.from->data, job.from->dtype, static_cast<int64_t>(i));
    if (!std::isfinite(values[i]))
      Fail("{}.weight holds {} at place {}, expected numbers", job.name, values[i], i);
  }
  return values;
}

// Sums of x x^T of the inputs of every product, over all texts and depths.
using Moments = std::map<const std::byte*, std::vector<float>>;

// The sums of one product. Rows are added some at a time: the matrix is large, and is then gone
// through once for all of them.
class MomentSums {
 public:
  explicit MomentSums(int64_t width)
      : width_(static_cast<size_t>(width)), sums_(width_ * width_), rows_(kRows * width_) {}

  void Add(std::span<const float> row) {
    std::copy(row.begin(), row.end(), rows_.begin() + static_cast<std::ptrdiff_t>(held_ * width_));
    if (++held_ == kRows) Flush();
  }
  // All of them, both triangles.
  std::vector<float> Take() {
    Flush();
    for (size_t i = 0; i < width_; ++i) {
      for (size_t j = i + 1; j < width_; ++j) sums_[i * width_ + j] = sums_[j * width_ + i];
    }
    return std::move(sums_);
  }

 private:
  static constexpr size_t kRows = 32;

  void Flush() {
    float* to = sums_.data();
    for (size_t i = 0; i < width_; ++i, to += width_) {  // the lower triangle
      const float* row = rows_.data();
      for (size_t r = 0; r < held_; ++r, row += width_) {
        const float x = row[i];
        for (size_t j = 0; j <= i; ++j) to[j] += x * row[j];
      }
    }
    held_ = 0;
  }

  size_t width_, held_ = 0;
  std::vector<float> sums_, rows_;
};

Moments CollectMoments(const Model& model, const QuantizeRequest& request,
                       const std::set<const std::byte*>& wanted) {
  double bytes = 0;
  std::map<const std::byte*, int64_t> widths;
  for (const Job& job : ListJobs(model)) {
    if (!wanted.contains(job.key)) continue;
    const int64_t k = job.from->shape[1];
    if (widths.emplace(job.key, k).second)
      bytes += static_cast<double>(k) * static_cast<double>(k) * sizeof(float);
  }
  CheckMemory(bytes, "second moments of the inputs of all matrices");
  std::map<const std::byte*, MomentSums> sums;
  for (const auto& [key, k] : widths) sums.emplace(key, k);

  size_t longest = 1;
  int64_t total = 0, done = 0;
  for (const auto& text : request.texts) {
    longest = std::max(longest, text.size());
    total += static_cast<int64_t>(text.size());
  }
  BackendOptions options;
  options.readout_depths = {model.spec.recurrence};
  options.cells = 1;
  options.kv_positions = static_cast<int64_t>(longest);
  options.compute = ComputeMode::kF32;
  options.observe_inputs = [&](const std::byte* weights, std::span<const float> x) {
    const auto it = sums.find(weights);
    if (it != sums.end()) it->second.Add(x);
  };
  const auto backend = request.make_backend(model, options);
  for (const auto& text : request.texts) {
    KvLedger ledger(backend->pages(), 1);
    const SequencePages pages(ledger, static_cast<int64_t>(text.size()));
    backend->Score({{pages.pages().data()}, 0, text},
                   [](int32_t, int32_t, std::span<const float>) {});
    done += static_cast<int64_t>(text.size());
    if (request.progress) request.progress("reading texts", done, total);
  }
  Moments moments;
  for (auto& [key, sum] : sums) moments[key] = sum.Take();
  return moments;
}

OrderedJson QuantizationConfig(int bits, const std::vector<std::string>& ignored) {
  const bool int8 = bits == 8;
  const OrderedJson weights = {{"num_bits", bits},
                               {"type", "int"},
                               {"symmetric", true},
                               {"strategy", int8 ? "channel" : "group"},
                               {"group_size", int8 ? OrderedJson(nullptr) : OrderedJson(kGroup)},
                               {"dynamic", false},
                               {"actorder", nullptr},
                               {"block_structure", nullptr},
                               {"observer", "minmax"},
                               {"observer_kwargs", OrderedJson::object()}};
  const char* format = int8 ? "int-quantized" : "pack-quantized";
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"global_compression_ratio", nullptr},
          {"kv_cache_scheme", nullptr},
          {"ignore", ignored},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", weights},
              {"input_activations", nullptr},
              {"output_activations", nullptr}}}}}};
}

// Everything beside the weights, as it is: tokenizer, templates, defaults. A manifest of hashes
// speaks of the source alone.
void CopyTheRest(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name == "tokenizer") CopyTheRest(entry.path(), to / name);
    if (!entry.is_regular_file() || name.ends_with(".safetensors") ||
        name == "model.safetensors.index.json" || name == "config.json" ||
        name == "artifact_manifest.json" || name.ends_with(".bin") || name.ends_with(".gguf")) {
      continue;
    }
    std::error_code error;
    std::filesystem::copy_file(entry.path(), to / name,
                               std::filesystem::copy_options::overwrite_existing, error);
    if (error)
      Fail("cannot copy {} to {}: {}", entry.path().string(), to.string(), error.message());
  }
}

void WriteWhole(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out) Fail("cannot write {}", path.string());
}

// What a run that goes on must have been: the same source and settings.
std::string Manifest(const Model& model, const QuantizeRequest& request) {
  int64_t tokens = 0;
  uint64_t hash = 1469598103934665603ull;  // FNV-1a, over the texts
  for (const auto& text : request.texts) {
    tokens += static_cast<int64_t>(text.size());
    for (const int32_t token : text)
      hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211ull;
  }
  return OrderedJson{{"source", std::filesystem::absolute(request.source).string()},
                     {"source_bytes", model.checkpoint.mapped_bytes()},
                     {"bits", request.bits},
                     {"text_tokens", tokens},
                     {"text_hash", hash},
                     {"recurrence", model.spec.recurrence}}
             .dump(1) +
         "\n";
}

void PrepareOutput(const Model& model, const QuantizeRequest& request) {
  std::error_code error;
  if (std::filesystem::equivalent(request.source, request.output, error))
    Fail("{} is the source, expected another folder to write", request.output.string());
  if (FileExists(request.output / "config.json"))
    Fail("{} holds a model already, expected a new folder or one of a run that was broken off",
         request.output.string());
  std::filesystem::create_directories(request.output / "parts", error);
  if (error) Fail("cannot make {}: {}", (request.output / "parts").string(), error.message());
  const auto file = request.output / "parts" / "run.json";
  const std::string manifest = Manifest(model, request);
  if (FileExists(file) && ReadFile(file) != manifest) {
    Fail("{} holds parts of another run: give the same model, precision and texts, or remove it",
         (request.output / "parts").string());
  }
  WriteWhole(file, manifest);
}

}  // namespace

QuantizeResult QuantizeModel(const Model& model, const QuantizeRequest& request) {
  LOOPSPEC_CHECK(request.bits == 8 || request.bits == 4);
  if (model.spec.experts > 0)
    Fail("{} is a mixture of {} experts, expected a model with one feed-forward in each layer",
         request.source.string(), model.spec.experts);
  const std::vector<Job> jobs = ListJobs(model);
  for (const Job& job : jobs) {
    if (request.bits == 4 && job.from->shape[1] % kGroup != 0)
      Fail("{} has {} inputs, which are no whole groups of {}: quantize to int8", job.name,
           job.from->shape[1], kGroup);
  }
  PrepareOutput(model, request);
  QuantizeResult result;
  result.matrices = static_cast<int64_t>(jobs.size());
  std::set<const std::byte*> wanted;
  std::vector<const Job*> missing;
  for (const Job& job : jobs) {
    if (FileExists(PartFile(request, job.name))) {
      ++result.resumed;
    } else {
      missing.push_back(&job);
      wanted.insert(job.key);
    }
  }
  const bool gptq = request.bits == 4 && !request.texts.empty();
  const Moments moments =
      gptq && !missing.empty() ? CollectMoments(model, request, wanted) : Moments();
  ThreadPool pool(request.threads);
  for (size_t i = 0; i < missing.size(); ++i) {
    const Job& job = *missing[i];
    const int64_t rows = job.from->shape[0], columns = job.from->shape[1];
    const int64_t group = request.bits == 8 ? columns : kGroup;
    const std::vector<float> values = ValuesOf(job);
    WriteMatrix(
        request, job,
        gptq ? GptqMatrix(values, rows, columns, group, request.bits, moments.at(job.key), &pool)
             : RoundMatrix(values, rows, columns, group, request.bits, &pool),
        rows, columns, group);
    if (request.progress)
      request.progress("quantizing", static_cast<int64_t>(i) + 1, std::ssize(missing));
  }

  // One file of all: the parts, and the tensors that stay as they are.
  std::vector<Checkpoint> parts;
  std::vector<NamedTensor> tensors;
  std::set<std::string> replaced;
  for (const Job& job : jobs) {
    parts.push_back(Checkpoint::OpenFile(PartFile(request, job.name)));
    replaced.insert(job.name + ".weight");
  }
  std::vector<std::string> ignored;
  for (const auto& [name, view] : model.checkpoint.tensors()) {
    result.source_bytes += view.bytes();
    if (replaced.contains(name)) continue;
    tensors.push_back({name, view});
    if (view.shape.size() == 2 && name.ends_with(".weight") &&
        view.data != model.weights.embedding.data)
      ignored.push_back(name.substr(0, name.size() - std::strlen(".weight")));
  }
  for (const Checkpoint& part : parts) {
    for (const auto& [name, view] : part.tensors()) tensors.push_back({name, view});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  for (const NamedTensor& tensor : tensors) result.bytes += tensor.view.bytes();
  if (request.progress) request.progress("writing", 0, 1);
  WriteSafetensors(request.output / "model.safetensors", tensors);
  CopyTheRest(request.source, request.output);
  OrderedJson config = ParseOrderedJson(ReadFile(request.source / "config.json"), "config.json");
  for (const char* key : {"tie_word_embeddings", "tie_embeddings"}) {
    if (config.contains(key)) config[key] = false;
  }
  // What the binder passes over is none of a runtime's business either.
  config["quantization_config"] = QuantizationConfig(request.bits, ignored);
  WriteWhole(request.output / "config.json", config.dump(1) + "\n");
  std::error_code error;
  parts.clear();
  std::filesystem::remove_all(request.output / "parts", error);
  return result;
}

// ---- Rounding ----

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

// body(begin, end) over [0, n), by all members where there is a team and it is worth their while.
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
                          ThreadPool* pool) {
  const Range range = CodeRange(bits);
  const int64_t n = columns;
  std::vector<double> h(hessian.begin(), hessian.end());
  double mean = 0;
  for (int64_t i = 0; i < n; ++i)
    mean += h[static_cast<size_t>(i * n + i)] / static_cast<double>(n);
  if (mean <= 0) return RoundMatrix(values, rows, columns, group, bits, pool);
  for (int64_t i = 0; i < n; ++i) h[static_cast<size_t>(i * n + i)] += 0.01 * mean;
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

// ---- What it changed ----

namespace {

void Softmax(std::span<const float> logits, std::vector<double>& p) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  p.resize(logits.size());
  for (size_t i = 0; i < p.size(); ++i)
    sum += p[i] = std::exp(static_cast<double>(logits[i]) - top);
  for (double& value : p) value /= sum;
}

size_t Likeliest(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Reads a text; sums up agreement by depth and keeps the last depth's distributions.
struct ReadText {
  std::vector<std::vector<float>> last;     // logits by position
  std::vector<std::vector<size_t>> choice;  // [readout][position]
};
ReadText Read(Backend& backend, const std::vector<int32_t>& text) {
  const size_t readouts = backend.options().readout_depths.size();
  ReadText result;
  result.last.resize(text.size());
  result.choice.assign(readouts, std::vector<size_t>(text.size()));
  KvLedger ledger(backend.pages(), 1);
  const SequencePages pages(ledger, static_cast<int64_t>(text.size()));
  backend.Score({{pages.pages().data()}, 0, text},
                [&](int32_t position, int32_t readout, std::span<const float> logits) {
                  const auto at = static_cast<size_t>(position);
                  result.choice[static_cast<size_t>(readout)][at] = Likeliest(logits);
                  if (static_cast<size_t>(readout) + 1 == readouts)
                    result.last[at].assign(logits.begin(), logits.end());
                });
  return result;
}

// The first depth whose likeliest token at `position` is the last one's.
int AcceptedAt(const ReadText& read, size_t position, std::span<const int> depths) {
  size_t d = 0;
  while (read.choice[d][position] != read.choice.back()[position]) ++d;
  return depths[d];
}

}  // namespace

QuantizeReport CompareModels(Backend& source, Backend& quantized,
                             const std::vector<std::vector<int32_t>>& texts,
                             const std::function<void(int64_t done, int64_t total)>& progress) {
  QuantizeReport report;
  const std::vector<int>& depths = source.options().readout_depths;
  LOOPSPEC_CHECK(depths == quantized.options().readout_depths);
  report.depths.assign(depths.begin(), depths.end() - 1);
  const size_t proposals = report.depths.size();
  report.source_accepted.resize(proposals);
  report.accepted.resize(proposals);
  int64_t total = 0, done = 0, next_tokens = 0;
  for (const auto& text : texts) total += static_cast<int64_t>(text.size());
  double source_loss = 0, loss = 0, source_depth = 0, depth = 0;
  std::vector<double> p, q;
  for (const auto& text : texts) {
    const ReadText a = Read(source, text), b = Read(quantized, text);
    for (size_t i = 0; i < text.size(); ++i) {
      Softmax(a.last[i], p);
      Softmax(b.last[i], q);
      double distance = 0;
      for (size_t v = 0; v < p.size(); ++v) distance += std::fabs(p[v] - q[v]) / 2;
      report.distance += distance;
      report.agreed += a.choice[proposals][i] == b.choice[proposals][i];
      for (size_t d = 0; d < proposals; ++d) {
        report.source_accepted[d] += a.choice[d][i] == a.choice[proposals][i];
        report.accepted[d] += b.choice[d][i] == b.choice[proposals][i];
      }
      source_depth += AcceptedAt(a, i, depths);
      depth += AcceptedAt(b, i, depths);
      if (i + 1 < text.size()) {
        const auto next = static_cast<size_t>(text[i + 1]);
        source_loss -= std::log(std::max(p[next], 1e-300));
        loss -= std::log(std::max(q[next], 1e-300));
        ++next_tokens;
      }
    }
    done += static_cast<int64_t>(text.size());
    if (progress) progress(done, total);
  }
  report.positions = total;
  const auto n = static_cast<double>(std::max<int64_t>(1, total));
  report.distance /= n;
  report.agreed /= n;
  for (double& share : report.source_accepted) share /= n;
  for (double& share : report.accepted) share /= n;
  report.source_gamma = depths.back() * n / std::max(1.0, source_depth);
  report.gamma = depths.back() * n / std::max(1.0, depth);
  const auto predicted = static_cast<double>(std::max<int64_t>(1, next_tokens));
  report.source_perplexity = std::exp(source_loss / predicted);
  report.perplexity = std::exp(loss / predicted);
  return report;
}

}  // namespace loopspec
