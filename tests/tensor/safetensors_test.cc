// Checkpoint files from strangers: every lie of a header or an index ends in one sentence that
// names it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tensor/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

std::string File(const std::string& header, size_t data_bytes, int64_t claimed = -1) {
  const uint64_t length = claimed < 0 ? header.size() : static_cast<uint64_t>(claimed);
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\1');
}

std::string ErrorOf(const std::string& file) {
  try {
    ParseSafetensors(std::as_bytes(std::span(file.data(), file.size())), "x.safetensors");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void ExpectError(const std::string& file, const std::string& part) {
  const std::string error = ErrorOf(file);
  EXPECT_NE(error.find(part), std::string::npos) << error;
  EXPECT_NE(error.find("x.safetensors"), std::string::npos) << error;
  EXPECT_LT(error.size(), 600u) << "one sentence, not a dump";
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + Entry("w", dtype, shape, offsets) + "}";
}

TEST(Safetensors, ReadsWhatIsThere) {
  const std::string file = File(
      "{" + Entry("a", "F32", "[2,3]", "[0,24]") + "," + Entry("b", "BF16", "[]", "[24,26]") + "," +
          Entry("none", "F16", "[0,7]", "[26,26]") + R"(,"__metadata__":{"format":"pt"}})",
      26);
  const TensorMap tensors =
      ParseSafetensors(std::as_bytes(std::span(file.data(), file.size())), "x");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors.at("a").bytes(), 24u);
  EXPECT_EQ(tensors.at("b").elements(), 1);
  EXPECT_EQ(tensors.at("none").elements(), 0);
  EXPECT_EQ(tensors.at("b").data - tensors.at("a").data, 24);
}

TEST(Safetensors, BadHeaderLength) {
  ExpectError("", "too few");
  ExpectError("1234567", "too few");
  ExpectError(File("{}", 0, 3), "claims 3 bytes");
  ExpectError(File("{}", 0, INT64_MAX), "claims");
  ExpectError(std::string(8, '\xFF') + "{}", "claims 18446744073709551615");
  ExpectError(File("{}", 200, 101 << 20), "claims");
  ExpectError(File("{}", 0, 0), "JSON");
  ExpectError(File("{}", 0, 1), "JSON");
}

TEST(Safetensors, BadJson) {
  ExpectError(File("[]", 0), "no JSON object");
  ExpectError(File("{\"w\":3}", 0), "tensor w");
  ExpectError(File("{\"w\":", 0), "JSON");
  ExpectError(File("{\"\xFF\":1}", 0), "JSON");
  ExpectError(File(std::string(100000, '['), 0), "nested");
  ExpectError(File(std::string("{\"a\":") + std::string(600, '[') + std::string(600, ']') + "}", 0),
              "nested");
  ExpectError(File("{\"w\":{}}", 0), "tensor w has no dtype");
  ExpectError(File(R"({"w":{"dtype":7}})", 0), "dtype");
  ExpectError(File(R"({"w":{"dtype":"F32"}})", 0), "no shape");
  ExpectError(File(R"({"w":{"dtype":"F32","shape":[1]}})", 4), "data_offsets");
}

TEST(Safetensors, DuplicateNames) {
  ExpectError(
      File("{" + Entry("w", "F32", "[1]", "[0,4]") + "," + Entry("w", "F32", "[1]", "[4,8]") + "}",
           8),
      "w appears twice");
}

TEST(Safetensors, DTypesAndShapes) {
  for (const char* dtype : {"F64", "I16", "BOOL", "F8_E4M3", "", "f32"})
    ExpectError(File(One(dtype, "[1]", "[0,4]"), 4), "dtype");
  ExpectError(File(One("F32", "4", "[0,4]"), 4), "no shape");
  ExpectError(File(One("F32", "[-1]", "[0,4]"), 4), "extent");
  ExpectError(File(One("F32", "[1.5]", "[0,4]"), 4), "extent");
  ExpectError(File(One("F32", "[\"1\"]", "[0,4]"), 4), "extent");
  ExpectError(File(One("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "dimensions");
  ExpectError(File(One("F32", "[[1]]", "[0,4]"), 4), "extent");
  ExpectError(File(One("F32", "[\"" + std::string(5000, 'x') + "\"]", "[0,4]"), 4), "extent");
}

TEST(Safetensors, HugeCounts) {
  ExpectError(File(One("F32", "[1099511627777]", "[0,4]"), 4), "extent");
  ExpectError(File(One("F32", "[18446744073709551615]", "[0,4]"), 4), "extent");
  ExpectError(File(One("F32", "[1e30]", "[0,4]"), 4), "extent");
  // 2^40 * 2^24 elements of four bytes are 2^66: zero in 64 bits.
  ExpectError(File(One("F32", "[1099511627776,16777216]", "[0,0]"), 4), "larger than any file");
  ExpectError(File(One("U8", "[1099511627776,1099511627776,16777216]", "[0,0]"), 4),
              "larger than any file");
  ExpectError(File(One("F32", "[1000000]", "[0,4000000]"), 4), "truncated");
  ExpectError(File(One("F32", "[1000000]", "[0,4]"), 4), "needs 4000000 bytes");
}

TEST(Safetensors, Offsets) {
  ExpectError(File(One("F32", "[1]", "[0,8]"), 8), "needs 4 bytes");
  ExpectError(File(One("F32", "[1]", "[4,0]"), 8), "bytes 4 to 0");
  ExpectError(File(One("F32", "[1]", "[8,12]"), 8), "truncated");
  ExpectError(File(One("F32", "[1]", "[-4,0]"), 8), "data_offsets");
  ExpectError(File(One("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 8), "lies at");
  ExpectError(File(One("F32", "[1]", "[18446744073709551615,3]"), 8), "lies at");
  ExpectError(File(One("F32", "[1]", "[0]"), 8), "data_offsets");
  ExpectError(File(One("F32", "[1]", "[0,2,4]"), 8), "data_offsets");
  ExpectError(File(One("F32", "[1]", "{}"), 8), "data_offsets");
  ExpectError(File(One("F32", "[1]", "[0.0,4.0]"), 8), "data_offsets");
  ExpectError(
      File("{" + Entry("a", "F32", "[2]", "[0,8]") + "," + Entry("b", "F32", "[2]", "[4,12]") + "}",
           12),
      "overlap");
  ExpectError(
      File("{" + Entry("a", "F32", "[3]", "[0,12]") + "," + Entry("b", "F32", "[1]", "[4,8]") + "}",
           12),
      "overlap");
}

TEST(Safetensors, BytesAfterTheLastTensor) {
  EXPECT_EQ(ErrorOf(File(One("F32", "[1]", "[0,4]"), 4)), "no error");
  EXPECT_EQ(ErrorOf(File(One("F32", "[1]", "[0,4]"), 5)),
            "x.safetensors: 1 bytes follow the last tensor, expected none");
  ExpectError(File(One("F32", "[0]", "[0,0]"), 8), "8 bytes follow");
  ExpectError(File("{}", 64), "64 bytes follow");
  // In the order of the data, not of the names.
  ExpectError(
      File("{" + Entry("a", "F32", "[2]", "[4,12]") + "," + Entry("b", "F32", "[1]", "[0,4]") + "}",
           20),
      "8 bytes follow");
}

// Cut off anywhere, a file is refused or read, never worse.
TEST(Safetensors, EveryTruncation) {
  const std::string whole = File(
      "{" + Entry("a", "F32", "[2]", "[0,8]") + "," + Entry("b", "BF16", "[2]", "[8,12]") + "}",
      12);
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(ErrorOf(whole.substr(0, n)), "no error") << n;
  EXPECT_EQ(ErrorOf(whole), "no error");
}

// ---- Folders ----

class Folder : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::string OpenError() {
    try {
      Checkpoint::Open(folder_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  void ExpectOpenError(const std::string& part) {
    const std::string error = OpenError();
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }

  TemporaryFolder folder_;
};

TEST_F(Folder, MissingEmptyAndNotAFile) {
  ExpectOpenError("neither model.safetensors nor");
  Write("model.safetensors", "");
  ExpectOpenError("too few");
  std::filesystem::remove(folder_ / "model.safetensors");
  std::filesystem::create_directories(folder_ / "model.safetensors");
  ExpectOpenError("expected a regular file");
}

TEST_F(Folder, Shards) {
  Write("a.safetensors", File(One("F32", "[1]", "[0,4]"), 4));
  Write("b.safetensors", File("{" + Entry("v", "F32", "[1]", "[0,4]") + "}", 4));
  const auto index = [&](const std::string& map) {
    Write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  };
  index(R"({"w":"a.safetensors","v":"b.safetensors"})");
  EXPECT_EQ(OpenError(), "no error");
  EXPECT_EQ(Checkpoint::Open(folder_.path()).tensors().size(), 2u);
  index(R"({"w":"a.safetensors","u":"b.safetensors"})");
  ExpectOpenError("tensor u is not in b.safetensors");
  index(R"({"w":"c.safetensors"})");
  ExpectOpenError("c.safetensors");
  for (const char* escape : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "",
                             "./a.safetensors", "a/"}) {
    index(fmt::format(R"({{"w":"{}"}})", escape));
    EXPECT_NE(OpenError(), "no error") << escape;
  }
  ExpectOpenError("plain file name");
  index(R"({"w":7})");
  ExpectOpenError("no file name");
  index("[]");
  ExpectOpenError("weight_map");
  Write("model.safetensors.index.json", "[]");
  ExpectOpenError("weight_map");
  Write("model.safetensors.index.json", "{");
  ExpectOpenError("JSON");
  Write("c.safetensors", File(One("F32", "[1]", "[0,4]"), 4));
  index(R"({"w":"a.safetensors","v":"c.safetensors"})");
  ExpectOpenError("also in another shard");
}

TEST_F(Folder, PathsThatCannotBe) {
  EXPECT_THROW(Checkpoint::Open(std::string(5000, 'x')), Error);
  EXPECT_THROW(Checkpoint::Open("/dev/null/model"), Error);
  EXPECT_THROW(Checkpoint::OpenFile(folder_ / "nothing"), Error);
  EXPECT_THROW(Checkpoint::OpenFile("/dev/zero"), Error);
}

TEST_F(Folder, WrittenFilesReadBack) {
  const std::vector<float> values = {1.0f, -2.5f, 3.25f};
  const std::vector<NamedTensor> tensors = {
      {"x", {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, {3}}},
      {"y \"quoted\"", {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, {1, 2}}}};
  WriteSafetensors(folder_ / "out.safetensors", tensors);
  const Checkpoint back = Checkpoint::OpenFile(folder_ / "out.safetensors");
  EXPECT_EQ(back.tensors().size(), 2u);
  EXPECT_EQ(LoadElement(back.tensors().at("x").data, DType::kF32, 2), 3.25f);
  EXPECT_EQ(LoadElement(back.tensors().at("y \"quoted\"").data, DType::kF32, 1), -2.5f);
  EXPECT_THROW(WriteSafetensors(folder_ / "no/such/folder.safetensors", tensors), Error);
}

// ---- Element types ----

TEST(DType, F16EveryPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = bits & 1023;
    const float value = F16ToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
      continue;
    }
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (bits >> 15 != 0) expected = -expected;
    ASSERT_EQ(value, expected);
    ASSERT_EQ(std::signbit(value), bits >> 15 != 0);
  }
}

TEST(DType, BF16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = BF16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(value))));
    } else {
      ASSERT_EQ(FloatToBF16(value), bits);
    }
  }
  const auto round = [](uint32_t bits) { return FloatToBF16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(round(0x3F808000u), 0x3F80);  // a tie goes to the even one
  EXPECT_EQ(round(0x3F818000u), 0x3F82);
  EXPECT_EQ(round(0x3F808001u), 0x3F81);
  EXPECT_EQ(round(0x7F7FFFFFu), 0x7F80);  // past the largest: infinity
  EXPECT_TRUE(std::isnan(BF16ToFloat(round(0x7F800001u))));
}

}  // namespace
}  // namespace loopspec
