#include "model/quantization.h"

#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace loopspec {
namespace {

constexpr std::string_view kAdvice =
    "take the original and run loopspec quantize, or a compressed-tensors (int8, int4), MLX or "
    "GGUF "
    "version";

[[noreturn]] void Refuse(const std::string& what, std::string_view scheme) {
  Fail("{}: the weights are quantized by {:.40}, which is not supported: {}", what, scheme,
       kAdvice);
}

// Formats of compressed-tensors that hold integers with a scale.
bool KnownFormat(std::string_view format) {
  return format == "int-quantized" || format == "pack-quantized" || format == "naive-quantized" ||
         format == "dense";
}

Quantization CompressedTensors(const Json& config, const std::string& what) {
  const auto check = [&](const Json& object) {
    const auto format = FindString(object, "format", what);
    if (format && !KnownFormat(*format)) {
      Refuse(what, format->find("nvfp4") != std::string::npos   ? "NVFP4 (compressed-tensors)"
                   : format->find("mxfp4") != std::string::npos ? "MXFP4 (compressed-tensors)"
                                                                : "compressed-tensors " + *format);
    }
  };
  check(config);
  const auto groups = config.find("config_groups");
  if (groups == config.end() || groups->is_null()) return Quantization::kCompressedTensors;
  if (!groups->is_object()) Fail("{}: config_groups is no object", what);
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) Fail("{}: config_groups.{:.60} is no object", what, name);
    check(group);
    const auto weights = group.find("weights");
    if (weights == group.end() || weights->is_null()) continue;
    if (!weights->is_object()) Fail("{}: weights of {:.60} is no object", what, name);
    const auto type = FindString(*weights, "type", what);
    if (type && *type != "int") Refuse(what, "compressed-tensors of type " + *type);
    const int64_t bits = FindInt(*weights, "num_bits", what, 1, 64).value_or(8);
    if (bits != 4 && bits != 8)
      Fail("{}: weights of {} bits, expected 8 or 4: {}", what, bits, kAdvice);
  }
  return Quantization::kCompressedTensors;
}

}  // namespace

Quantization ParseQuantization(const std::string& config, const std::string& what) {
  const Json json = ParseJson(config, what);
  if (!json.is_object()) Fail("{}: expected a JSON object", what);
  const auto at = [&](const char* key) -> const Json* {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) return nullptr;
    if (!it->is_object()) Fail("{}: {} is no object", what, key);
    return &*it;
  };
  const Json* entry = at("quantization_config");
  const std::string where = what + ": quantization_config";
  if (entry == nullptr) entry = at("compression_config");
  if (const Json* mlx = at("quantization"); mlx != nullptr && entry == nullptr) entry = mlx;
  if (entry == nullptr) return Quantization::kNone;
  const auto method = FindString(*entry, "quant_method", where);
  if (!method) {
    // MLX names no method: group_size, bits and perhaps a mode.
    if (!entry->contains("group_size") || !entry->contains("bits"))
      Fail("{} has no quant_method", where);
    const auto mode = FindString(*entry, "mode", where);
    if (mode && *mode != "affine") Refuse(what, "MLX " + *mode);
    return Quantization::kMlx;
  }
  if (*method == "compressed-tensors") return CompressedTensors(*entry, where);
  struct Name {
    std::string_view method, text;
  };
  constexpr std::array<Name, 7> names = {{{"gptq", "GPTQ"},
                                          {"awq", "AWQ"},
                                          {"bitsandbytes", "bitsandbytes"},
                                          {"mxfp4", "MXFP4"},
                                          {"modelopt", "ModelOpt (NVFP4 or FP8)"},
                                          {"fp8", "FP8"},
                                          {"fbgemm_fp8", "FP8"}}};
  for (const Name& name : names) {
    if (*method == name.method) Refuse(what, name.text);
  }
  Refuse(what, *method);
}

Quantization ReadQuantization(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  if (!FileExists(path)) return Quantization::kNone;
  return ParseQuantization(ReadFile(path), path.string());
}

namespace {

std::string StemOf(const std::string& name) {
  constexpr std::string_view kEnd = ".weight";
  return name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : std::string();
}

class PartFinder {
 public:
  PartFinder(const Checkpoint& checkpoint, std::string stem,
             std::set<std::string, std::less<>>& taken)
      : checkpoint_(checkpoint), stem_(std::move(stem)), taken_(taken) {}

