// GGUF files for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loopspec {

// Writes a file piece by piece, as the format says.
class GgufWriter {
 public:
  uint32_t version = 3;

  void Text(const std::string& key, const std::string& value) {
    Key(key, 8);
    entries_ += String(value);
  }
  void Number(const std::string& key, uint32_t value) {
    Key(key, 4);
    entries_ += Bytes(value);
  }
  void Real(const std::string& key, float value) {
    Key(key, 6);
    entries_ += Bytes(value);
  }
  void Flag(const std::string& key, bool value) {
    Key(key, 7);
    entries_ += Bytes(static_cast<uint8_t>(value));
  }
  void Texts(const std::string& key, const std::vector<std::string>& values) {
    List(key, 8, values.size());
    for (const std::string& value : values) entries_ += String(value);
  }
  void Numbers(const std::string& key, const std::vector<int32_t>& values) {
    List(key, 5, values.size());
    for (const int32_t value : values) entries_ += Bytes(value);
  }
  // Extents with the inner one first.
  void Tensor(const std::string& name, std::vector<uint64_t> extents, uint32_t type,
              const std::string& data) {
    ++tensors_;
    infos_ += String(name) + Bytes(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) infos_ += Bytes(extent);
    infos_ += Bytes(type) + Bytes(static_cast<uint64_t>(data_.size()));
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
  }
  std::string File() const {
    std::string file =
        "GGUF" + Bytes(version) + Bytes(tensors_) + Bytes(count_) + entries_ + infos_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

  template <typename T>
  static std::string Bytes(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
  }

 private:
  void List(const std::string& key, uint32_t type, size_t count) {
    Key(key, 9);
    entries_ += Bytes(type) + Bytes(static_cast<uint64_t>(count));
  }
  static std::string String(const std::string& text) {
    return Bytes(static_cast<uint64_t>(text.size())) + text;
  }
  void Key(const std::string& key, uint32_t type) {
    ++count_;
    entries_ += String(key) + Bytes(type);
  }

  uint64_t tensors_ = 0, count_ = 0;
  std::string entries_, infos_, data_;
};

}  // namespace loopspec
