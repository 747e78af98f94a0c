// Listings of the Hub and names, as strangers may write them. What a download does with them is
// tested from outside (pull_test.py).
#include "hub/listing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "hub/cache.h"

namespace loopspec::hub {
namespace {

const std::string kCommit(40, 'a'), kSha1(40, 'b'), kSha256(64, 'c');

std::string Entry(const std::string& path) {
  return R"({"rfilename": ")" + path + R"(", "size": 3, "blobId": ")" + kSha1 + R"("})";
}
std::string Lfs(const std::string& path) {
  return R"({"rfilename": ")" + path + R"(", "size": 9, "blobId": ")" + kSha1 +
         R"(", "lfs": {"sha256": ")" + kSha256 + R"(", "size": 9}})";
}
std::string Answer(const std::vector<std::string>& entries) {
  std::string out = R"({"sha": ")" + kCommit + R"(", "siblings": [)";
  for (const std::string& entry : entries) out += (out.back() == '[' ? "" : ", ") + entry;
  return out + "]}";
}
std::vector<std::string> Paths(const std::vector<RemoteFile>& files) {
  std::vector<std::string> out;
  for (const RemoteFile& file : files) out.push_back(file.path);
  return out;
}

TEST(HubListing, ChecksumsBySort) {
  const Listing listing = ParseListing(Answer({Entry("config.json"), Lfs("m.bin")}), "o/n");
  EXPECT_EQ(listing.commit, kCommit);
  ASSERT_EQ(listing.files.size(), 2u);
  EXPECT_FALSE(listing.files[0].lfs);
  EXPECT_EQ(listing.files[0].etag, kSha1);
  EXPECT_TRUE(listing.files[1].lfs);
  EXPECT_EQ(listing.files[1].etag, kSha256);
  EXPECT_EQ(listing.Find("nothing"), nullptr);
}

TEST(HubListing, ASingleFileOfWeightsNeedsNoIndex) {
  const Listing listing = ParseListing(
      Answer({Entry("config.json"), Lfs("model.safetensors"), Entry("model.safetensors.index.json"),
              Lfs("model-00001-of-00001.safetensors"), Entry("additional_chat_templates/a.jinja"),
              Entry("additional_chat_templates/b/c.jinja"), Entry("sub/config.json")}),
      "o/n");
  EXPECT_EQ(Paths(DescribingFiles(listing, "o/n")),
            (std::vector<std::string>{"config.json", "additional_chat_templates/a.jinja"}));
  EXPECT_EQ(Paths(WeightFiles(listing, "", "o/n")), std::vector<std::string>{"model.safetensors"});
}

TEST(HubListing, ShardsAreThoseThatTheIndexNames) {
  const Listing listing =
      ParseListing(Answer({Entry("config.json"), Entry("model.safetensors.index.json"),
                           Lfs("a.safetensors"), Lfs("b.safetensors"), Lfs("c.safetensors")}),
                   "o/n");
  EXPECT_EQ(Paths(DescribingFiles(listing, "o/n")),
            (std::vector<std::string>{"config.json", "model.safetensors.index.json"}));
  EXPECT_EQ(
      Paths(WeightFiles(
          listing,
          R"({"weight_map": {"x": "c.safetensors", "y": "a.safetensors", "z": "c.safetensors"}})",
          "o/n")),
      (std::vector<std::string>{"a.safetensors", "c.safetensors"}));
  for (const char* index :
       {"", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": {"x": 1}})",
        R"({"weight_map": {"x": "../a.safetensors"}})", R"({"weight_map": {"x": "d"}})"})
    EXPECT_THROW(WeightFiles(listing, index, "o/n"), Error) << index;
}

TEST(HubManifest, NamesSizesAndHashes) {
  const std::string hash(64, 'a');
  const auto files = ParseManifest(
      R"({"files": [{"path": "tokenizer/a.json", "sha256": ")" + hash + R"(", "size_bytes": 7}]})",
      "m");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, "tokenizer/a.json");
  EXPECT_EQ(files[0].etag, hash);
  EXPECT_EQ(files[0].size, 7);
  for (const std::string& entry :
       {std::string("3"), std::string(R"({"path": "a", "size_bytes": 7})"),
        R"({"path": "../a", "size_bytes": 7, "sha256": ")" + hash + "\"}",
        R"({"path": "a", "sha256": ")" + hash + "\"}",
        R"({"path": "a", "size_bytes": -7, "sha256": ")" + hash + "\"}",
        R"({"path": "a", "size_bytes": 7, "sha256": ")" + hash + "a\"}"})
    EXPECT_THROW(ParseManifest("{\"files\": [" + entry + "]}", "m"), Error) << entry;
  for (const char* manifest : {"", "[]", "{}", R"({"files": {}})"})
    EXPECT_THROW(ParseManifest(manifest, "m"), Error) << manifest;
}

TEST(HubNames, OfModelsAndRevisions) {
  const Name name = ParseName("ByteDance/Ouro-1.4B@refs/pr/1");
  EXPECT_EQ(name.repository, "ByteDance/Ouro-1.4B");
  EXPECT_EQ(name.revision, "refs/pr/1");
  CheckName(name);
  CheckName({"a/b", ""});
  EXPECT_EQ(RepositoryFolder("/c", "a/b_c.d-e"), "/c/models--a--b_c.d-e");
  EXPECT_EQ(LocksFolder("/c", "a/b"), "/c/.locks/models--a--b");
  for (const char* bad :
       {"", "a", "a/", "/b", "a/b/c", "a/../b", "a/b--c", "a/.b", "a/b.", "a/b c"})
    EXPECT_THROW(CheckName({bad, ""}), Error) << bad;
  for (const char* bad : {"..", "/x", "x/", "a//b", "a\\b", "a\nb"})
    EXPECT_THROW(CheckName({"a/b", bad}), Error) << bad;
}

}  // namespace
}  // namespace loopspec::hub