  const TensorView* Find(const char* part) const {
    const auto it = checkpoint_.tensors().find(stem_ + part);
    return it == checkpoint_.tensors().end() ? nullptr : &it->second;
  }
  const TensorView* Take(const char* part) {
    const TensorView* view = Find(part);
    if (view != nullptr) {
      taken_.insert(stem_ + part);
      bytes_ += view->bytes();
    }
    return view;
  }
  const TensorView& Need(const char* part) {
    const TensorView* view = Take(part);
    if (view == nullptr)
      Fail("{}: {}{} is missing, which belongs to {}", checkpoint_.path().string(), stem_, part,
           stem_);
    return *view;
  }
  // [rows, groups] (or [rows]) of floating point: the scale of one output or group each.
  QuantizedTensor::Table Table(const char* part, int64_t rows, int64_t columns, int64_t& groups) {
    const TensorView& view = Need(part);
    const auto& s = view.shape;
    const bool fits = (s.size() == 1 && s[0] == rows) || (s.size() == 2 && s[0] == rows);
    const int64_t found = s.size() == 2 ? s[1] : 1;
    if (!fits || found < 1 || columns % found != 0 || (groups != 0 && groups != found)) {
      Fail(
          "{}: {}{} has shape {}, expected one number for each of {} outputs and their groups of "
          "{} inputs",
          checkpoint_.path().string(), stem_, part, ShapeText(s), rows, columns);
    }
    if (view.dtype != DType::kF32 && view.dtype != DType::kBF16 && view.dtype != DType::kF16) {
      Fail("{}: {}{} has dtype {}, expected F32, BF16 or F16", checkpoint_.path().string(), stem_,
           part, NameOf(view.dtype));
    }
    groups = found;
    return {view.data, view.dtype};
  }
  [[noreturn]] void BadShape(const char* part, const std::vector<int64_t>& shape,
                             const std::string& expected) const {
    Fail("{}: {}{} has shape {}, expected {}", checkpoint_.path().string(), stem_, part,
         ShapeText(shape), expected);
  }
  const std::string& stem() const { return stem_; }
  size_t bytes() const { return bytes_; }
  std::string path() const { return checkpoint_.path().string(); }

 private:
  const Checkpoint& checkpoint_;
  const std::string stem_;
  std::set<std::string, std::less<>>& taken_;
  size_t bytes_ = 0;
};

// Codes in words of 32 bits, 8 or 4 of them to a word, the first in the lowest bits: on a
// little-endian machine bytes, or halves of bytes, in order.
QuantizedTensor::Layout WordLayout(const PartFinder& parts, const char* part,
                                   const TensorView& words, int64_t rows, int64_t columns) {
  if (words.shape.size() == 2 && words.shape[0] == rows && columns % 8 == 0) {
    if (words.shape[1] == columns / 8) return QuantizedTensor::Layout::kNibbles;
    if (words.shape[1] == columns / 4) return QuantizedTensor::Layout::kBytes;
  }
  parts.BadShape(
      part, words.shape,
      fmt::format("[{}, {}] or [{}, {}]: {} inputs in words of eight 4-bit or four 8-bit "
                  "numbers",
                  rows, columns / 8, rows, columns / 4, columns));
}

void CheckZeros(const PartFinder& parts, const QuantizedTensor& matrix, const TensorView& zeros,
                int64_t groups) {
  const bool packed = matrix.layout != QuantizedTensor::Layout::kSigned8;
  const int64_t per_word = matrix.layout == QuantizedTensor::Layout::kNibbles ? 8 : 4;
  const int64_t rows = packed ? (matrix.rows + per_word - 1) / per_word : matrix.rows;
  const std::vector<int64_t> expected = {rows, groups};
  if (zeros.shape != expected && !(groups == 1 && zeros.shape == std::vector<int64_t>{rows}))
    parts.BadShape(".weight_zero_point", zeros.shape, ShapeText(expected));
  const DType type = packed ? DType::kI32 : DType::kI8;
  if (zeros.dtype != type)
    Fail("{}: {}.weight_zero_point has dtype {}, expected {}", parts.path(), parts.stem(),
         NameOf(zeros.dtype), NameOf(type));
}

QuantizedTensor CompressedMatrix(PartFinder& parts, int64_t rows, int64_t columns) {
  QuantizedTensor matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  if (parts.Find(".weight_g_idx") != nullptr)
    Fail("{}: {} orders its inputs by activation (weight_g_idx), which is not supported",
         parts.path(), parts.stem());
  if (const TensorView* words = parts.Take(".weight_packed"); words != nullptr) {
    if (words->dtype != DType::kI32)
      Fail("{}: {}.weight_packed has dtype {}, expected I32", parts.path(), parts.stem(),
           NameOf(words->dtype));
    matrix.layout = WordLayout(parts, ".weight_packed", *words, rows, columns);
    matrix.codes = words->data;
    matrix.code_bytes = words->bytes();
    // What weight_shape says follows from the model: [rows, columns].
    if (const TensorView* shape = parts.Take(".weight_shape"); shape != nullptr) {
      int64_t extents[2] = {0, 0};
      if (shape->elements() == 2) {
        for (int i = 0; i < 2; ++i) {
          if (shape->dtype == DType::kI64) std::memcpy(&extents[i], shape->data + 8 * i, 8);
          if (shape->dtype == DType::kI32) {
            int32_t extent;
            std::memcpy(&extent, shape->data + 4 * i, 4);
            extents[i] = extent;
          }
        }
      }
      if (extents[0] != rows || extents[1] != columns)
        Fail("{}: {}.weight_shape says [{}, {}], expected [{}, {}]", parts.path(), parts.stem(),
             extents[0], extents[1], rows, columns);
    }
  } else {
    const TensorView& codes = parts.Need(".weight");
    if (codes.shape != std::vector<int64_t>{rows, columns})
      parts.BadShape(".weight", codes.shape, ShapeText({rows, columns}));
    matrix.layout = QuantizedTensor::Layout::kSigned8;
    matrix.codes = codes.data;
    matrix.code_bytes = codes.bytes();
  }
  int64_t groups = 0;
  matrix.scales = parts.Table(".weight_scale", rows, columns, groups);
  matrix.group = columns / groups;
  if (const TensorView* zeros = parts.Take(".weight_zero_point"); zeros != nullptr) {
    CheckZeros(parts, matrix, *zeros, groups);
    matrix.zeros = zeros->data;
  }
  return matrix;
}

QuantizedTensor MlxMatrix(PartFinder& parts, int64_t rows, int64_t columns) {
  QuantizedTensor matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  const TensorView& words = parts.Need(".weight");
  matrix.layout = WordLayout(parts, ".weight", words, rows, columns);
  matrix.codes = words.data;
  matrix.code_bytes = words.bytes();
  int64_t groups = 0;
  matrix.scales = parts.Table(".scales", rows, columns, groups);
  matrix.biases = parts.Table(".biases", rows, columns, groups);
  matrix.group = columns / groups;
  return matrix;
}

}  // namespace

