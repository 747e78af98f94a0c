#include "hub/listing.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"

namespace loopspec::hub {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr int64_t kLargestFile = int64_t{1} << 50;

bool IsHex(std::string_view text, size_t length) {
  return text.size() == length && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// A path below the repository whose every part is a plain name.
bool StaysInside(std::string_view path) {
  if (path.empty() || path.size() > 1024) return false;
  if (std::any_of(path.begin(), path.end(), [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == 127 || c == '\\';
      }))
    return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return true;
}

RemoteFile ParseFile(const Json& entry, const std::string& what) {
  RemoteFile file;
  if (!entry.is_object()) Fail("{}: siblings has an entry that is no object", what);
  file.path = FindString(entry, "rfilename", what).value_or("");
  if (!StaysInside(file.path))
    Fail("{}: names the file {}, expected a path inside the repository", what,
         Printable(file.path));
  const std::string of = fmt::format("{}, {}", what, file.path);
  file.size = FindInt(entry, "size", of, 0, kLargestFile).value_or(-1);
  file.etag = FindString(entry, "blobId", of).value_or("");
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.lfs = true;
    file.size = FindInt(*lfs, "size", of, 0, kLargestFile).value_or(file.size);
    file.etag = FindString(*lfs, "sha256", of).value_or("");
  }
  if (!IsHex(file.etag, file.lfs ? 64 : 40))
    Fail("{}: the checksum is \"{}\", expected {} hexadecimal digits", of, file.etag,
         file.lfs ? 64 : 40);
  if (file.size < 0) Fail("{}: no size, expected one", of);
  return file;
}

bool Describes(std::string_view path) {
  constexpr std::array<std::string_view, 10> kNames = {"config.json",
                                                       "generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "special_tokens_map.json",
                                                       "chat_template.jinja",
                                                       kManifestFile,
                                                       "tokenizer/tokenizer.json",
                                                       "tokenizer/tokenizer_config.json",
                                                       "tokenizer/special_tokens_map.json"};
  constexpr std::string_view kTemplates = "additional_chat_templates/";
  return std::find(kNames.begin(), kNames.end(), path) != kNames.end() ||
         (path.starts_with(kTemplates) && path.ends_with(".jinja") &&
          path.find('/', kTemplates.size()) == path.npos);
}

}  // namespace

const RemoteFile* Listing::Find(std::string_view path) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const RemoteFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

Listing ParseListing(std::string_view json, const std::string& repository) {
  const std::string what = "the Hub's listing of " + repository;
  const Json answer = ParseJson(json, what);
  if (!answer.is_object()) Fail("{}: expected a JSON object", what);
  Listing listing;
  listing.commit = FindString(answer, "sha", what).value_or("");
  if (!IsHex(listing.commit, 40))
    Fail("{}: the commit is \"{}\", expected 40 hexadecimal digits", what, listing.commit);
  const auto siblings = answer.find("siblings");
  if (siblings == answer.end() || !siblings->is_array())
    Fail("{}: no list of files (siblings)", what);
  for (const Json& entry : *siblings) listing.files.push_back(ParseFile(entry, what));
  return listing;
}

std::vector<RemoteFile> ParseManifest(std::string_view json, const std::string& what) {
  const Json manifest = ParseJson(json, what);
  const auto files = manifest.is_object() ? manifest.find("files") : manifest.end();
  if (!manifest.is_object() || files == manifest.end() || !files->is_array())
    Fail("{}: expected an object with a list of files", what);
  std::vector<RemoteFile> out;
  for (const Json& entry : *files) {
    if (!entry.is_object()) Fail("{}: files has an entry that is no object", what);
    RemoteFile& file = out.emplace_back();
    file.lfs = true;
    file.path = FindString(entry, "path", what).value_or("");
    file.etag = FindString(entry, "sha256", what).value_or("");
    file.size = FindInt(entry, "size_bytes", what, 0, kLargestFile).value_or(-1);
    if (!StaysInside(file.path) || !IsHex(file.etag, 64) || file.size < 0)
      Fail("{}: files has {:.60}, expected a path inside the folder, its sha256 and size_bytes",
           what, Printable(entry.dump()));
  }
  return out;
}

std::vector<RemoteFile> DescribingFiles(const Listing& listing, const std::string& repository) {
  if (listing.Find("config.json") == nullptr)
    Fail("{} has no config.json, expected a model in the layout of transformers", repository);
  const bool single = listing.Find(kWeights) != nullptr;
  if (!single && listing.Find(kIndexFile) == nullptr)
    Fail("{} has neither {} nor {}: only safetensors can be loaded", repository, kWeights,
         kIndexFile);
  std::vector<RemoteFile> out;
  for (const RemoteFile& file : listing.files) {
    if (Describes(file.path) || (!single && file.path == kIndexFile)) out.push_back(file);
  }
  return out;
}

std::vector<RemoteFile> WeightFiles(const Listing& listing, std::string_view index,
                                    const std::string& repository) {
  if (const RemoteFile* single = listing.Find(kWeights)) return {*single};
  const std::string what = fmt::format("{} of {}", kIndexFile, repository);
  const Json json = ParseJson(index, what);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object())
    Fail("{}: no weight_map object", what);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) Fail("{}: weight_map of {} is no file name", what, tensor);
    shards.insert(shard.get<std::string>());
  }
  std::vector<RemoteFile> out;
  for (const std::string& shard : shards) {
    const RemoteFile* file = shard.find('/') == shard.npos ? listing.Find(shard) : nullptr;
    if (file == nullptr)
      Fail("{}: names {}, expected a file that lies beside it in the repository", what, shard);
    out.push_back(*file);
  }
  if (out.empty()) Fail("{}: weight_map is empty", what);
  return out;
}

}  // namespace loopspec::hub
