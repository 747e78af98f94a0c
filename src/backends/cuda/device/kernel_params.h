// What the decode kernel is launched with: the program, the model's shapes, where all memory is,
// and the step's plan.
//
// The kernel is persistent: one CTA per multiprocessor runs through a step, operation by operation.
// After each operation the CTAs wait at a barrier over the grid, or, in small batches, receive each
// other's results through the low-latency exchange. docs/cuda-decode-kernel.md describes it all.
#pragma once

#include <cstdint>

#include "backends/cuda/device/start_state.h"
#include "backends/cuda/host/tensor_maps.h"
#include "backends/cuda/program/op.h"
#include "backends/cuda/program/plan.h"

namespace loopspec::cuda {

// A value on its way between CTAs, with the number of the operation that made it
// (exchange/low_latency.cuh).
struct alignas(8) LLWord {
  uint32_t value;
  uint32_t epoch;
};

struct ProgramParams {
  const Op* ops;
  int32_t ops_begin[kPhases], ops_end[kPhases];  // of each phase's stack
  int32_t core_start;                            // the operation before the first recurrence
  const MatrixShare* shares[2];                  // [small_batch]: [cta][matrix]
  const MatrixSource* sources;                   // [matrix]
  const TensorMap* maps;                         // [matrix]: for TMA, where there is one
  const TensorMap* wide_maps;                    // [matrix][box]: for WideKernels (kWideBoxes)
  int32_t matrices;
  int32_t matrices_end[kPhases];  // matrices are numbered P, B, C
  int32_t producer;               // whether kernels with a producer warp may run it
};

struct ShapeParams {
  int32_t hidden, heads, kv_heads, head_dim, head_stride;  // head_stride: head_dim padded
  int32_t group;                                           // query heads of a KV head
  float one_over_hidden;
  int32_t q_size, kv_size, ff, vocab;
  int32_t core_layers, planes;
  int32_t prelude;     // whether P is a phase of its own
  int32_t split;       // positions per attention partial, at fixed absolute places
  int32_t row_stride;  // stride of buffers with a row dimension
  int32_t ld_hidden, ld_attention, ld_ff, ld_adapter;
  float eps, attention_scale;  // the latter times log2(e)
  float embed_scale;
  StateParams start;
  int32_t adapter;
  int32_t orthogonal;  // kInject: the state loses its part along u
  float injection_eps;
  int32_t key_words;  // KeyWords: of a position's key in a page
  // Planes of a page from a recurrence to the next; 0 where the plan says where each one's are.
  int32_t recurrence_planes;
};

struct BufferParams {
  const double* rope_frequencies;  // [head_dim / 2]
  DeviceMatrix embedding;

  // By cell.
  float* state;       // [cell][hidden]
  bf16* prelude_out;  // e: [cell][hidden]
  float* update;      // u, which B adds in every recurrence: [cell][hidden]
  bf16* cell_kv;      // [cell][plane][kv_head][2][head_stride]
  // [page][plane][kv_head][2][kPageSize][key_words]; int8 keys: kv_int8.cuh, and by a plan of keys
  // slots in the place of planes (kv/kept_planes.h).
  bf16* page_kv;

  // By row.
  float* coda_x;        // [row][hidden]
  float* local_stream;  // [cta][hidden]: each CTA's copy, in phases of one row
  // Inputs of matrices: in the order of input_layout.cuh, or plain rows (prompts).
  bf16* act_hidden;
  bf16* act_attention;
  bf16* act_ff;
  bf16* act_adapter;     // state | e
  bf16* q;               // [row][head][head_stride]
  float* qk_raw;         // [row][q_size + kv_size]
  float* partials;       // [chunk][row][hidden]
  float2* rope;          // [phase][row][head_dim / 2]
  float* attention_o;    // [partial][head][head_stride]
  float2* attention_ml;  // [partial][head]: maximum and sum
  float* logits;         // [readout][vocab]
};

// Buffers of the low-latency exchange, for small batches; inputs of matrices by pairs of elements.
struct ExchangeParams {
  int32_t enabled;    // whether the model's shapes allow it
  LLWord* sums;       // [row][hidden]
  LLWord* hidden;     // [row][ld_hidden / 2]
  LLWord* ff;         // [row][ld_ff / 2]
  LLWord* attention;  // [row][ld_attention / 2]
  LLWord* qkv;        // [row][heads + 2 kv_heads][head_dim / 2]: q, then k and v of each head
  LLWord* o;          // [partial][head][head_dim]
  LLWord* ml;         // [partial][head][2]
};

struct DecodeParams {
  ProgramParams program;
  ShapeParams shapes;
  BufferParams buffers;
  ExchangeParams exchange;
  int32_t producer_interval[2];  // [small_batch]: cycles between copies of a producer warp
  PlanHeader* plan;
  int32_t phases_begin, phases_end;  // that the launch runs
  uint64_t* clock;   // [phase][2], on the host: nanoseconds when the phase began, and when it ended
  uint32_t* status;  // on the host: becomes 1 when the watchdog gives the step up (watchdog.cuh)
  uint64_t timeout;  // nanoseconds of waiting after which it does (patience.h); 0: never
  uint64_t* trace;   // null, or clock readings of the (last) launch: when a phase begins and after
                     // every operation, for finding where time goes
};

}  // namespace loopspec::cuda
