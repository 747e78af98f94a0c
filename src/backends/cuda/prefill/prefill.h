// Prompts: all positions of a chunk, of one or several sequences, through P, through B at all
// depths and through C's layers at every readout depth, their keys and values into pages.
//
// A position's bits do not depend on how a prompt was cut, how long it is or what else is in the
// chunk: every product is one chain of sums over k (gemm_hopper.h), attention goes through tiles at
// absolute positions (prompt_attention.h), and everything else is done row by row.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/prefill/prefill_encoder.h"
#include "backends/cuda/prefill/prompt_attention.h"
#include "backends/cuda/prefill/prompt_int8.h"
#include "backends/cuda/prefill/prompt_products.h"
#include "backends/cuda/prefill/prompt_rows.h"
#include "kv/kept_planes.h"
#include "kv/planes.h"

namespace loopspec::cuda {

// A prompt on its way: what its kernels read, and when they are done.
struct PromptJob {
  EncodedPrompt prompt;
  PinnedArray<std::byte> host;
  DeviceArray<std::byte> device;
  Event done;
};

class Prefiller {
 public:
  // `memory`: that of all pages; with int8 keys (BackendOptions::kv_type) laid out as kv_int8.cuh
  // and `kept` say.
  Prefiller(const DeviceModel& model, const PromptMemory& memory, const KeptPlanes& kept,
            const BackendOptions& options, const PrefillSettings& settings, int device);

  // Rows that a chunk has at most.
  int rows() const { return rows_; }
  cudaStream_t stream() const { return stream_.get(); }

  EncodedPrompt Encode(std::span<const PrefillPlan> parts) const;
  // Puts all of the job's kernels on the stream; waits only where far too many would be on it, and
  // for `sink`, where given, which gets the logits of every position at every readout depth. One
  // call at a time.
  void Run(PromptJob& job, const LogitsSink* sink);

 private:
  // What the product after a row step takes.
  struct Next {
    const float* norm = nullptr;
    bf16* out = nullptr;
    int ld = 0;
    const bf16* e = nullptr;
  };
  // Where the rows of a chunk are in the model.
  struct Lists {
    const PromptRow* rows;
    const AttentionTile* tiles;
    const PageTail* tails;
    const int32_t* pages;
    const StoredPage* stored;
    const StoredPage* far;
    const int32_t* sequence_pages;  // of `pages`
    const int32_t* windows;         // EncodedPrompt::windows
  };
  void Allocate();
  Lists Upload(PromptJob& job);
  void RunChunk(const PromptJob& job, const PromptChunk& chunk, const LogitsSink* sink);
  void Prelude();
  // The residual stream x goes through a stack of layers whose first input lies in `hidden`;
  // `last_norm` is applied to the stream at its end. keys_alone: nobody reads what comes out, so
  // nothing after the last keys and values is computed.
  void Layers(const std::vector<DeviceLayer>& layers, int plane, float* x, bf16* hidden,
              const float* last_norm, const Next& next, bool keys_alone);
  void EndSublayer(const float* norm_out, RowStep& step) const;
  void MakeUpdate();
  void Inject(const Next& next);
  std::pair<Int8Memory, int> OwnPlace(int plane) const;
  void FetchEarlier(int plane);
  void Qkv(const DeviceLayer& layer, const bf16* hidden, int plane);
  void Attention(int plane);
  // With int8 keys: room for as many pages of a plane as bf16.
  void ReservePlane(size_t pages);
  void Readout(int readout, bool keys_alone, const PromptJob& job, const PromptChunk& chunk,
               const LogitsSink* sink);
  void Logits(int readout, const PromptJob& job, const PromptChunk& chunk, const LogitsSink& sink);
  void Rows(RowStep step, const Next& next);
  void LimitQueue();

  const DeviceModel& model_;
  PromptMemory memory_;  // what the kernels see; with int8 keys plane_kv_
  const KeptPlanes& kept_;
  bool int8_keys_;
  Int8Memory int8_memory_;
  PromptMemory listed_;  // memory_ as prompts are encoded for it: with all of the sequences' pages
  PlaneMap planes_;
  std::vector<int> readout_depths_;
  StateParams start_;
  bool hopper_;
  int rows_;
  Stream stream_;
  PromptBuffers buffers_;
  EmbeddingSource embedding_;
  std::optional<PromptProducts> products_;
  std::optional<HopperAttention> attention_;

  DeviceArray<float> x_, update_, coda_x_, sums_, logits_;
  DeviceArray<float2> rope_;
  DeviceArray<double> frequencies_;
  DeviceArray<bf16> e_, hidden_, coda_hidden_, attention_out_, ff_in_, adapter_in_, q_, plane_kv_;
  PinnedArray<float> host_logits_;

  // The chunk that is being put on the stream.
  Lists lists_{};
  int chunk_rows_ = 0, chunk_tiles_ = 0, chunk_stored_ = 0, chunk_far_ = 0;
  int depth_ = 0;           // of B
  size_t list_length_ = 0;  // pages of the prompt's list

  // Marks on the stream, every few layers.
  static constexpr int kMarks = 4;
  Event marks_[kMarks] = {Event(cudaEventBlockingSync), Event(cudaEventBlockingSync),
                          Event(cudaEventBlockingSync), Event(cudaEventBlockingSync)};
  int layers_since_mark_ = 0, mark_ = 0;
};

}  // namespace loopspec::cuda
