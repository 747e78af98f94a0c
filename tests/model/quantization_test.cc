// Matrices of few bits put together from the tensors that a folder has in their place: what is
// right is read as the formats define it, what does not fit ends in one sentence.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "model/quantization.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

// The tensors of one file, by name.
class Parts {
 public:
  template <typename T>
  Parts& Set(const std::string& name, DType type, std::vector<int64_t> shape,
             const std::vector<T>& values) {
    Part& part = parts_[name];
    part = {type, std::move(shape), std::string(sizeof(T) * values.size(), '\0')};
    std::memcpy(part.bytes.data(), values.data(), part.bytes.size());
    return *this;
  }
  void Remove(const std::string& name) { parts_.erase(name); }

  // The matrix a.weight as it is read; empty where it is not of few bits.
  std::vector<std::vector<float>> Read(Quantization scheme, int64_t rows, int64_t columns) const {
    const TemporaryFolder folder;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, part] : parts_) {
      tensors.push_back(
          {name, {reinterpret_cast<const std::byte*>(part.bytes.data()), part.type, part.shape}});
    }
    WriteSafetensors(folder / "x.safetensors", tensors);
    const Checkpoint checkpoint = Checkpoint::OpenFile(folder / "x.safetensors");
    std::set<std::string, std::less<>> taken;
    const auto view = BindQuantized(scheme, checkpoint, "a.weight", {rows, columns}, taken);
    if (!view) return {};
    EXPECT_EQ(taken.size(), parts_.size()) << "every part belongs to the matrix";
    size_t bytes = 0;
    for (const NamedTensor& tensor : tensors) bytes += tensor.view.bytes();
    EXPECT_EQ(view->bytes(), bytes);
    std::vector<std::vector<float>> values;
    for (int64_t r = 0; r < rows; ++r) {
      values.emplace_back(static_cast<size_t>(columns));
      view->quantized->DequantizeRow(r, values.back().data());
    }
    return values;
  }

  std::string Refused(Quantization scheme, int64_t rows, int64_t columns) const {
    try {
      Read(scheme, rows, columns);
    } catch (const Error& error) {
      return error.what();
    }
    return "not refused";
  }

 private:
  struct Part {
    DType type;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Part> parts_;
};

constexpr Quantization kCompressed = Quantization::kCompressedTensors;
constexpr Quantization kMlx = Quantization::kMlx;

void ExpectRefused(const Parts& parts, Quantization scheme, const std::string& says,
                   int64_t rows = 2, int64_t columns = 16) {
  const std::string error = parts.Refused(scheme, rows, columns);
  EXPECT_NE(error.find(says), std::string::npos) << error;
  EXPECT_LT(error.size(), 600u) << "one sentence";
}

// Code i of row r, from 0 to 15.
unsigned Code(int64_t r, int64_t i) {
  return static_cast<unsigned>(r * 5 + i * 3) % 16;
}

std::vector<int32_t> Packed(int64_t rows, int64_t columns) {
  std::vector<int32_t> words;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t w = 0; w < columns / 8; ++w) {
      uint32_t word = 0;
      for (int64_t i = 0; i < 8; ++i) word |= Code(r, 8 * w + i) << (4 * i);
      words.push_back(static_cast<int32_t>(word));
    }
  }
  return words;
}

Parts Int4() {  // two rows of 16 inputs, groups of 8
  return Parts()
      .Set<int32_t>("a.weight_packed", DType::kI32, {2, 2}, Packed(2, 16))
      .Set<float>("a.weight_scale", DType::kF32, {2, 2}, {0.5f, 0.25f, 2, 1})
      .Set<int64_t>("a.weight_shape", DType::kI64, {2}, {2, 16});
}

Parts Int8() {
  std::vector<int8_t> codes;
  for (int i = 0; i < 32; ++i) codes.push_back(static_cast<int8_t>(i * 8 - 128));
  return Parts()
      .Set<int8_t>("a.weight", DType::kI8, {2, 16}, codes)
      .Set<float>("a.weight_scale", DType::kF32, {2, 1}, {0.5f, 2});
}

Parts Mlx4() {
  return Parts()
      .Set<int32_t>("a.weight", DType::kU32, {2, 2}, Packed(2, 16))
      .Set<float>("a.scales", DType::kF32, {2, 2}, {0.5f, 0.25f, 2, 1})
      .Set<float>("a.biases", DType::kF32, {2, 2}, {-4, 1, 0, 3});
}

