// The operations of one phase in order: those of the stack, as many times as the step says; B has
// one operation before the first recurrence. They are fetched into shared memory in advance.
//
// Every warp keeps its own place in the list, and decides for itself where an operation's inputs
// come from and where its results go. Operations are so short that one thread doing this for all,
// between two barriers, would take a good part of their time.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"

namespace loopspec::cuda {

// Index of the operation that comes `ahead` operations after the cursor's; the phase's end when
// there is none.
__device__ __forceinline__ int PlaceAhead(const PhaseContext& phase, const Cursor& cursor,
                                          int ahead) {
  const int i = cursor.at + ahead;
  if (i < phase.end) return i;
  const int over = i - phase.end, stack = phase.end - phase.begin, times = over / stack;
  return times + 1 < cursor.left ? phase.begin + (over - times * stack) : phase.end;
}

// Starts the copy of part i of the operations that begin `ahead` operations after the cursor's.
__device__ __forceinline__ void FetchPart(const Cursor& cursor, int ahead, uint32_t i) {
  constexpr uint32_t kParts = sizeof(Op) / 16;
  CtaContext& context = Context();
  const uint32_t n = static_cast<uint32_t>(ahead) + i / kParts, part = i % kParts;
  const int at = PlaceAhead(context.phase, cursor, static_cast<int>(n));
  if (i >= kOpsAtOnce * kParts || at >= context.phase.end) return;
  CopyAsync16(SharedAddress(&context.ops[(cursor.n + n) % kOpsHeld]) + part * 16,
              reinterpret_cast<const char*>(context.p.program.ops + at) + part * 16);
}

// Starts the copy of the first operations of a phase. By all threads; WaitForCopies and a CTA
// barrier must follow.
__device__ __forceinline__ void StartQueue(const Cursor& first) {
  if (threadIdx.x % 32 == 0) Context().cursors[threadIdx.x / 32] = first;
  FetchPart(first, 0, threadIdx.x);
}

// By one warp, at the start of an operation. Every kOpsAtOnce operations it starts the copy of the
// next kOpsAtOnce, and half of them later it waits for the copies; the CTA barrier that ends that
// operation makes them visible to all warps.
__device__ __forceinline__ void FetchAhead(const Cursor& cursor) {
  const uint32_t turn = cursor.n % kOpsAtOnce;
  if (turn == 0) {
    FetchPart(cursor, kOpsAtOnce, ThreadNow() % 32);
    FetchPart(cursor, kOpsAtOnce, ThreadNow() % 32 + 32);
  } else if (turn == kOpsAtOnce / 2) {
    WaitForCopies();
  }
}

// What the kernel's loop has to know of an operation, in one register. A pointer into shared memory
// would cost the loop more registers.
using OpDigest = int;
inline constexpr OpDigest kNoOp = -1;
__device__ __forceinline__ OpDigest Digest(const OpHead& op) {
  return op.flags.bits << 8 | static_cast<int>(op.type);
}
__device__ __forceinline__ OpType TypeOf(OpDigest op) {
  return static_cast<OpType>(op & 0xFF);
}
__device__ __forceinline__ OpFlags FlagsOf(OpDigest op) {
  return OpFlags::FromBits(op >> 8);
}

// Writes down how the cursor's operation runs (CurrentRun), and moves the warp's cursor to the next
// one. kNoOp when there is none. By whole warps.
__device__ __forceinline__ OpDigest NextRun(const Cursor& cursor) {
  CtaContext& context = Context();
  const uint32_t warp = ThreadNow() / 32;
  if (cursor.left == 0) return kNoOp;
  const PhaseContext& phase = context.phase;
  Run run;
  run.place = static_cast<int>(cursor.n % kOpsHeld);
  run.epoch = phase.epoch + cursor.n;
  run.recurrence = phase.times - cursor.left;
  const OpHead op = context.ops[run.place];

  const bool ends_stack = cursor.at + 1 == phase.end;
  // A grid barrier ends a phase. It also makes keys and values of this step visible where rows
  // attend to each other (PhaseRelation): attention loads keys before it waits for anything else.
  const bool barrier =
      (ends_stack && (cursor.left == 1 || phase.relation == PhaseRelation::kEarlierRecurrence)) ||
      (phase.relation == PhaseRelation::kSameDepth && op.flags.Has(OpFlag::kWritesKeys));
  const OpFlags how = barrier ? OpFlags{} : op.flags & phase.allowed;
  run.flags = cursor.flags | AsRun(how);

  Cursor next;
  next.n = cursor.n + 1;
  next.at = ends_stack ? phase.begin : cursor.at + 1;
  next.left = ends_stack ? cursor.left - 1 : cursor.left;
  next.flags = how.Has(OpFlag::kReplicate) ? RunFlags(RunFlag::kLocalInputs) | RunFlag::kLocalStream
               : how.Has(OpFlag::kSend)    ? RunFlags(RunFlag::kReceives)
                                           : RunFlags{};
  if (op.type != OpType::kRows) next.flags |= cursor.flags & RunFlag::kLocalStream;
  __syncwarp();
  if (ThreadNow() % 32 == 0) {
    context.cursors[warp] = next;
    context.runs[warp] = run;
  }
  if (warp == kWarps - 1) FetchAhead(cursor);
  __syncwarp();
  return Digest(op);
}

// Where the warp stands.
__device__ __forceinline__ Cursor CurrentCursor() {
  return Context().cursors[ThreadNow() / 32];
}
// Whether the operation before the cursor's left its results in memory for other CTAs, which then
// have to wait at the grid's barrier.
__device__ __forceinline__ bool NeedsGridBarrier(const Cursor& cursor) {
  return !cursor.flags.HasAny(RunFlags(RunFlag::kLocalInputs) | RunFlag::kReceives);
}

}  // namespace loopspec::cuda
