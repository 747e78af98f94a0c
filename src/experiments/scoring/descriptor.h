// File descriptors that close themselves.
#pragma once

#include <string_view>
#include <utility>

namespace loopspec::measure {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }

  int get() const { return number_; }
  void Close();

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

// Both are closed on exec. Throw Error.
Pipe MakePipe();
// A file in memory that holds `bytes`, at its beginning.
Descriptor MakeMemoryFile(std::string_view bytes);

}  // namespace loopspec::measure
