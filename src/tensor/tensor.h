// A tensor as the checkpoint has it: row-major elements in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/quantized.h"

namespace loopspec {

struct TensorView {
  const std::byte* data =
      nullptr;  // not necessarily aligned to the element: safetensors packs tightly
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // A matrix of few bits: `shape` is that of its values, `data` where its codes lie, and dtype
  // means nothing.
  std::shared_ptr<const QuantizedTensor> quantized = nullptr;

  bool empty() const { return data == nullptr; }
  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
  size_t bytes() const {
    if (quantized != nullptr) return quantized->stored_bytes;
    return static_cast<size_t>(elements()) * SizeOf(dtype);
  }
  // What its elements are, for people: "BF16", "int4".
  std::string_view type_name() const {
    return quantized != nullptr ? quantized->name() : NameOf(dtype);
  }

  // Rows [begin, end) of a matrix.
  TensorView Rows(int64_t begin, int64_t end) const;
};

std::string ShapeText(const std::vector<int64_t>& shape);  // "[2048, 512]"

}  // namespace loopspec
