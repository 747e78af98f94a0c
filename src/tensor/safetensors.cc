#include "tensor/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/whole_file.h"

namespace loopspec {
namespace {

constexpr uint64_t kMaxHeader = 100u << 20;  // the reference implementation's limit
constexpr int64_t kMaxExtent = int64_t{1} << 40;

// nlohmann keeps the last of two equal names; a file with both is lying about one of them.
void CheckNoDuplicates(std::string_view header, const std::string& what) {
  std::set<std::string> names;
  std::string twice;
  // The values are thrown away as they come, so this costs the names alone.
  [[maybe_unused]] const Json rest =
      Json::parse(header, [&](int depth, Json::parse_event_t event, Json& parsed) {
        if (depth == 1 && event == Json::parse_event_t::key &&
            !names.insert(parsed.get<std::string>()).second) {
          twice = parsed.get<std::string>();
        }
        return depth != 1 || event == Json::parse_event_t::key;
      });
  if (!twice.empty()) Fail("{}: tensor {} appears twice", what, twice);
}

std::vector<int64_t> ParseShape(const Json& entry, const std::string& what) {
  const auto it = entry.find("shape");
  if (it == entry.end() || !it->is_array()) Fail("{}: no shape", what);
  if (it->size() > 8)
    Fail("{}: shape has {} dimensions, at most 8 are supported", what, it->size());
  std::vector<int64_t> shape;
  for (const Json& extent : *it) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t{kMaxExtent}) {
      Fail("{}: the shape has an extent that is no whole number from 0 to 2^40", what);
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

// Number of bytes of a tensor, or Fail when the product overflows what a file can hold.
uint64_t CheckedBytes(const std::vector<int64_t>& shape, DType dtype, const std::string& what) {
  uint64_t bytes = SizeOf(dtype);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) || bytes >> 56 != 0) {
      Fail("{}: shape {} is larger than any file", what, ShapeText(shape));
    }
  }
  return bytes;
}

struct Extent {
  uint64_t begin, end;
  const std::string* name;
};

// No two tensors share bytes, and no bytes follow the last: a file that is longer than its header
// says has another header, or another file, behind it.
void CheckExtents(std::vector<Extent> extents, uint64_t size, const std::string& what) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      Fail("{}: tensors {} and {} overlap", what, *extents[i - 1].name, *extents[i].name);
    }
  }
  const uint64_t end = extents.empty() ? 0 : extents.back().end;
  if (end < size) Fail("{}: {} bytes follow the last tensor, expected none", what, size - end);
}

}  // namespace

TensorMap ParseSafetensors(std::span<const std::byte> file, const std::string& what) {
  if (file.size() < 8) Fail("{}: {} bytes are too few for a safetensors file", what, file.size());
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), 8);
  if (header_size > kMaxHeader || header_size > file.size() - 8) {
    Fail("{}: the header claims {} bytes, the file has {}", what, header_size, file.size());
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, header_size);
  const Json json = ParseJson(header, what + " header");
  if (!json.is_object()) Fail("{}: the header is no JSON object", what);
  CheckNoDuplicates(header, what);

  const std::span<const std::byte> data = file.subspan(8 + header_size);
  TensorMap tensors;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const std::string where = fmt::format("{}: tensor {}", what, name);
    if (!entry.is_object()) Fail("{} is no JSON object", where);
    const auto type_name = FindString(entry, "dtype", where);
    if (!type_name) Fail("{} has no dtype", where);
    const auto dtype = DTypeFromName(*type_name);
    if (!dtype)
      Fail("{} has dtype {}, which is not supported (F32, BF16, F16 are)", where, *type_name);
    TensorView view{nullptr, *dtype, ParseShape(entry, where)};
    const auto it = entry.find("data_offsets");
    if (it == entry.end() || !it->is_array() || it->size() != 2 || !(*it)[0].is_number_unsigned() ||
        !(*it)[1].is_number_unsigned()) {
      Fail("{} has no data_offsets [begin, end]", where);
    }
    const auto begin = (*it)[0].get<uint64_t>();
    const auto end = (*it)[1].get<uint64_t>();
    if (begin > end || end > data.size()) {
      Fail("{} lies at bytes {} to {}, the file has {} bytes of data (is it truncated?)", where,
           begin, end, data.size());
    }
    const uint64_t needed = CheckedBytes(view.shape, *dtype, where);
    if (end - begin != needed) {
      Fail("{} of shape {} needs {} bytes, its offsets give {}", where, ShapeText(view.shape),
           needed, end - begin);
    }
    view.data = data.data() + begin;
    const auto position = tensors.emplace(name, std::move(view)).first;
    if (end > begin) extents.push_back({begin, end, &position->first});
  }
  CheckExtents(std::move(extents), data.size(), what);
  return tensors;
}

