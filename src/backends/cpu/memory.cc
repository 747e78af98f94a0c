#include "backends/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "backends/cpu/kv_int8.h"
#include "backends/cpu/kv_residual.h"
#include "base/error.h"

namespace loopspec::cpu {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

LazyBuffer::LazyBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  // Large pages mean fewer address translations; the system gives whole ones at their own alignment
  // only.
  const bool large = bytes >= kLargePage;
  mapped_ = large ? (bytes + kLargePage - 1) / kLargePage * kLargePage : bytes;
  const size_t slack = large ? kLargePage : 0;
  void* address = mmap(nullptr, mapped_ + slack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    Fail("cannot get {:.1f} GB of memory", static_cast<double>(bytes) / 1e9);
  data_ = static_cast<std::byte*>(address);
  if (large) {
    const size_t past = reinterpret_cast<uintptr_t>(data_) % kLargePage;
    const size_t before = past == 0 ? 0 : kLargePage - past;
    if (before > 0) munmap(data_, before);
    data_ += before;
    if (before < slack) munmap(data_ + mapped_, slack - before);
  }
  madvise(data_, mapped_, MADV_HUGEPAGE);
}

LazyBuffer::~LazyBuffer() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

LazyBuffer::LazyBuffer(LazyBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

LazyBuffer& LazyBuffer::operator=(LazyBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

int64_t KvMemory::BytesPerPosition(const ModelSpec& spec, int planes, int64_t head_bytes) {
  return int64_t{planes} * spec.kv_heads * 2 * head_bytes;
}

KvMemory::KvMemory(const ModelSpec& spec, KeptPlanes kept, int pages, int cells, int64_t head_bytes,
                   bool int8)
    : kept_(std::move(kept)),
      heads_(spec.kv_heads),
      head_dim_(spec.head_dim),
      int8_(int8),
      row_bytes_(head_bytes),
      cell_bytes_(BytesPerPosition(spec, kept_.planes(), head_bytes)),
      page_bytes_(kept_.BytesPerPosition(BytesPerPosition(spec, 1, head_bytes)) * kPageSize),
      pages_(static_cast<size_t>(pages * page_bytes_)),
      cells_(static_cast<size_t>(cells * cell_bytes_)) {}

void KvMemory::Commit(int cell, const SequencePlan& sequence, int position, int64_t plane_begin,
                      int64_t plane_end) const {
  const int offset = position % kPageSize;
  for (int64_t plane = plane_begin; plane < plane_end; ++plane) {
    const PlaneSlots& slots = kept_.At(sequence.recurrences, static_cast<int>(plane));
    const Slot at = Own(sequence, position / kPageSize, slots);
    if (at.page < 0) continue;
    for (int head = 0; head < heads_; ++head) {
      const Place from = InCell(cell, static_cast<int>(plane), head);
      if (int8_) {
        const Place page_head = InPage(at.page, at.slot, head, 0);
        CopyInt8ToPage(from.keys, head_dim_, page_head.keys, offset);
        if (slots.residual < 0) continue;
        StoreResidual(from.keys, InCell(cell, slots.last, head).keys, slots.bits, head_dim_,
                      ResidualsInPage(sequence.pages[position / kPageSize], slots, head), offset);
        continue;
      }
      const Place to = InPage(at.page, at.slot, head, offset);
      std::memcpy(to.keys, from.keys, static_cast<size_t>(row_bytes_));
      std::memcpy(to.values, from.values, static_cast<size_t>(row_bytes_));
    }
  }
}

void KvMemory::MakeResiduals(const SequencePlan& sequence, int64_t begin, int64_t end,
                             int64_t plane_begin, int64_t plane_end) const {
  std::byte own[kInt8MostCell], last[kInt8MostCell];
  for (int64_t plane = plane_begin; plane < plane_end; ++plane) {
    const PlaneSlots& slots = kept_.At(sequence.recurrences, static_cast<int>(plane));
    if (slots.residual < 0) continue;
    for (int64_t position = begin; position < end; ++position) {
      const int64_t page = position / kPageSize;
      const auto offset = static_cast<int>(position % kPageSize);
      const Slot of_own = Own(sequence, page, slots), of_last = Own(sequence, page, slots.last);
      for (int head = 0; head < heads_; ++head) {
        CopyInt8FromPage(InPage(of_own.page, of_own.slot, head, 0).keys, head_dim_, own, offset);
        CopyInt8FromPage(InPage(of_last.page, of_last.slot, head, 0).keys, head_dim_, last, offset);
        StoreResidual(own, last, slots.bits, head_dim_,
                      ResidualsInPage(sequence.pages[page], slots, head), offset);
      }
    }
  }
}

}  // namespace loopspec::cpu
