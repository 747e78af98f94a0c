// The checksums by which the Hub names what it stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace loopspec::hub {

class Digest {
 public:
  // sha256 of the bytes, or git's sha1 of a blob of `size` bytes.
  Digest(bool sha256, int64_t size);
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void Reset();
  void Add(const void* data, size_t size);
  // As hexadecimal digits; nothing may be added after it before a Reset.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
  const bool sha256_;
  const int64_t size_;
};

}  // namespace loopspec::hub
