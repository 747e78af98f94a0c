#include "calibrate/synth.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/whole_file.h"
#include "calibrate/byte_tokenizer.h"
#include "calibrate/synth_twin.h"
#include "tensor/dtype.h"

namespace loopspec {
namespace {

constexpr uint64_t kShardBytes = uint64_t{4} << 30;
constexpr size_t kPiece = size_t{1} << 19;  // elements made at a time

// Elements [begin, begin + count) of a tensor; `number` keys its noise.
void Fill(const TensorPlan& plan, uint64_t seed, uint32_t number, int64_t begin, size_t count,
          uint16_t* out) {
  const float width = static_cast<float>(plan.scale * std::sqrt(3.0));
  for (size_t i = 0; i < count;) {
    const uint64_t at = static_cast<uint64_t>(begin) + i;
    const PhiloxBlock block = Philox4x32(
        {{static_cast<uint32_t>(at / 8), static_cast<uint32_t>(at / 8 >> 32), number, 0}}, seed);
    for (uint64_t lane = at % 8; lane < 8 && i < count; ++lane, ++i) {
      const uint32_t half = block.v[lane / 2] >> (lane % 2 * 16) & 0xFFFFu;
      const float noise = (static_cast<float>(half) + 0.5f) * 0x1.0p-15f - 1.0f;
      out[i] = FloatToBF16(static_cast<float>(plan.constant) + width * noise);
    }
  }
  if (plan.diagonal[0] == 0 && plan.diagonal[1] == 0) return;
  const int64_t rows = plan.shape[0], cols = plan.shape[1];
  for (int64_t row = begin / cols; row <= (begin + static_cast<int64_t>(count) - 1) / cols; ++row) {
    for (int block = 0; block < cols / rows; ++block) {
      const int64_t at = row * cols + block * rows + row - begin;
      if (at >= 0 && at < static_cast<int64_t>(count))
        out[at] = FloatToBF16(static_cast<float>(plan.diagonal[block]));
    }
  }
}

using Wrote = std::function<void(uint64_t bytes)>;

void WriteTensor(std::ostream& file, const TensorPlan& plan, uint64_t seed, uint32_t number,
                 const Wrote& wrote) {
  std::vector<uint16_t> piece(kPiece);
  for (int64_t at = 0; at < plan.elements() && file; at += static_cast<int64_t>(kPiece)) {
    const auto count = static_cast<size_t>(std::min<int64_t>(kPiece, plan.elements() - at));
    Fill(plan, seed, number, at, count, piece.data());
    file.write(reinterpret_cast<const char*>(piece.data()),
               static_cast<std::streamsize>(count * 2));
    wrote(count * 2);
  }
}

// One file of the checkpoint: tensors [first, last) of the plans.
struct Shard {
  std::string name;
  size_t first = 0, last = 0;
  std::string header;  // padded, without its length

