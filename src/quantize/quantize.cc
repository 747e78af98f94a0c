#include "quantize/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/memory_limit.h"
#include "base/thread_pool.h"
#include "base/whole_file.h"
#include "kv/ledger.h"
#include "quantize/gptq.h"
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
    // Four rows at a time, so that a sum is read and written once for all four; rows that are
    // missing at the end are zeros.
    std::fill(rows_.begin() + static_cast<std::ptrdiff_t>(held_ * width_), rows_.end(), 0.0f);
    float* to = sums_.data();
    for (size_t i = 0; i < width_; ++i, to += width_) {  // the lower triangle
      const float* a = rows_.data();
      for (size_t r = 0; r < held_; r += 4, a += 4 * width_) {
        const float *b = a + width_, *c = b + width_, *d = c + width_;
        const float x = a[i], y = b[i], z = c[i], w = d[i];
        for (size_t j = 0; j <= i; ++j) to[j] += (x * a[j] + y * b[j]) + (z * c[j] + w * d[j]);
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
    KvLedger ledger(backend->pages(), 1, backend->window_pages());
    const SequencePages pages(ledger, static_cast<int64_t>(text.size()));
    backend->Score({PlanOf(pages), 0, text}, [](int32_t, int32_t, std::span<const float>) {});
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
                     {"damping", request.damping},
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
  WriteWholeFile(file, manifest);
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
    WriteMatrix(request, job,
                gptq ? GptqMatrix(values, rows, columns, group, request.bits, moments.at(job.key),
                                  request.damping, &pool)
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
  // Matrices that stay as they are; a runtime that reads the folder must not look for their codes.
  config["quantization_config"] = QuantizationConfig(request.bits, ignored);
  WriteWholeFile(request.output / "config.json", config.dump(1) + "\n");
  std::error_code error;
  parts.clear();
  std::filesystem::remove_all(request.output / "parts", error);
  return result;
}

}  // namespace loopspec
