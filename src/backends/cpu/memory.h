// Key/value memory and per-cell state of the CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/backend.h"
#include "kv/kept_planes.h"
#include "kv/ledger.h"
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

// Pages: [page][slot][kv head][keys 64 x head_dim | values 64 x head_dim]; a slot is a plane where
// keys are not kept by a plan (kv/kept_planes.h). By a plan residuals come after the slots:
// [plane that has them][kv head] as kv_residual.h says.
// Cells: [cell][plane][kv head][keys head_dim | values head_dim].
// int8 ones lie inside a head's part as kv_int8.h says.
class KvMemory {
 public:
  // `head_bytes`: of the keys, or the values, of one head and position (KvHeadBytes).
  KvMemory(const ModelSpec& spec, KeptPlanes kept, int pages, int cells, int64_t head_bytes,
           bool int8 = false);

  struct Place {
    std::byte* keys;
    std::byte* values;
  };
  // Where position `offset` of a page lies; the positions after it follow.
  Place InPage(int page, int slot, int head, int offset) const {
    std::byte* base =
        pages_.data() + page * page_bytes_ + (slot * heads_ + head) * 2 * kPageSize * row_bytes_;
    return {base + offset * row_bytes_, base + (kPageSize + offset) * row_bytes_};
  }

  // The part of a page that holds a plane; `page` is -1 where the text does not have the plane.
  struct Slot {
    int page, slot;
  };
  // The own keys and values of the positions [64 i, 64 i + 64) of a sequence.
  Slot Own(const SequencePlan& sequence, int64_t i, int plane) const {
    return Own(sequence, i, kept_.At(sequence.recurrences, plane));
  }
  Slot Own(const SequencePlan& sequence, int64_t i, const PlaneSlots& slots) const {
    if (slots.own >= 0) return {sequence.pages[i], slots.own};
    if (slots.window < 0) return {-1, -1};
    return {sequence.window[kept_.WindowPage(i, slots.window)],
            kept_.SlotInWindowPage(slots.window)};
  }
  // One head of a plane, as a query at `position` reads it.
  class Reader {
   public:
    Reader(const KvMemory& memory, const SequencePlan& sequence, int plane, int head,
           int64_t position)
        : memory_(memory),
          sequence_(sequence),
          slots_(memory.kept_.At(sequence.recurrences, plane)),
          head_(head),
          far_pages_(slots_.window < 0 ? 0 : memory.kept_.FarPages(position)) {}

    int64_t far_pages() const { return far_pages_; }
    // Bits of the residuals that are read with the pages before the window; 0: none.
    int residual_bits() const { return slots_.bits; }
    const std::byte* Residuals(int64_t i) const {
      return memory_.ResidualsInPage(sequence_.pages[i], slots_, head_);
    }
    Place Page(int64_t i) const {
      const Slot at =
          i < far_pages_ ? Slot{sequence_.pages[i], slots_.far} : memory_.Own(sequence_, i, slots_);
      return memory_.InPage(at.page, at.slot, head_, 0);
    }

   private:
    const KvMemory& memory_;
    const SequencePlan& sequence_;
    const PlaneSlots& slots_;
    const int head_;
    const int64_t far_pages_;
  };
  Place InCell(int cell, int plane, int head) const {
    std::byte* base = cells_.data() + cell * cell_bytes_ + (plane * heads_ + head) * 2 * row_bytes_;
    return {base, base + row_bytes_};
  }

  // Pages before the window of a query, where it reads the last loop's keys instead of its own.
  int64_t FarPages(const SequencePlan& sequence, int plane, int64_t position) const {
    const bool reads_last = kept_.At(sequence.recurrences, plane).window >= 0;
    return reads_last ? kept_.FarPages(position) : 0;
  }

  // Copies the keys and values of `cell` on planes [begin, end) into a committed position, and
  // makes their residuals.
  void Commit(int cell, const SequencePlan& sequence, int position, int64_t plane_begin,
              int64_t plane_end) const;
  // Makes those of positions [begin, end), whose keys and values were written into the pages.
  void MakeResiduals(const SequencePlan& sequence, int64_t begin, int64_t end, int64_t plane_begin,
                     int64_t plane_end) const;

  std::byte* Page(int page) const { return pages_.data() + page * page_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t row_bytes() const { return row_bytes_; }
  int planes() const { return kept_.planes(); }
  const KeptPlanes& kept() const { return kept_; }
  // Bytes that one position takes on so many planes.
  static int64_t BytesPerPosition(const ModelSpec& spec, int planes, int64_t head_bytes);
  bool int8() const { return int8_; }

 private:
  std::byte* ResidualsInPage(int page, const PlaneSlots& slots, int head) const {
    return Page(page) + page_bytes_ - kept_.residual_bytes() + slots.residual +
           head * ResidualPageBytes(slots.bits, head_dim_);
  }

  const KeptPlanes kept_;
  int heads_, head_dim_;
  bool int8_;
  int64_t row_bytes_;  // head_dim elements
  int64_t cell_bytes_, page_bytes_;
  LazyBuffer pages_, cells_;
};

}  // namespace loopspec::cpu