TEST(Quantization, CompressedTensorsInt8) {
  const auto values = Int8().Read(kCompressed, 2, 16);
  for (size_t r = 0; r < 2; ++r) {
    for (size_t i = 0; i < 16; ++i) {
      const auto code = static_cast<float>(static_cast<int>(16 * r + i) * 8 - 128);
      EXPECT_EQ(values[r][i], code * (r == 0 ? 0.5f : 2.0f));
    }
  }
  Parts zeros = Int8();
  zeros.Set<int8_t>("a.weight_zero_point", DType::kI8, {2, 1}, {-7, 100});
  const auto shifted = zeros.Read(kCompressed, 2, 16);
  EXPECT_EQ(shifted[0][0], 0.5f * (-128 + 7));
  EXPECT_EQ(shifted[1][15], 2.0f * (120 - 100));
}

TEST(Quantization, CompressedTensorsInt4) {
  const float scales[2][2] = {{0.5f, 0.25f}, {2, 1}};
  auto values = Int4().Read(kCompressed, 2, 16);
  ASSERT_EQ(values.size(), 2u);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(values[static_cast<size_t>(r)][static_cast<size_t>(i)],
                scales[r][i / 8] * static_cast<float>(static_cast<int>(Code(r, i)) - 8));
    }
  }
  // Zero points lie eight to a word along the outputs, offset by 8 as codes are.
  Parts zeros = Int4();
  zeros.Set<int32_t>("a.weight_zero_point", DType::kI32, {1, 2},
                     {3 | 15 << 4, 8 | 0 << 4});  // -5 and 7; 0 and -8
  values = zeros.Read(kCompressed, 2, 16);
  const int zero[2][2] = {{-5, 0}, {7, -8}};
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(
          values[static_cast<size_t>(r)][static_cast<size_t>(i)],
          scales[r][i / 8] * static_cast<float>(static_cast<int>(Code(r, i)) - 8 - zero[r][i / 8]));
    }
  }
}

TEST(Quantization, CompressedTensorsInt8InWords) {
  Parts parts =
      Parts()
          .Set<uint8_t>("a.weight_packed", DType::kI32, {1, 2}, {0, 127, 128, 255, 1, 2, 3, 4})
          .Set<float>("a.weight_scale", DType::kF32, {1}, {0.5f});
  const auto values = parts.Read(kCompressed, 1, 8);
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0], (std::vector<float>{-64, -0.5f, 0, 63.5f, -63.5f, -63, -62.5f, -62}));
  parts.Set<uint8_t>("a.weight_zero_point", DType::kI32, {1, 1}, {138, 0, 0, 0});  // 10
  EXPECT_EQ(parts.Read(kCompressed, 1, 8)[0],
            (std::vector<float>{-69, -5.5f, -5, 58.5f, -68.5f, -68, -67.5f, -67}));
}

TEST(Quantization, MlxAffine) {
  const float scales[2][2] = {{0.5f, 0.25f}, {2, 1}}, biases[2][2] = {{-4, 1}, {0, 3}};
  const auto values = Mlx4().Read(kMlx, 2, 16);
  ASSERT_EQ(values.size(), 2u);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(values[static_cast<size_t>(r)][static_cast<size_t>(i)],
                scales[r][i / 8] * static_cast<float>(Code(r, i)) + biases[r][i / 8]);
    }
  }
  const Parts bytes = Parts()
                          .Set<uint8_t>("a.weight", DType::kU32, {1, 2}, {0, 1, 2, 3, 4, 5, 6, 255})
                          .Set<float>("a.scales", DType::kF32, {1, 1}, {2})
                          .Set<float>("a.biases", DType::kF32, {1, 1}, {-1});
  EXPECT_EQ(bytes.Read(kMlx, 1, 8),
            (std::vector<std::vector<float>>{{-1, 1, 3, 5, 7, 9, 11, 509}}));
}

TEST(Quantization, PlainMatricesAreNotOfFewBits) {
  const Parts parts = Parts().Set<float>("a.weight", DType::kF32, {1, 2}, {1, 2});
  EXPECT_TRUE(parts.Read(kCompressed, 1, 2).empty());
  EXPECT_TRUE(parts.Read(Quantization::kNone, 1, 2).empty());
}

