#include "tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace loopspec {

TensorView TensorView::Rows(int64_t begin, int64_t end) const {
  LOOPSPEC_CHECK(quantized == nullptr && shape.size() == 2 && begin >= 0 && begin <= end &&
                 end <= shape[0]);
  const int64_t row_bytes = shape[1] * static_cast<int64_t>(SizeOf(dtype));
  return {data + begin * row_bytes, dtype, {end - begin, shape[1]}};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("{}", shape);
}

}  // namespace loopspec
