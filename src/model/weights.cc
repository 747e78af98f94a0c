#include "model/weights.h"

#include <algorithm>

#include "base/error.h"
#include "model/families/families.h"

namespace loopspec {

int64_t LinearWeights::out() const {
  int64_t rows = 0;
  for (const TensorView& part : parts) rows += part.shape[0];
  return rows;
}

size_t LinearWeights::bytes() const {
  size_t bytes = bias.empty() ? 0 : bias.bytes();
  for (const TensorView& part : parts) bytes += part.bytes();
  return bytes;
}

namespace {

template <typename Holds>
bool AllParts(const LinearWeights& matrix, const Holds& holds) {
  return !matrix.parts.empty() &&
         std::all_of(matrix.parts.begin(), matrix.parts.end(), [&](const TensorView& part) {
           return part.quantized != nullptr && holds(*part.quantized);
         });
}

}  // namespace

bool LinearWeights::IsInt8OfOutputs() const {
  return AllParts(*this, [](const QuantizedTensor& part) { return part.IsInt8OfOutputs(); });
}

bool LinearWeights::IsInt4OfGroups() const {
  return AllParts(*this, [](const QuantizedTensor& part) { return part.IsInt4OfGroups(); });
}

size_t LinearWeights::gpu_bytes() const {
  const auto outputs = static_cast<size_t>(out()), elements = outputs * static_cast<size_t>(in());
  if (IsInt8OfOutputs()) return elements + outputs * sizeof(float);
  if (!IsInt4OfGroups()) return elements * 2;
  bool biased = false;
  for (const TensorView& part : parts) biased = biased || part.quantized->has_bias();
  return elements / 2 + elements / QuantizedTensor::kGpuInt4Group * (biased ? 4 : 2);
}

size_t BlockWeights::bytes() const {
  size_t bytes = qkv.bytes() + attn_out.bytes() + gate_up.bytes() + down.bytes() + router.bytes();
  for (int i = 0; i < active_experts; ++i)
    bytes += experts[static_cast<size_t>(i)].gate_up.bytes() +
             experts[static_cast<size_t>(i)].down.bytes();
  for (const TensorView* norm :
       {&attn_norm_in, &attn_norm_out, &mlp_norm_in, &mlp_norm_out, &q_norm, &k_norm, &qk_bias}) {
    if (!norm->empty()) bytes += norm->bytes();
  }
  return bytes;
}

namespace {

size_t Bytes(const TensorView& view) {
  return view.empty() ? 0 : view.bytes();
}

size_t StackBytes(const std::vector<BlockWeights>& stack) {
  size_t bytes = 0;
  for (const BlockWeights& block : stack) bytes += block.bytes();
  return bytes;
}

}  // namespace

size_t ModelWeights::prelude_bytes() const {
  return StackBytes(prelude) + Bytes(prelude_norm) + update.bytes() + Bytes(step);
}
size_t ModelWeights::core_bytes() const {
  return static_cast<size_t>(core_passes * static_cast<double>(StackBytes(core))) +
         adapter.bytes() + Bytes(decay) + Bytes(loop_norm);
}
size_t ModelWeights::coda_bytes() const {
  return StackBytes(coda) + Bytes(final_norm) + head.bytes();
}

size_t ModelWeights::gpu_bytes() const {
  const bool tied = head.parts[0].data == embedding.data;
  size_t bytes = static_cast<size_t>(embedding.elements()) * 2 + (tied ? 0 : head.gpu_bytes()) +
                 adapter.gpu_bytes() + update.gpu_bytes();
  for (const auto* stack : {&prelude, &core, &coda}) {
    for (const BlockWeights& block : *stack) {
      bytes += block.qkv.gpu_bytes() + block.attn_out.gpu_bytes() + block.gate_up.gpu_bytes() +
               block.down.gpu_bytes();
    }
  }
  return bytes;
}

TensorView WeightBinder::Take(const std::string& name, const std::vector<int64_t>& shape) {
  if (std::optional<TensorView> few =
          BindQuantized(quantization_, checkpoint_, name, shape, taken_)) {
    parameters_ += few->elements();
    return *std::move(few);
  }
  const auto it = checkpoint_.tensors().find(name);
  if (it == checkpoint_.tensors().end()) {
    Fail("{}: tensor {} of shape {} is missing", checkpoint_.path().string(), name,
         ShapeText(shape));
  }
  const TensorView& view = it->second;
  if (view.shape != shape) {
    Fail("{}: tensor {} has shape {}, expected {}", checkpoint_.path().string(), name,
         ShapeText(view.shape), ShapeText(shape));
  }
  if (view.dtype != DType::kF32 && view.dtype != DType::kBF16 && view.dtype != DType::kF16) {
    Fail("{}: tensor {} has dtype {}, expected F32, BF16 or F16", checkpoint_.path().string(), name,
         NameOf(view.dtype));
  }
  taken_.insert(name);
  parameters_ += view.elements();
  return view;
}

TensorView WeightBinder::Own(std::vector<float> values) {
  own_.push_back(std::make_shared<const std::vector<float>>(std::move(values)));
  const std::vector<float>& kept = *own_.back();
  return {reinterpret_cast<const std::byte*>(kept.data()),
          DType::kF32,
          {static_cast<int64_t>(kept.size())}};
}

void WeightBinder::Ignore(const std::string& name) {
  taken_.insert(name);
  for (std::string& part : QuantizedParts(name)) taken_.insert(std::move(part));
}

void WeightBinder::TakeHead(const std::string& name, ModelWeights& weights) {
  if (spec_.tied_head) {
    Ignore(name);
    weights.head.parts = {weights.embedding};
  } else {
    weights.head.parts = {Take(name, {spec_.vocab, spec_.hidden})};
  }
}

void WeightBinder::Finish() const {
  for (const auto& [name, view] : checkpoint_.tensors()) {
    if (taken_.find(name) == taken_.end()) {
      Fail("{}: tensor {} of shape {} is unknown to a {} model", checkpoint_.path().string(), name,
           ShapeText(view.shape), spec_.family);
    }
  }
}

ModelWeights BindWeights(const ModelSpec& spec, const Checkpoint& checkpoint,
                         Quantization quantization) {
  WeightBinder binder(spec, checkpoint, quantization);
  ModelWeights weights = spec.family == "ouro"       ? BindOuro(spec, binder)
                         : spec.family == "nanbeige" ? BindNanbeige(spec, binder)
                         : spec.family == "huginn"   ? BindHuginn(spec, binder)
                         : spec.family == "ifm"      ? BindIfm(spec, binder)
                                                     : BindRaven(spec, binder);
  binder.Finish();
  weights.parameters = binder.parameters();
  weights.own = binder.own();
  weights.core_passes = static_cast<double>(spec.core_calls()) / spec.core_layers;
  return weights;
}

}  // namespace loopspec