TEST(Quantization, WhatDoesNotFitIsRefused) {
  const auto with = [](Parts parts, const std::function<void(Parts&)>& change) {
    change(parts);
    return parts;
  };
  ExpectRefused(Int4(), Quantization::kNone, "config.json does not say");
  ExpectRefused(Int4(), kMlx, "config.json does not say");
  ExpectRefused(Mlx4(), kCompressed, "config.json does not say");
  ExpectRefused(Int4(), kCompressed, "a.weight_packed has shape [2, 2]", 2, 24);
  ExpectRefused(Int4(), kCompressed, "a.weight_packed has shape [2, 2]", 3, 16);
  ExpectRefused(with(Int4(), [](Parts& p) { p.Remove("a.weight_scale"); }), kCompressed,
                "a.weight_scale is missing");
  ExpectRefused(with(Mlx4(), [](Parts& p) { p.Remove("a.biases"); }), kMlx, "a.biases is missing");
  ExpectRefused(with(Int4(),
                     [](Parts& p) {
                       p.Set<float>("a.weight_scale", DType::kF32, {2, 3}, {1, 1, 1, 1, 1, 1});
                     }),
                kCompressed, "a.weight_scale has shape [2, 3]");
  ExpectRefused(with(Int4(),
                     [](Parts& p) {
                       p.Set<int32_t>("a.weight_scale", DType::kI32, {2, 2}, {1, 1, 1, 1});
                     }),
                kCompressed, "a.weight_scale has dtype I32");
  ExpectRefused(with(Int4(),
                     [](Parts& p) {
                       p.Set<int64_t>("a.weight_shape", DType::kI64, {2}, {2, 32});
                     }),
                kCompressed, "weight_shape says [2, 32]");
  ExpectRefused(with(Int4(),
                     [](Parts& p) {
                       p.Set<int32_t>("a.weight_zero_point", DType::kI32, {2, 2}, {1, 1, 1, 1});
                     }),
                kCompressed, "a.weight_zero_point has shape [2, 2]");
  ExpectRefused(with(Int8(),
                     [](Parts& p) {
                       p.Set<int32_t>("a.weight_zero_point", DType::kI32, {2, 1}, {1, 1});
                     }),
                kCompressed, "a.weight_zero_point has dtype I32");
  ExpectRefused(with(Int4(),
                     [](Parts& p) {
                       p.Set<int32_t>("a.weight_g_idx", DType::kI32, {16},
                                      std::vector<int32_t>(16));
                     }),
                kCompressed, "weight_g_idx");
  ExpectRefused(with(Mlx4(),
                     [](Parts& p) {
                       p.Set<float>("a.biases", DType::kF32, {2, 1}, {1, 1});
                     }),
                kMlx, "a.biases has shape [2, 1]");
}

struct Refusal {
  const char* config;
  const char* says;
};

TEST(Quantization, OtherSchemesAreRefusedByName) {
  const Refusal refusals[] = {
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})", "GPTQ"},
      {R"({"quantization_config": {"quant_method": "awq"}})", "AWQ"},
      {R"({"quantization_config": {"quant_method": "bitsandbytes"}})", "bitsandbytes"},
      {R"({"quantization_config": {"quant_method": "mxfp4"}})", "MXFP4"},
      {R"({"quantization_config": {"quant_method": "modelopt"}})", "NVFP4"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}})",
       "NVFP4"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}})",
       "MXFP4"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}})",
       "float-quantized"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 3}}}}})",
       "3 bits"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}})",
       "float"},
      {R"({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})", "mxfp4"},
      {R"({"quantization_config": {"quant_method": "new"}})", "new"},
      {R"({"quantization_config": {"bits": 4}})", "no quant_method"},
      {R"({"quantization_config": 5})", "no object"},
  };
  for (const Refusal& refusal : refusals) {
    try {
      ParseQuantization(refusal.config, "config.json");
      FAIL() << refusal.config;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(refusal.says), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(ParseQuantization("{}", "c"), Quantization::kNone);
  EXPECT_EQ(ParseQuantization(R"({"quantization": {"group_size": 64, "bits": 4}})", "c"), kMlx);
  EXPECT_EQ(
      ParseQuantization(
          R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}})",
          "c"),
      kCompressed);
}

}  // namespace
}  // namespace loopspec
