// Where the planes of a text lie by a plan of keys.
#include "kv/kept_planes.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace loopspec {
namespace {

ModelSpec Spec(int prelude, int core, int coda, int recurrence) {
  ModelSpec spec;
  spec.family = "raven";
  spec.prelude_layers = prelude;
  spec.core_layers = core;
  spec.coda_layers = coda;
  spec.recurrence = recurrence;
  return spec;
}

// Kernels find the layers of a loop one after the other, in a page and in the window.
TEST(KeptPlanes, LayersOfALoopFollowEachOtherInOnePage) {
  for (const int core : {1, 2, 3, 5, 6}) {
    for (const char* text : {"int8*8,last", "last", "int8,last,int8*3,last", "last@128"}) {
      const ModelSpec spec = Spec(2, core, 1, 16);
      const SpannedKeyPlan plan = SpannedKeyPlan::Parse(text, 16);
      const KeptPlanes kept(spec, 3, plan);
      const PlaneMap planes(spec, 3);
      ASSERT_EQ(kept.planes(), planes.count());
      ASSERT_TRUE(kept.has_window());
      std::set<std::pair<int, int>> taken;  // turn and slot of a window, or -1 and slot of a page
      for (int depth = 1; depth <= 16; ++depth) {
        const bool own = depth == 16 || plan.plan.At(depth) == kOwnKeys;
        for (int layer = 0; layer < core; ++layer) {
          const PlaneSlots& at = kept.At(0, planes.Core(layer, depth));
          EXPECT_EQ(at.own >= 0, own);
          EXPECT_EQ(at.window >= 0, !own);
          EXPECT_EQ(at.far, own ? at.own : kept.At(0, planes.Core(layer, 16)).own);
          const PlaneSlots& first = kept.At(0, planes.Core(0, depth));
          if (own) {
            EXPECT_EQ(at.own, first.own + layer);
            EXPECT_LT(at.own, kept.slots());
            taken.emplace(-1, at.own);
          } else {
            EXPECT_EQ(kept.WindowPage(3, at.window), kept.WindowPage(3, first.window));
            EXPECT_EQ(kept.SlotInWindowPage(at.window),
                      kept.SlotInWindowPage(first.window) + layer);
            EXPECT_LT(kept.WindowPage(3, at.window), kept.window_pages());
            taken.emplace(kept.WindowPage(3, at.window), kept.SlotInWindowPage(at.window));
          }
        }
      }
      EXPECT_EQ(std::ssize(taken), 16 * core) << text << " of " << core;
    }
  }
}

// Where planes lie: what a page keeps is what the plan says, and no two parts overlap.
TEST(KeptPlanes, HaveRoomForWhatThePlanKeeps) {
  ModelSpec spec = Spec(1, 3, 1, 32);
  spec.head_dim = 64;
  spec.kv_heads = 2;
  const PlaneMap planes(spec, 2);
  for (const char* text : {"int8", "int8*8,last", "int8,r5,r4", "r2*7,last,r8,r3,int8,r6"}) {
    const SpannedKeyPlan plan = SpannedKeyPlan::Parse(text, 32);
    const KeptPlanes kept(spec, 2, plan);
    EXPECT_EQ(kept.BytesPerPosition(68 * 2 * 2), plan.plan.BytesPerPosition(spec, 2)) << text;
    int64_t residuals = 0;
    std::set<int> slots, window;
    for (int plane = 0; plane < planes.count(); ++plane) {
      const PlaneSlots& at = kept.At(0, plane);
      EXPECT_NE(at.own < 0, at.window < 0) << text << " " << plane;
      EXPECT_TRUE((at.own < 0 ? window : slots).insert(at.own < 0 ? at.window : at.own).second);
      if (at.residual < 0) continue;
      EXPECT_EQ(at.residual, residuals);
      EXPECT_EQ(at.far, kept.At(0, at.last).own);
      residuals += ResidualPageBytes(at.bits, spec.head_dim) * spec.kv_heads;
    }
    EXPECT_EQ(residuals, kept.residual_bytes());
    EXPECT_EQ(std::ssize(slots), kept.slots());
    // Every slot of the window has a place of its own, which ends within its page.
    const int64_t slot_bytes = int64_t{68} * 2 * 2 * kPageSize;
    const int64_t page_bytes = kept.BytesPerPosition(68 * 2 * 2) * kPageSize;
    std::set<std::pair<int, int>> places;
    for (const int slot : window) {
      for (const int64_t page : {0, 1}) {
        const int at = kept.WindowPage(page, slot), in_page = kept.SlotInWindowPage(slot);
        EXPECT_LT(at, kept.window_pages());
        EXPECT_LE((in_page + 1) * slot_bytes, page_bytes);
        EXPECT_TRUE(places.insert({at, in_page}).second) << text;
      }
    }
  }
}

}  // namespace
}  // namespace loopspec
