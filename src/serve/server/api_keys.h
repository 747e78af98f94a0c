// Keys that let a client in, and how much of the server each may have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec::serve {

class ApiKeys {
 public:
  // Who asks: the same for every request with this key, and nothing that a key could be told from.
  struct Holder {
    uint64_t share = 0;
    double weight = 1;  // of the share, among others
  };

  // Throws Error for an empty key or one with characters that no header can carry.
  void Add(std::string key, std::string_view where, double weight = 1);
  // One key per line, perhaps followed by weight=NUMBER; empty lines and those that begin with #
  // are not keys.
  void AddFile(const std::filesystem::path& path);

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  // Whether an Authorization header, "Bearer KEY", holds one of the keys. The time this takes says
  // nothing about how much of a key was right, nor which key it was.
  bool Allows(std::string_view authorization) const { return Find(authorization).has_value(); }
  std::optional<Holder> Find(std::string_view authorization) const;
  std::optional<Holder> FindKey(std::string_view key) const;

 private:
  struct Entry {
    std::string key;
    Holder holder;
  };
  const Entry* Look(std::string_view given) const;

  std::vector<Entry> keys_;
};

}  // namespace loopspec::serve