void Checkpoint::Add(const std::filesystem::path& file) {
  files_.emplace_back(file);
  for (auto& [name, view] : ParseSafetensors(files_.back().bytes(), file.string())) {
    if (!tensors_.emplace(name, view).second) {
      Fail("{}: tensor {} is also in another shard", file.string(), name);
    }
  }
}

Checkpoint Checkpoint::OpenFile(const std::filesystem::path& file) {
  Checkpoint checkpoint;
  checkpoint.path_ = file;
  checkpoint.Add(file);
  return checkpoint;
}

Checkpoint Checkpoint::Of(const std::filesystem::path& path, MappedFile file, TensorMap tensors,
                          std::vector<std::unique_ptr<std::byte[]>> own) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  checkpoint.files_.push_back(std::move(file));
  checkpoint.tensors_ = std::move(tensors);
  checkpoint.own_ = std::move(own);
  return checkpoint;
}

Checkpoint Checkpoint::Open(const std::filesystem::path& folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (FileExists(single)) return OpenFile(single);
  if (!FileExists(index)) {
    Fail("{} has neither model.safetensors nor model.safetensors.index.json", folder.string());
  }
  const Json json = ReadJsonFile(index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    Fail("{}: no weight_map object", index.string());
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) Fail("{}: weight_map of {} is no file name", index.string(), name);
    const auto file = shard.get<std::string>();
    // A shard lies in the folder: a name with a path in it could point anywhere.
    if (file.empty() || std::filesystem::path(file).filename() != file || file == "..") {
      Fail("{}: weight_map of {} is {}, expected a plain file name", index.string(), name, file);
    }
    shards.insert(file);
  }
  Checkpoint checkpoint;
  checkpoint.path_ = folder;
  for (const std::string& shard : shards) checkpoint.Add(folder / shard);
  for (const auto& [name, shard] : map->items()) {
    if (checkpoint.tensors_.find(name) == checkpoint.tensors_.end()) {
      Fail("{}: tensor {} is not in {}, where the index puts it", folder.string(), name,
           shard.get<std::string>());
    }
  }
  return checkpoint;
}

size_t Checkpoint::mapped_bytes() const {
  size_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.bytes().size();
  return bytes;
}

void Checkpoint::Forget(const TensorView& tensor) const {
  for (const MappedFile& file : files_) {
    const std::byte* begin = file.bytes().data();
    if (tensor.data >= begin && tensor.data < begin + file.bytes().size()) {
      file.DontNeed(static_cast<size_t>(tensor.data - begin), tensor.bytes());
    }
  }
}

void WriteSafetensors(std::ostream& out, std::span<const NamedTensor> tensors,
                      const std::string& what) {
  OrderedJson header = OrderedJson::object();
  uint64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", NameOf(tensor.view.dtype)},
                           {"shape", tensor.view.shape},
                           {"data_offsets", {offset, offset + tensor.view.bytes()}}};
    offset += tensor.view.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data aligned
  const uint64_t header_size = text.size();
  out.write(reinterpret_cast<const char*>(&header_size), 8);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const NamedTensor& tensor : tensors) {
    out.write(reinterpret_cast<const char*>(tensor.view.data),
              static_cast<std::streamsize>(tensor.view.bytes()));
  }
  out.flush();
  if (!out) Fail("cannot write {}: {}", what, std::strerror(errno));
}

void WriteSafetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  WriteWholeFile(path, [&](std::ostream& out) { WriteSafetensors(out, tensors, path.string()); });
}

}  // namespace loopspec
