// GGUF files from strangers: what is right is read, every lie of a header ends in one sentence.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "model/gguf_model.h"
#include "model/model_spec.h"
#include "tensor/gguf.h"
#include "tests/support/gguf_writer.h"

namespace loopspec {
namespace {

GgufWriter Ouro(const std::string& architecture = "ouro", bool loops = true) {
  GgufWriter file;
  file.Text("general.architecture", architecture);
  file.Number(architecture + ".embedding_length", 32);
  file.Number(architecture + ".feed_forward_length", 64);
  file.Number(architecture + ".block_count", 1);
  file.Number(architecture + ".attention.head_count", 2);
  file.Number(architecture + ".attention.head_count_kv", 1);
  file.Number(architecture + ".context_length", 64);
  file.Real(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
  file.Real(architecture + ".rope.freq_base", 10000.0f);
  if (loops) file.Number(architecture + ".num_loops", 3);
  return file;
}

std::span<const std::byte> AsBytes(const std::string& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

std::string Config(const std::string& file) {
  TensorMap tensors;
  std::vector<std::unique_ptr<std::byte[]>> own;
  return ParseGgufModel(AsBytes(file), "x.gguf", tensors, own);
}

template <typename F>
std::string Refused(F body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Gguf, ReadsWhatIsRight) {
  GgufWriter writer = Ouro();
  writer.Tensor("token_embd.weight", {32, 5}, 0, std::string(5 * 32 * 4, '\0'));
  // Four rows of a q whose heads have 16 rows would not do; 32 rows of Q8_0 do: row r holds r.
  std::string q;
  for (int row = 0; row < 32; ++row)
    q += GgufWriter::Bytes(uint16_t{0x3C00}) + std::string(32, static_cast<char>(row));
  writer.Tensor("blk.0.attn_q.weight", {32, 32}, 8, q);
  const std::string file = writer.File();
  TensorMap tensors;
  std::vector<std::unique_ptr<std::byte[]>> own;
  const std::string config = ParseGgufModel(AsBytes(file), "x.gguf", tensors, own);
  const ModelSpec spec = ParseModelSpec(config, "x.gguf");
  EXPECT_EQ(spec.family, "ouro");
  EXPECT_EQ(spec.recurrence, 3);
  EXPECT_EQ(spec.vocab, 5);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_TRUE(spec.tied_head);
  const TensorView& view = tensors.at("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(view.quantized, nullptr);
  // Rows 2i and 2i + 1 of a head in the file are i and i + 8.
  float row[32];
  view.quantized->DequantizeRow(1, row);
  EXPECT_EQ(row[7], 2.0f);
  view.quantized->DequantizeRow(8, row);
  EXPECT_EQ(row[0], 1.0f);
  view.quantized->DequantizeRow(17, row);
  EXPECT_EQ(row[31], 18.0f);
}

TEST(Gguf, PlainRowsArePutBackToo) {
  GgufWriter writer = Ouro();
  writer.Tensor("token_embd.weight", {32, 5}, 0, std::string(5 * 32 * 4, '\0'));
  std::string k;
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 32; ++i) k += GgufWriter::Bytes(static_cast<float>(row));
  }
  writer.Tensor("blk.0.attn_k.weight", {32, 16}, 0, k);
  const std::string file = writer.File();
  TensorMap tensors;
  std::vector<std::unique_ptr<std::byte[]>> own;
  ParseGgufModel(AsBytes(file), "x.gguf", tensors, own);
  const TensorView& view = tensors.at("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(LoadElement(view.data, view.dtype, 1 * 32), 2.0f);
  EXPECT_EQ(LoadElement(view.data, view.dtype, 8 * 32), 1.0f);
  EXPECT_EQ(LoadElement(view.data, view.dtype, 15 * 32 + 31), 15.0f);
}

TEST(Gguf, ModelsThatCannotBeRunAreRefused) {
  const auto with_embedding = [](GgufWriter writer) {
    writer.Tensor("token_embd.weight", {32, 5}, 0, std::string(5 * 32 * 4, '\0'));
    return writer.File();
  };
  EXPECT_NE(
      Refused([&] { Config(with_embedding(Ouro("llama"))); }).find("expected ouro or nanbeige"),
      std::string::npos);
  EXPECT_NE(Refused([&] {
              Config(with_embedding(Ouro("ouro", false)));
            }).find("ouro.num_loops is missing"),
            std::string::npos);
  EXPECT_NE(Refused([&] { Config(Ouro().File()); }).find("token_embd.weight"), std::string::npos);
  GgufWriter k3 = Ouro();
  k3.Tensor("token_embd.weight", {256, 5}, 11, std::string(5 * 110, '\0'));
  EXPECT_NE(Refused([&] { Config(k3.File()); }).find("Q3_K, which is not supported"),
            std::string::npos);
  GgufWriter odd = Ouro();
  odd.Tensor("token_embd.weight", {40, 5}, 8, std::string(5 * 34, '\0'));
  EXPECT_NE(Refused([&] { Config(odd.File()); }).find("multiple of 32"), std::string::npos);
}

TEST(Gguf, HostileHeadersEndInASentence) {
  GgufWriter writer = Ouro();
  writer.Tensor("token_embd.weight", {32, 5}, 0, std::string(5 * 32 * 4, 'x'));
  const std::string file = writer.File();
  ASSERT_NO_THROW(Config(file));
  // Cut anywhere.
  for (size_t length = 0; length + 1 < file.size(); length += length < 600 ? 1 : 37)
    EXPECT_THROW(Config(file.substr(0, length)), Error) << length;
  // A large number anywhere in the header: an Error, or a file that still makes sense; no crash.
  int refused = 0;
  for (size_t at = 0; at + 8 <= 600; ++at) {
    std::string bad = file;
    std::memset(bad.data() + at, 0xFF, 8);
    try {
      Config(bad);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
  EXPECT_NE(Refused([&] { Config("GGML" + file.substr(4)); }).find("does not begin with GGUF"),
            std::string::npos);
  writer.version = 1;
  EXPECT_NE(Refused([&] { Config(writer.File()); }).find("version 1"), std::string::npos);
  // An extent of 0 hides that the others are larger than any file.
  GgufWriter nothing = Ouro();
  nothing.Tensor("token_embd.weight", {0, uint64_t{1} << 40, uint64_t{1} << 24}, 0, "");
  EXPECT_NE(Refused([&] { Config(nothing.File()); }).find("an extent of 0"), std::string::npos);
  GgufWriter twice = Ouro();
  twice.Text("general.architecture", "ouro");
  EXPECT_NE(Refused([&] { Config(twice.File()); }).find("appears twice"), std::string::npos);
}

}  // namespace
}  // namespace loopspec
