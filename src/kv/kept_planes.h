// Where the planes of a sequence lie, when deep loops are read from the last loop's keys.
//
// Positions are cut into spans. A query in span g reads the spans g - 1 and g exactly, each depth's
// own keys, and all spans before them by the plan: where the plan says `last`, the keys of the last
// loop, and where it says `r4`, these and a residual of 4 bits. So the own keys of such a depth are
// needed for two spans only. They lie in the *window* of the sequence, whose pages are used in
// turn; every other plane has a slot in the sequence's pages, and residuals lie after the slots. A
// position's residuals are written when it is committed, since its last loop's keys exist then.
//
// What a query reads follows from its position and the plan, whoever computes it and when. It needs
// the last loop of all positions before span g - 1, so whoever runs ahead of the committed text may
// be one span ahead at most.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/key_plan.h"
#include "kv/ledger.h"
#include "kv/planes.h"

namespace loopspec {

inline constexpr int kLongestSpan = 4096;

// A plan and the positions of its spans, a multiple of kPageSize.
struct SpannedKeyPlan {
  KeyPlan plan;
  int span = kPageSize;

  // "int8*8,last@64"; without "@N" a span is kPageSize positions. Throws Error.
  static SpannedKeyPlan Parse(const std::string& text, int recurrence);
  std::string text() const;

  bool operator==(const SpannedKeyPlan&) const = default;
};

// Of one plane; -1: nowhere.
struct PlaneSlots {
  int own = -1;     // in the page of a position
  int window = -1;  // or in the window
  int far = -1;     // in the page of a position before the window: read there instead of its own
  int64_t residual = -1;  // and with it these residuals: bytes from the first of a page on
  int bits = 0;           // of a residual
  int last = -1;          // the plane of the last loop, that residuals are against
};

class KeptPlanes {
 public:
  KeptPlanes(const ModelSpec& spec, int readouts, const std::optional<SpannedKeyPlan>& plan);

  // A text of `recurrences` loops (0: all) has the keys of its last loop where R's would be.
  const PlaneSlots& At(int recurrences, int plane) const {
    const int last = recurrences > 0 ? recurrences : recurrence_;
    return slots_[static_cast<size_t>(last - 1) * static_cast<size_t>(planes_) +
                  static_cast<size_t>(plane)];
  }
  int planes() const { return planes_; }
  int slots() const { return page_slots_; }                   // of a page
  int64_t residual_bytes() const { return residual_bytes_; }  // of a page, after its slots
  // Of all that a page keeps; `plane_bytes`: of a position on one plane.
  int64_t BytesPerPosition(int64_t plane_bytes) const {
    return page_slots_ * plane_bytes + residual_bytes_ / kPageSize;
  }
  // Whether some loop's own keys are not kept, so that texts have a window.
  bool has_window() const { return window_slots_ > 0; }
  // Pages that the window takes.
  int window_pages() const { return ring_ * pages_per_turn_; }
  // For each page's worth of positions: as many as its slots fill.
  int pages_per_turn() const { return pages_per_turn_; }
  int span() const { return span_; }

  // Which page of the window holds a slot of the positions of page `i`, and at which slot. The
  // layers of a loop follow each other in one page.
  int WindowPage(int64_t i, int slot) const {
    return static_cast<int>(i % ring_) * pages_per_turn_ + slot / turn_slots_;
  }
  int SlotInWindowPage(int slot) const { return slot % turn_slots_; }
  // Pages [0, FarPages) of a text lie before the window of a query at `position`.
  int64_t FarPages(int64_t position) const {
    const int64_t before = position / span_ - 1;
    return before > 0 ? before * (span_ / kPageSize) : 0;
  }

 private:
  void PlaceTextsOf(int last, const ModelSpec& spec, int readouts,
                    const std::optional<SpannedKeyPlan>& plan);

  int recurrence_, planes_;
  int span_ = kPageSize;
  int page_slots_ = 0;
  int64_t residual_bytes_ = 0;
  int turn_slots_ = 1;    // of a page in the window, where slots take the room of residuals too
  int window_slots_ = 0;  // of a page's worth of positions in the window, gaps at ends of pages too
  int ring_ = 1, pages_per_turn_ = 0;
  std::vector<PlaneSlots> slots_;  // [recurrences of the text][plane]
};

}  // namespace loopspec
