#include "lens/npz.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cstring>
#include <ostream>

#include "base/check.h"
#include "base/error.h"
#include "base/whole_file.h"

namespace loopspec {
namespace {

static_assert(std::endian::native == std::endian::little);

uint32_t Crc32(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> values{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      values[i] = c;
    }
    return values;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::string Npy(const NpyArray& array) {
  std::string shape = fmt::format("{}", fmt::join(array.shape, ", "));
  if (array.shape.size() == 1) shape += ",";
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", array.type, shape);
  const size_t prefix = 10;  // magic, version, length
  header.resize((prefix + header.size() + 1 + 63) / 64 * 64 - prefix - 1, ' ');
  header += '\n';
  std::string out = "\x93NUMPY";
  Put(out, uint8_t{1});
  Put(out, uint8_t{0});
  Put(out, static_cast<uint16_t>(header.size()));
  out += header;
  out.append(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  return out;
}

template <typename T>
NpyArray Make(std::string name, const char* type, std::vector<int64_t> shape,
              std::span<const T> values) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  LOOPSPEC_CHECK(elements == static_cast<int64_t>(values.size()));
  NpyArray array{std::move(name), type, std::move(shape), {}};
  array.data.resize(values.size_bytes());
  if (!values.empty()) std::memcpy(array.data.data(), values.data(), values.size_bytes());
  return array;
}

}  // namespace

NpyArray FloatArray(std::string name, std::vector<int64_t> shape, std::span<const float> values) {
  return Make<float>(std::move(name), "<f4", std::move(shape), values);
}

NpyArray IntArray(std::string name, std::vector<int64_t> shape, std::span<const int32_t> values) {
  return Make<int32_t>(std::move(name), "<i4", std::move(shape), values);
}

void WriteNpz(const std::filesystem::path& path, std::span<const NpyArray> arrays) {
  WriteWholeFile(path, [&](std::ostream& file) {
    std::string directory;
    uint64_t offset = 0;
    for (const NpyArray& array : arrays) {
      const std::string content = Npy(array), name = array.name + ".npy";
      if (content.size() > 0xFFFFFFF0u || offset + content.size() > 0xFFFFFFF0u)
        Fail("{}: more than 4 GB, which an .npz file of this kind cannot hold", path.string());
      std::string entry;         // what the local header and the directory have in common
      Put(entry, uint16_t{20});  // version needed
      Put(entry, uint16_t{0});   // flags
      Put(entry, uint16_t{0});   // stored
      Put(entry, uint16_t{0});   // time
      Put(entry, uint16_t{33});  // 1 January 1980
      Put(entry, Crc32(content));
      Put(entry, static_cast<uint32_t>(content.size()));
      Put(entry, static_cast<uint32_t>(content.size()));
      Put(entry, static_cast<uint16_t>(name.size()));
      Put(entry, uint16_t{0});  // extra
      std::string local = "PK\x03\x04" + entry + name;
      file.write(local.data(), static_cast<std::streamsize>(local.size()));
      file.write(content.data(), static_cast<std::streamsize>(content.size()));
      directory += "PK\x01\x02";
      Put(directory, uint16_t{20});  // made by
      directory += entry;
      Put(directory, uint16_t{0});  // comment
      Put(directory, uint16_t{0});  // disk
      Put(directory, uint16_t{0});
      Put(directory, uint32_t{0});
      Put(directory, static_cast<uint32_t>(offset));
      directory += name;
      offset += local.size() + content.size();
    }
    std::string end = "PK\x05\x06";
    Put(end, uint32_t{0});  // disks
    Put(end, static_cast<uint16_t>(arrays.size()));
    Put(end, static_cast<uint16_t>(arrays.size()));
    Put(end, static_cast<uint32_t>(directory.size()));
    Put(end, static_cast<uint32_t>(offset));
    Put(end, uint16_t{0});
    file.write(directory.data(), static_cast<std::streamsize>(directory.size()));
    file.write(end.data(), static_cast<std::streamsize>(end.size()));
  });
}

}  // namespace loopspec
