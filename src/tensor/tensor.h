// A tensor as the checkpoint has it: row-major elements in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace loopspec {

struct TensorView {
  const std::byte* data =
      nullptr;  // not necessarily aligned to the element: safetensors packs tightly
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  bool empty() const { return data == nullptr; }
  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }

  // Rows [begin, end) of a matrix.
  TensorView Rows(int64_t begin, int64_t end) const;
};

std::string ShapeText(const std::vector<int64_t>& shape);  // "[2048, 512]"

}  // namespace loopspec
