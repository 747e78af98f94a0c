// Replaces operator new and delete: allocations are counted, and the bytes that are held. To be
// included by one file of a test binary, which must be built with -Wno-mismatched-new-delete.
//
// A block is a header and what was asked for, so that the figures are the program's own: they know
// nothing of resident memory, page sizes or what malloc keeps for later.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace loopspec {

// Constant initialisation: allocations come before any constructor.
inline std::atomic<int64_t> counted_allocations{0};  // since the start
inline std::atomic<int64_t> held_bytes{0};           // allocated and not freed
inline std::atomic<int64_t> held_blocks{0};

namespace counted_new {

// Before what was asked for lie its size and how far back the block begins.
struct Header {
  std::size_t size, offset;
};
constexpr std::size_t kAlignment = alignof(std::max_align_t);

inline void* Allocate(std::size_t size, std::size_t alignment) {
  alignment = std::max(alignment, kAlignment);
  const std::size_t offset = std::max(alignment, sizeof(Header));
  void* block = nullptr;
  if (posix_memalign(&block, alignment, offset + size) != 0) throw std::bad_alloc();
  char* memory = static_cast<char*>(block) + offset;
  const Header header = {size, offset};
  std::memcpy(memory - sizeof(Header), &header, sizeof(Header));
  counted_allocations.fetch_add(1, std::memory_order_relaxed);
  held_blocks.fetch_add(1, std::memory_order_relaxed);
  held_bytes.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed);
  return memory;
}

inline void Free(void* memory) {
  if (memory == nullptr) return;
  Header header;
  std::memcpy(&header, static_cast<char*>(memory) - sizeof(Header), sizeof(Header));
  held_blocks.fetch_sub(1, std::memory_order_relaxed);
  held_bytes.fetch_sub(static_cast<int64_t>(header.size), std::memory_order_relaxed);
  std::free(static_cast<char*>(memory) - header.offset);
}

}  // namespace counted_new
}  // namespace loopspec

void* operator new(std::size_t size) {
  return loopspec::counted_new::Allocate(size, 0);
}
void* operator new[](std::size_t size) {
  return loopspec::counted_new::Allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return loopspec::counted_new::Allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return loopspec::counted_new::Allocate(size, static_cast<std::size_t>(alignment));
}
// The others of the standard library, which do not throw, call the ones above; under a sanitizer
// they would be the sanitizer's own, so they are here too.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return loopspec::counted_new::Allocate(size, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return loopspec::counted_new::Allocate(size, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete[](void* memory) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  loopspec::counted_new::Free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  loopspec::counted_new::Free(memory);
}
