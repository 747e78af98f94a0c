// The operations of one set in order: the stack's own, as often as the step says, for B after the
// one that stands before them. They are fetched into shared memory ahead of their time.
//
// Every warp keeps its own place, and works out for itself what an operation does with its inputs
// and results: operations are so short that one thread doing this for all, between two barriers,
// takes a good part of their time.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"

namespace loopspec::cuda {

// Place of the operation `ahead` of the cursor's; the set's end when there is none.
__device__ __forceinline__ int PlaceAhead(const SetContext& set, const Cursor& cursor, int ahead) {
  const int i = cursor.at + ahead;
  if (i < set.end) return i;
  const int over = i - set.end, stack = set.end - set.begin, times = over / stack;
  return times + 1 < cursor.left ? set.begin + (over - times * stack) : set.end;
}

// Part i of the operations from `ahead` of the cursor's on is asked for.
__device__ __forceinline__ void FetchPart(const Cursor& cursor, int ahead, uint32_t i) {
  constexpr uint32_t kParts = sizeof(Op) / 16;
  BlockContext& context = Context();
  const uint32_t n = static_cast<uint32_t>(ahead) + i / kParts, part = i % kParts;
  const int at = PlaceAhead(context.set, cursor, static_cast<int>(n));
  if (i >= kOpsAtOnce * kParts || at >= context.set.end) return;
  CopyAsync16(SharedAddress(&context.ops[(cursor.n + n) % kOpsHeld]) + part * 16,
              reinterpret_cast<const char*>(context.p.ops + at) + part * 16);
}

// Asks for the first operations of a set. By all threads; WaitForCopies and a barrier of the block
// follow.
__device__ __forceinline__ void StartQueue(const Cursor& first) {
  if (threadIdx.x % 32 == 0) Context().cursors[threadIdx.x / 32] = first;
  FetchPart(first, 0, threadIdx.x);
}

// By one warp, at the start of an operation. Every few operations, as many are asked for; some
// operations later they are there, and the barrier at the end of that one makes them known to all.
__device__ __forceinline__ void FetchAhead(const Cursor& cursor) {
  const uint32_t phase = cursor.n % kOpsAtOnce;
  if (phase == 0) {
    FetchPart(cursor, kOpsAtOnce, ThreadNow() % 32);
    FetchPart(cursor, kOpsAtOnce, ThreadNow() % 32 + 32);
  } else if (phase == kOpsAtOnce / 2) {
    WaitForCopies();
  }
}

// What the kernel's loop has to know of an operation, in one register: nothing that it keeps comes
// from shared memory, whose address the compiler would keep with it.
using OpDigest = int;
inline constexpr OpDigest kNoOp = -1;
__device__ __forceinline__ OpDigest Digest(const OpHead& op) {
  return op.flags << 8 | static_cast<int>(op.type);
}
__device__ __forceinline__ OpType TypeOf(OpDigest op) {
  return static_cast<OpType>(op & 0xFF);
}
__device__ __forceinline__ int FlagsOf(OpDigest op) {
  return op >> 8;
}

// Lays down what the current operation does (CurrentRun), and takes the warp's step to the next
// one. kNoOp when there is none. By whole warps.
__device__ __forceinline__ OpDigest NextRun(const Cursor& cursor) {
  BlockContext& context = Context();
  const uint32_t warp = ThreadNow() / 32;
  if (cursor.left == 0) return kNoOp;
  const SetContext& set = context.set;
  Run run;
  run.place = static_cast<int>(cursor.n % kOpsHeld);
  run.stamp = set.stamp + cursor.n;
  run.recurrence = set.times - cursor.left;
  const OpHead op = context.ops[run.place];

  const bool ends_stack = cursor.at + 1 == set.end;
  // What ends a set is for all to see, and what ends a recurrence where rows attend to each other.
  const bool barrier = ends_stack && (cursor.left == 1 || set.related);
  const int how = barrier ? 0 : op.flags & set.allowed;
  run.flags = cursor.flags | how;

  Cursor next;
  next.n = cursor.n + 1;
  next.at = ends_stack ? set.begin : cursor.at + 1;
  next.left = ends_stack ? cursor.left - 1 : cursor.left;
  next.flags = (how & kRunFused) != 0     ? kRunOwnInputs | kRunOwnStream
               : (how & kRunMailOut) != 0 ? kRunMailIn
                                          : 0;
  if (op.type != OpType::kRows) next.flags |= cursor.flags & kRunOwnStream;
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
// Whether the operation before the cursor's leaves anything that other blocks have to be waited
// for.
__device__ __forceinline__ bool IsForAll(const Cursor& cursor) {
  return (cursor.flags & (kRunOwnInputs | kRunMailIn)) == 0;
}

}  // namespace loopspec::cuda
