// Key/value memory and per-cell state of the CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kv/ledger.h"
#include "kv/planes.h"
#include "model/model_spec.h"

namespace loopspec::cpu {

// Zeroed memory from the system; pages that are never touched cost nothing. Throws Error when there
// is not enough.
class LazyBuffer {
 public:
  LazyBuffer() = default;
  explicit LazyBuffer(size_t bytes);
  ~LazyBuffer();
  LazyBuffer(LazyBuffer&& other) noexcept;
  LazyBuffer& operator=(LazyBuffer&& other) noexcept;
  LazyBuffer(const LazyBuffer&) = delete;
  LazyBuffer& operator=(const LazyBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

// Pages: [page][plane][kv head][keys 64 x head_dim | values 64 x head_dim].
// Cells: [cell][plane][kv head][keys head_dim | values head_dim].
// int8 ones lie inside a head's part as kv_int8.h says.
class KvMemory {
 public:
  // `head_bytes`: of the keys, or the values, of one head and position (KvHeadBytes).
  KvMemory(const ModelSpec& spec, const PlaneMap& planes, int pages, int cells, int64_t head_bytes,
           bool int8 = false);

  struct Place {
    std::byte* keys;
    std::byte* values;
  };
  // Where position `offset` of a page lies; the positions after it follow.
  Place InPage(int page, int plane, int head, int offset) const {
    std::byte* base =
        pages_.data() + page * page_bytes_ + (plane * heads_ + head) * 2 * kPageSize * row_bytes_;
    return {base + offset * row_bytes_, base + (kPageSize + offset) * row_bytes_};
  }
  Place InCell(int cell, int plane, int head) const {
    std::byte* base = cells_.data() + cell * cell_bytes_ + (plane * heads_ + head) * 2 * row_bytes_;
    return {base, base + row_bytes_};
  }

  // Copies the keys and values of `cell` on planes [begin, end) into a committed position.
  void Commit(int cell, int page, int offset, int64_t plane_begin, int64_t plane_end) const;

  std::byte* Page(int page) const { return pages_.data() + page * page_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t row_bytes() const { return row_bytes_; }
  int planes() const { return planes_; }
  // Bytes that one position takes on all planes.
  static int64_t BytesPerPosition(const ModelSpec& spec, const PlaneMap& planes,
                                  int64_t head_bytes);
  bool int8() const { return int8_; }

 private:
  int heads_, planes_, head_dim_;
  bool int8_;
  int64_t row_bytes_;  // head_dim elements
  int64_t cell_bytes_, page_bytes_;
  LazyBuffer pages_, cells_;
};

}  // namespace loopspec::cpu