  uint64_t DataStart() const { return 8 + header.size(); }
};

std::string Header(const std::vector<TensorPlan>& plans, size_t first, size_t last) {
  OrderedJson header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (size_t i = first; i < last; ++i) {
    const uint64_t end = offset + plans[i].bytes();
    header[plans[i].name] = {
        {"dtype", "BF16"}, {"shape", plans[i].shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// Shards of at most kShardBytes; no tensor is larger.
std::vector<Shard> Shards(const std::vector<TensorPlan>& plans) {
  std::vector<size_t> cuts{0};
  uint64_t filled = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (filled > 0 && filled + plans[i].bytes() > kShardBytes) {
      cuts.push_back(i);
      filled = 0;
    }
    filled += plans[i].bytes();
  }
  cuts.push_back(plans.size());
  std::vector<Shard> shards;
  for (size_t f = 0; f + 1 < cuts.size(); ++f) {
    shards.push_back({cuts.size() == 2
                          ? std::string("model.safetensors")
                          : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, cuts.size() - 1),
                      cuts[f], cuts[f + 1], Header(plans, cuts[f], cuts[f + 1])});
  }
  return shards;
}

void WriteShard(const std::filesystem::path& path, const std::vector<TensorPlan>& plans,
                const Shard& shard, uint64_t seed, const Wrote& wrote) {
  std::ofstream file(path, std::ios::binary);
  const auto length = static_cast<uint64_t>(shard.header.size());
  for (int byte = 0; byte < 8; ++byte) file.put(static_cast<char>(length >> (8 * byte) & 0xFF));
  file.write(shard.header.data(), static_cast<std::streamsize>(shard.header.size()));
  for (size_t i = shard.first; i < shard.last && file; ++i)
    WriteTensor(file, plans[i], seed, static_cast<uint32_t>(i), wrote);
  file.close();
  if (!file) Fail("{} cannot be written: is the disk full?", path.string());
}

TwinShape ShapeOf(const SynthRequest& request) {
  const std::vector<TwinShape>& shapes = TwinShapes();
  const auto found = std::find_if(shapes.begin(), shapes.end(),
                                  [&](const TwinShape& s) { return request.like == s.name; });
  if (found == shapes.end()) {
    Fail("there is no synthetic twin of {}, expected one of {}", request.like,
         fmt::join(SynthNames(), ", "));
  }
  if (!(request.agreement >= 0.0 && request.agreement <= 1.0))
    Fail("agreement is {}, expected 0 to 1", request.agreement);
  if (request.layers < 0 || request.layers > 4096)
    Fail("layers is {}, expected 1 to 4096", request.layers);
  TwinShape shape = *found;
  if (request.vocab != 0 && (request.vocab < 16 || request.vocab > shape.vocab))
    Fail("vocab is {}, expected 16 to {} for {}", request.vocab, shape.vocab, shape.name);
  if (request.layers > 0) shape.core = request.layers;
  if (request.vocab > 0) shape.vocab = request.vocab;
  if (request.width != 0) shape.SetWidth(request.width);
  return shape;
}

std::string Readme(const SynthRequest& request, const SynthAgreement* measured) {
  std::string text = fmt::format(
      "# A SYNTHETIC checkpoint\n\nRandom weights (seed {}) in the format of {}, written by "
      "`loopspec synth` for timing where the real weights cannot be had. It was never trained: its "
      "speed means something, its text does not.\n\nAsked: drafts that agree with the last depth "
      "at "
      "{:.1f} % of the positions. ",
      request.seed, request.like, 100 * request.agreement);
  if (measured == nullptr) return text + "Not measured.\n";
  text += fmt::format("Measured over {} positions of random tokens:", measured->positions);
  for (size_t i = 0; i < measured->depths.size(); ++i) {
    text += fmt::format("{} {:.1f} % at depth {}", i == 0 ? "" : ",", 100 * measured->shares[i],
                        measured->depths[i]);
  }
  return text + ".\n";
}

void WriteNotes(const SynthRequest& request, OrderedJson config, const SynthAgreement* measured) {
  if (measured != nullptr) {
    config["loopspec_agreement"] = {{"asked", request.agreement},
                                    {"depths", measured->depths},
                                    {"measured", measured->shares},
                                    {"positions", measured->positions}};
  }
  WriteWholeFile(request.output / "config.json", config.dump(2) + "\n");
  WriteWholeFile(request.output / "README.md", Readme(request, measured));
}

// Told at once, not after the disk is full.
void CheckDisk(const std::filesystem::path& folder, uint64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || bytes <= space.available) return;
  Fail("{}: the weights need {:.1f} GB, the disk has {:.1f} GB free", folder.string(),
       static_cast<double>(bytes) / 1e9, static_cast<double>(space.available) / 1e9);
}

// The files of a checkpoint that is being written; removed again unless it becomes whole.
class NewFiles {
 public:
  NewFiles() = default;
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;
  ~NewFiles() {
    std::error_code ignored;
    for (auto path = paths_.rbegin(); path != paths_.rend(); ++path)
      std::filesystem::remove(*path, ignored);
  }

  const std::filesystem::path& Add(std::filesystem::path path) {
    return paths_.emplace_back(std::move(path));
  }
  void Keep() { paths_.clear(); }

 private:
  std::vector<std::filesystem::path> paths_;
};

}  // namespace

std::vector<std::string> SynthNames() {
  std::vector<std::string> names;
  for (const TwinShape& shape : TwinShapes()) names.emplace_back(shape.name);
  return names;
}

SynthResult WriteSynthetic(const SynthRequest& request) {
  const TwinShape shape = ShapeOf(request);
  std::error_code error;
  NewFiles files;
  if (std::filesystem::create_directories(request.output, error)) files.Add(request.output);
  if (error) Fail("{} cannot be made: {}", request.output.string(), error.message());
  // Files that others wrote would be overwritten, and go with ours if we do not get to the end.
  if (!std::filesystem::is_empty(request.output, error) || error)
    Fail("{} is not empty, expected a new or an empty folder", request.output.string());

  SynthResult result;
  result.shift = Twin::GuessShift(shape, request.agreement);
  const Twin twin(shape, result.shift);
  const std::vector<TensorPlan> plans = twin.Tensors();
  const std::vector<Shard> shards = Shards(plans);
  result.tensors = static_cast<int>(plans.size());
  result.files = static_cast<int>(shards.size());
  for (const TensorPlan& plan : plans) result.bytes += plan.bytes();
  CheckDisk(request.output, result.bytes);
  OrderedJson index;
  index["metadata"]["total_size"] = result.bytes;
  uint64_t done = 0;
  const auto wrote = [&](uint64_t bytes) {
    done += bytes;
    if (request.progress) request.progress(done, result.bytes);
  };
  for (const Shard& shard : shards) {
    WriteShard(files.Add(request.output / shard.name), plans, shard, request.seed, wrote);
    for (size_t i = shard.first; i < shard.last; ++i)
      index["weight_map"][plans[i].name] = shard.name;
  }
  if (result.files > 1)
    WriteWholeFile(files.Add(request.output / "model.safetensors.index.json"),
                   index.dump(2) + "\n");
  // Text in and out for commands that need it; its words mean nothing anyway.
  if (shape.vocab >= kByteTokens)
    WriteWholeFile(files.Add(request.output / "tokenizer.json"), ByteTokenizerJson());
  for (const char* name : {"config.json", "README.md"}) files.Add(request.output / name);
  WriteNotes(request, twin.Config(), nullptr);
  files.Keep();
  return result;
}

void RescaleSynthetic(const SynthRequest& request, double shift) {
  const std::vector<TensorPlan> plans = Twin(ShapeOf(request), shift).Tensors();
  for (const Shard& shard : Shards(plans)) {
    const std::filesystem::path path = request.output / shard.name;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    uint64_t offset = shard.DataStart();
    for (size_t i = shard.first; i < shard.last && file; ++i) {
      if (plans[i].has_shift) {
        file.seekp(static_cast<std::streamoff>(offset));
        WriteTensor(file, plans[i], request.seed, static_cast<uint32_t>(i), [](uint64_t) {});
      }
      offset += plans[i].bytes();
    }
    file.close();
    if (!file) Fail("{} cannot be changed", path.string());
  }
}

void NoteAgreement(const SynthRequest& request, const SynthAgreement& measured) {
  WriteNotes(request, Twin(ShapeOf(request), 0).Config(), &measured);
}

}  // namespace loopspec