std::vector<std::string> QuantizedParts(const std::string& name) {
  const std::string stem = StemOf(name);
  if (stem.empty()) return {};
  std::vector<std::string> names;
  for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point",
                           ".scales", ".biases"})
    names.push_back(stem + part);
  return names;
}

std::optional<TensorView> BindQuantized(Quantization scheme, const Checkpoint& checkpoint,
                                        const std::string& name, const std::vector<int64_t>& shape,
                                        std::set<std::string, std::less<>>& taken) {
  if (const auto it = checkpoint.tensors().find(name);
      it != checkpoint.tensors().end() && it->second.quantized != nullptr) {
    if (it->second.shape != shape)
      Fail("{}: tensor {} has shape {}, expected {}", checkpoint.path().string(), name,
           ShapeText(it->second.shape), ShapeText(shape));
    taken.insert(name);
    return it->second;
  }
  const std::string stem = StemOf(name);
  if (shape.size() != 2 || stem.empty()) return std::nullopt;
  PartFinder parts(checkpoint, stem, taken);
  const TensorView* plain = parts.Find(".weight");
  const bool packed = parts.Find(".weight_packed") != nullptr;
  const bool bytes = plain != nullptr && plain->dtype == DType::kI8;
  const bool words = plain != nullptr && plain->dtype == DType::kU32;
  if (!packed && !bytes && !words) return std::nullopt;
  const Quantization needed = words ? Quantization::kMlx : Quantization::kCompressedTensors;
  if (scheme != needed) {
    Fail(
        "{}: {} is stored as {}, but config.json does not say that the weights are quantized by {}",
        checkpoint.path().string(), stem, packed ? "weight_packed" : NameOf(plain->dtype),
        words ? "MLX (quantization)" : "compressed-tensors (quantization_config)");
  }
  auto matrix = std::make_shared<QuantizedTensor>(
      words ? MlxMatrix(parts, shape[0], shape[1]) : CompressedMatrix(parts, shape[0], shape[1]));
  matrix->stored_bytes = parts.bytes();
  TensorView view{matrix->codes, DType::kU8, shape};
  view.quantized = std::move(matrix);
  return view;
}

}  // namespace loopspec
