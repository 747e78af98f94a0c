// quantized_driver MODEL OUT.safetensors: every matrix of a model dequantised to float32, by role,
// for comparison with other libraries. quantized_driver --quantize BITS MODEL FOLDER: what
// `loopspec quantize` writes, without texts.
#include <fmt/format.h>

#include <cstdio>
#include <deque>
#include <string>

#include "base/error.h"
#include "model/model.h"
#include "quantize/quantize.h"

namespace loopspec {
namespace {

void Dump(const std::string& from, const std::string& to) {
  const Model model = Model::Load(from);
  std::deque<std::vector<float>> memory;
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, const TensorView& view) {
    memory.emplace_back(static_cast<size_t>(view.elements()));
    float* out = memory.back().data();
    for (int64_t r = 0; r < view.shape[0]; ++r, out += view.shape[1]) {
      if (view.quantized != nullptr) {
        view.quantized->DequantizeRow(r, out);
      } else {
        for (int64_t i = 0; i < view.shape[1]; ++i)
          out[i] = LoadElement(view.data, view.dtype, r * view.shape[1] + i);
      }
    }
    tensors.push_back(
        {name,
         {reinterpret_cast<const std::byte*>(memory.back().data()), DType::kF32, view.shape}});
  };
  const auto linear = [&](const std::string& name, const LinearWeights& weights) {
    for (size_t p = 0; p < weights.parts.size(); ++p)
      add(fmt::format("{}.{}", name, p), weights.parts[p]);
  };
  const auto stack = [&](const char* name, const std::vector<BlockWeights>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      linear(fmt::format("{}.{}.qkv", name, i), blocks[i].qkv);
      linear(fmt::format("{}.{}.attn_out", name, i), blocks[i].attn_out);
      linear(fmt::format("{}.{}.gate_up", name, i), blocks[i].gate_up);
      linear(fmt::format("{}.{}.down", name, i), blocks[i].down);
    }
  };
  add("embedding", model.weights.embedding);
  stack("prelude", model.weights.prelude);
  stack("core", model.weights.core);
  stack("coda", model.weights.coda);
  linear("head", model.weights.head);
  WriteSafetensors(to, tensors);
}

}  // namespace
}  // namespace loopspec

int main(int argc, char** argv) {
  try {
    if (argc == 5 && std::string(argv[1]) == "--quantize") {
      loopspec::QuantizeRequest request;
      request.bits = std::stoi(argv[2]);
      request.source = argv[3];
      request.output = argv[4];
      loopspec::QuantizeModel(loopspec::Model::Load(request.source), request);
    } else if (argc == 3) {
      loopspec::Dump(argv[1], argv[2]);
    } else {
      return 2;
    }
  } catch (const loopspec::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
