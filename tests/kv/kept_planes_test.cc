// Where the planes of a text lie by a plan of keys.
#include "kv/kept_planes.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/error.h"

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

TEST(KeptPlanes, RefuseResiduals) {
  EXPECT_THROW(KeptPlanes(Spec(0, 2, 0, 4), 1, SpannedKeyPlan::Parse("int8,r4,last", 4)), Error);
}

}  // namespace
}  // namespace loopspec
