#include "tensor/gguf.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"

namespace loopspec {
namespace {

constexpr uint64_t kMaxName = 4096;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxList = 1 << 24;

// Reads numbers and strings, never past the end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, const std::string& what) : file_(file), what_(what) {}

  template <typename T>
  T Read() {
    Need(sizeof(T));
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string String(uint64_t limit) {
    const auto length = Read<uint64_t>();
    if (length > limit)
      Fail("{}: a name or text of {} bytes, expected at most {}", what_, length, limit);
    Need(length);
    std::string text(reinterpret_cast<const char*>(file_.data()) + at_, length);
    at_ += length;
    return text;
  }
  void Need(uint64_t bytes) const {
    if (bytes > file_.size() - at_)
      Fail("{}: the file ends at byte {} inside its header (is it truncated?)", what_,
           file_.size());
  }
  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }

 private:
  std::span<const std::byte> file_;
  const std::string& what_;
  uint64_t at_ = 0;
};

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kFloat,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kDouble
};

Json ReadValue(Cursor& in, uint32_t type, const std::string& what, int depth) {
  switch (type) {
    case kU8:
      return in.Read<uint8_t>();
    case kI8:
      return in.Read<int8_t>();
    case kU16:
      return in.Read<uint16_t>();
    case kI16:
      return in.Read<int16_t>();
    case kU32:
      return in.Read<uint32_t>();
    case kI32:
      return in.Read<int32_t>();
    case kFloat:
      return in.Read<float>();
    case kBool:
      return in.Read<uint8_t>() != 0;
    case kText:
      return in.String(uint64_t{1} << 26);
    case kU64:
      return in.Read<uint64_t>();
    case kI64:
      return in.Read<int64_t>();
    case kDouble:
      return in.Read<double>();
    case kArray: {
      if (depth >= 4) Fail("{}: lists in lists in lists, expected fewer", what);
      const auto inner = in.Read<uint32_t>();
      const auto count = in.Read<uint64_t>();
      // Every element takes a byte at least.
      if (count > in.left() || count > kMaxList)
        Fail("{}: a list of {} entries in a file that has {} bytes left", what, count, in.left());
      Json list = Json::array();
      for (uint64_t i = 0; i < count; ++i) list.push_back(ReadValue(in, inner, what, depth + 1));
      return list;
    }
    default:
      Fail("{}: a value of type {}, expected 0 to 12", what, type);
  }
}

struct TypeEntry {
  uint32_t type;
  const char* name;
  bool plain;
  DType dtype;
  QuantizedTensor::Layout layout;
  int64_t group;
};
using Layout = QuantizedTensor::Layout;
constexpr std::array<TypeEntry, 7> kTypes = {{{0, "F32", true, DType::kF32, Layout::kBytes, 0},
                                              {1, "F16", true, DType::kF16, Layout::kBytes, 0},
                                              {30, "BF16", true, DType::kBF16, Layout::kBytes, 0},
                                              {8, "Q8_0", false, DType::kU8, Layout::kQ8_0, 32},
                                              {2, "Q4_0", false, DType::kU8, Layout::kQ4_0, 32},
                                              {12, "Q4_K", false, DType::kU8, Layout::kQ4_K, 32},
                                              {14, "Q6_K", false, DType::kU8, Layout::kQ6_K, 16}}};

std::string TypeName(uint32_t type) {
  struct Known {
    uint32_t type;
    const char* name;
  };
  constexpr std::array<Known, 10> others = {{{3, "Q4_1"},
                                             {6, "Q5_0"},
                                             {7, "Q5_1"},
                                             {10, "Q2_K"},
                                             {11, "Q3_K"},
                                             {13, "Q5_K"},
                                             {15, "Q8_K"},
                                             {20, "IQ4_NL"},
                                             {23, "IQ4_XS"},
                                             {39, "MXFP4"}}};
  for (const Known& known : others) {
    if (known.type == type) return known.name;
  }
  return fmt::format("number {}", type);
}

