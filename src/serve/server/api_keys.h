// Keys that let a client in.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec::serve {

class ApiKeys {
 public:
  // Throws Error for an empty key or one with characters that no header can carry.
  void Add(std::string key, std::string_view where);
  // One key per line; empty lines and those that begin with # are not keys.
  void AddFile(const std::filesystem::path& path);

  bool empty() const { return keys_.empty(); }
  // Whether `given` is one of the keys. The time this takes says nothing about how much of a key
  // was right, nor which key it was.
  bool Has(std::string_view given) const;
  // The same for an Authorization header: "Bearer KEY".
  bool Allows(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace loopspec::serve
