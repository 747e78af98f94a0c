// The seam on the CPU: owns memory and threads, and leads rows through prelude, recurrences and
// readout.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/decide.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/stack.h"
#include "backends/cpu/weights.h"
#include "base/cpu_name.h"
#include "base/memory_limit.h"
#include "base/thread_pool.h"
#include "kv/planes.h"

namespace loopspec::cpu {

class CpuBackend : public Backend {
 public:
  CpuBackend(const Model& model, const BackendOptions& options);

  const ModelSpec& spec() const override { return model_.spec; }
  const BackendOptions& options() const override { return options_; }
  BackendLimits limits() const override { return {.max_logprobs = model_.spec.vocab}; }
  std::string device() const override { return "cpu"; }
  std::string chip() const override { return CpuName(); }
  int pages() const override { return pages_; }
  int64_t page_bytes() const override { return kv_.page_bytes(); }
  int window_pages() const override { return kv_.kept().window_pages(); }
  int64_t device_bytes() const override { return GetMemoryLimit().bytes; }
  int64_t weight_bytes() const override { return weights_.matrix_bytes; }
  int PrefillChunk() const override;

  // Done when it returns, one part after the other.
  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override;
  bool PrefillDone(Ticket) override { return true; }
  void WaitPrefill(Ticket) override {}
  bool prefill_equals_decode() const override { return true; }
  void Score(const PrefillPlan& plan, const LogitsSink& sink) override;
  void ScoreStates(const PrefillPlan& plan, const LogitsSink& sink,
                   const StateSink& states) override;
  Ticket Submit(const StepPlan& plan) override;
  const StepResult& Wait(Ticket ticket) override;
  void SavePages(std::span<const int32_t> pages, std::byte* to) override;
  void LoadPages(std::span<const int32_t> pages, const std::byte* from) override;
  void CopyPage(int32_t from, int32_t to) override;
  FloatKeys KeysOf(int32_t page, int plane, int head) override;
  void ReadLogits(int readout, std::span<float> out) override;
  double ReadBandwidth() override;

  ThreadPool& pool() { return pool_; }  // for tests that fix the number of members

 private:
  void PrepareStep(const StepPlan& plan);
  void RunStep(Worker& worker, const StepPlan& plan);
  void Commits(Worker& worker, const StepPlan& plan);
  void Embed(int32_t token, float* to);
  void FillInitialState(int32_t position, float* to);
  const float* Rotary(int32_t position);  // cos | sin, head_dim / 2 of each
  void StartState(int32_t position, float* state, std::vector<float*>& from_prelude);
  void Prelude(Worker& worker, std::span<const BatchRow> rows, std::span<float* const> states,
               bool related);
  void Recurrence(Worker& worker, std::span<BatchRow> rows, std::span<const float* const> e,
                  bool related);
  struct Sinks {  // null: not asked for
    const LogitsSink* logits = nullptr;
    const StateSink* states = nullptr;
  };
  void PrefillPart(const PrefillPlan& plan, const Sinks& sinks);
  void RunChunk(const PrefillPlan& plan, const Sinks& sinks);  // of at most kChunk tokens
  void ChunkReadout(Worker& worker, std::span<BatchRow> rows, int readout, int32_t start,
                    const Sinks& sinks);

  // Whether P is more than the embedding.
  bool has_prelude() const {
    const ModelSpec& spec = model_.spec;
    return spec.prelude_layers > 0 || spec.prelude_norm || spec.keeps_input();
  }
  // What blocks work on, and with two states H and L after it.
  int64_t StateSize() const {
    return int64_t{model_.spec.two_states() ? 3 : 1} * model_.spec.hidden;
  }
  float* State(int cell) { return states_.data() + cell * StateSize(); }
  float* High(float* state) const { return state + model_.spec.hidden; }
  // What C reads of a state.
  const float* Readable(const float* state) const {
    return model_.spec.two_states() ? state + model_.spec.hidden : state;
  }
  void HierarchicalRecurrence(Worker& worker, std::span<BatchRow> rows,
                              std::span<const float* const> e, bool related);
  float* Injected(int cell) { return injected_.data() + int64_t{cell} * model_.spec.hidden; }

  const Model& model_;
  BackendOptions options_;
  PlaneMap planes_;
  Weights weights_;
  int pages_;
  ThreadPool pool_;
  KvMemory kv_;
  Stack stack_;

  // Per cell.
  std::vector<float> states_;    // H_b
  std::vector<float> injected_;  // e, or the update that is made of it
  LazyBuffer distributions_;     // q_j of recorded drafts

  // Rotary tables by position, filled when first needed.
  std::vector<double> frequencies_;
  LazyBuffer rotary_;
  std::vector<bool> rotary_ready_;

  // The initial state of recently started positions: siblings share theirs.
  struct CachedState {
    int32_t position = -1;
    std::vector<float> state;
  };
  std::vector<CachedState> initial_states_;

  // The step in flight.
  std::vector<BatchRow> rows_, fresh_, readout_rows_;
  bool related_ = false;           // rows of the step may attend to each other
  std::vector<char> plane_taken_;  // by sequence and depth, while a step is prepared
  std::vector<const float*> e_;
  std::vector<float*> fresh_states_;  // those that start from P's output
  std::vector<int32_t> row_cells_;    // chains with the row's own cell at the end
  std::vector<float> coda_x_;         // [rows, hidden]
  std::vector<float> logits_;         // [readouts, vocab]
  std::vector<DecideScratch> decide_;
  QuantizedTensor::Scratch embed_scratch_;  // of an embedding of few bits
  StepResult result_;

  // A chunk of a prompt.
  std::vector<float> chunk_x_, chunk_e_, chunk_coda_, chunk_logits_;
};

}  // namespace loopspec::cpu