TensorView ReadTensor(Cursor& in, const std::string& where, uint64_t& offset) {
  const auto dimensions = in.Read<uint32_t>();
  if (dimensions < 1 || dimensions > 4)
    Fail("{} has {} dimensions, expected 1 to 4", where, dimensions);
  std::vector<int64_t> shape;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = in.Read<uint64_t>();
    if (extent == 0) Fail("{} has an extent of 0", where);
    if (extent > uint64_t{1} << 40 || __builtin_mul_overflow(elements, extent, &elements) ||
        elements >> 56 != 0) {
      Fail("{} has an extent of {}, larger than any file", where, extent);
    }
    shape.insert(shape.begin(), static_cast<int64_t>(extent));
  }
  const auto type = in.Read<uint32_t>();
  offset = in.Read<uint64_t>();
  const auto entry = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeEntry& known) { return known.type == type; });
  if (entry == kTypes.end()) {
    Fail("{} is of type {}, which is not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K are)",
         where, TypeName(type));
  }
  TensorView view{nullptr, entry->dtype, shape};
  if (entry->plain) return view;
  const BlockSize block = BlockOf(entry->layout);
  if (shape.size() != 2 || shape[1] % block.elements != 0) {
    Fail("{} of type {} has shape {}, expected rows of a multiple of {}", where, entry->name,
         ShapeText(shape), block.elements);
  }
  auto matrix = std::make_shared<QuantizedTensor>();
  matrix->layout = entry->layout;
  matrix->rows = shape[0];
  matrix->columns = shape[1];
  matrix->group = entry->group;
  matrix->code_bytes = matrix->stored_bytes =
      static_cast<size_t>(shape[0] * (shape[1] / block.elements) * block.bytes);
  view.quantized = std::move(matrix);
  return view;
}

}  // namespace

TensorMap ParseGguf(std::span<const std::byte> file, const std::string& what, Json& metadata) {
  Cursor in(file, what);
  if (file.size() < 24 || std::memcmp(file.data(), "GGUF", 4) != 0)
    Fail("{}: no GGUF file: it does not begin with GGUF", what);
  in.Read<uint32_t>();
  const auto version = in.Read<uint32_t>();
  if (version != 2 && version != 3) Fail("{}: GGUF version {}, expected 2 or 3", what, version);
  const auto count = in.Read<uint64_t>();
  const auto entries = in.Read<uint64_t>();
  if (count > kMaxTensors || entries > kMaxTensors)
    Fail("{}: {} tensors and {} entries, expected at most {} of each", what, count, entries,
         kMaxTensors);
  metadata = Json::object();
  for (uint64_t i = 0; i < entries; ++i) {
    const std::string key = in.String(kMaxName);
    const auto type = in.Read<uint32_t>();
    if (metadata.contains(key)) Fail("{}: the entry {} appears twice", what, Printable(key));
    metadata[key] = ReadValue(in, type, what, 0);
  }
  struct Placed {
    std::string name;
    TensorView view;
    uint64_t offset;
  };
  std::vector<Placed> placed;
  for (uint64_t i = 0; i < count; ++i) {
    std::string name = in.String(kMaxName);
    const std::string where = fmt::format("{}: tensor {}", what, Printable(name));
    uint64_t offset = 0;
    TensorView view = ReadTensor(in, where, offset);
    placed.push_back({std::move(name), std::move(view), offset});
  }
  const uint64_t alignment =
      static_cast<uint64_t>(FindInt(metadata, "general.alignment", what, 1, 1 << 20).value_or(32));
  const uint64_t begin = (in.at() + alignment - 1) / alignment * alignment;
  TensorMap tensors;
  for (Placed& tensor : placed) {
    const uint64_t bytes = tensor.view.bytes();
    if (begin > file.size() || tensor.offset > file.size() - begin ||
        bytes > file.size() - begin - tensor.offset) {
      Fail("{}: tensor {} lies at bytes {} to {} of the data, which has {} (is it truncated?)",
           what, Printable(tensor.name), tensor.offset, tensor.offset + bytes,
           begin > file.size() ? 0 : file.size() - begin);
    }
    tensor.view.data = file.data() + begin + tensor.offset;
    if (tensor.view.quantized != nullptr) {
      auto matrix = std::make_shared<QuantizedTensor>(*tensor.view.quantized);
      matrix->codes = tensor.view.data;
      tensor.view.quantized = std::move(matrix);
    }
    if (!tensors.emplace(tensor.name, std::move(tensor.view)).second)
      Fail("{}: tensor {} appears twice", what, Printable(tensor.name));
  }
  return tensors;
}

}  // namespace loopspec
