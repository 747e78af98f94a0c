// The CUDA backend: the seam's implementation over one GPU.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "backends/backend.h"
#include "backends/cuda/decode/decode_kernel.h"
#include "backends/cuda/host/tensor_maps.h"
#include "backends/cuda/prefill/prefill_queue.h"
#include "backends/cuda/program/program.h"
#include "backends/cuda/program/step_encoder.h"
#include "backends/cuda/sampling/sampling_kernel.h"
#include "kv/kept_planes.h"
#include "kv/planes.h"

namespace loopspec::cuda {

class CudaBackend final : public Backend {
 public:
  // `model` lies on `device`, which is current. Throws Error when the memory does not suffice.
  // `prefill`: how prompts are run, for tests and benchmarks.
  CudaBackend(DeviceModel model, const BackendOptions& options, int device,
              const PrefillSettings& prefill = {});
  ~CudaBackend() override;

  const ModelSpec& spec() const override { return model_.spec; }
  const BackendOptions& options() const override { return options_; }
  BackendLimits limits() const override { return {.max_logprobs = kMaxTopLogprobs}; }
  std::string device() const override;
  std::string chip() const override;
  bool rows_share_planes() const override { return true; }
  int pages() const override { return pages_; }
  int64_t page_bytes() const override { return page_bytes_; }
  int window_pages() const override { return kept_.window_pages(); }
  int64_t device_bytes() const override;
  int64_t weight_bytes() const override;

  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override;
  bool PrefillDone(Ticket ticket) override;
  void WaitPrefill(Ticket ticket) override;
  bool prefill_equals_decode() const override { return false; }
  void Score(const PrefillPlan& plan, const LogitsSink& sink) override;
  Ticket Submit(const StepPlan& plan) override;
  const StepResult& Wait(Ticket ticket) override;
  void SavePages(std::span<const int32_t> pages, std::byte* to) override;
  void LoadPages(std::span<const int32_t> pages, const std::byte* from) override;
  void CopyPage(int32_t from, int32_t to) override;
  void ReadLogits(int readout, std::span<float> out) override;
  double ReadBandwidth() override;

  const DeviceModel& model() const { return model_; }
  // Key/value memory, for tests: what DecodeParams::page_kv says.
  const DeviceArray<bf16>& page_memory() const { return page_kv_; }
  // The stream of the steps, for tests that hold it up.
  cudaStream_t stream() const { return stream_.get(); }
  const Program& program() const { return program_; }
  // Clock readings after every operation of a launch go here from the next step on; null ends it.
  // Device or pinned memory.
  void Trace(uint64_t* clocks) { params_.trace = clocks; }
  // Seconds after which a step whose CTAs wait for each other in vain is given up; 0: never.
  void SetTimeout(double seconds) { params_.timeout = static_cast<uint64_t>(seconds * 1e9); }
  // Phases of `rows` or more rows have a kernel for each operation where there are such kernels;
  // those of fewer go through the weights once for every kPassRows rows. For tests and benchmarks.
  void SetWideFrom(int rows) {
    launch_.wide_from = rows;
    encoder_.SetWideFrom(wide_.available() ? rows : std::max(rows, kWideFrom));
  }
  int usual_wide_from() const { return wide_.from(); }
  // Their products in tiles of one shape, where the device has it (WideKernels).
  bool HasWideShape(int shape) const { return wide_.HasShape(shape); }
  void SetWideShape(int shape) { wide_.SetShape(shape); }
  // The next step never completes a grid barrier, for tests of the watchdog.
  void StallNextStep() { stall_next_step_ = true; }

 private:
  // What a step in flight holds; a second one can be prepared while the first runs.
  struct InFlight {
    Ticket ticket = 0;
    int readouts = 0;
    PinnedArray<std::byte> host_plan;
    DeviceArray<std::byte> plan;
    PinnedArray<uint32_t> host_masks;
    DeviceArray<uint32_t> masks;          // [readout that has one][words]
    PinnedArray<uint64_t> clock;          // [kPhases][2]
    PinnedArray<uint32_t> status;         // [1]: not 0 when the watchdog gave the step up
    PinnedArray<DecisionInfo> decisions;  // [cells], written by the GPU
    Event done;
  };
  static constexpr int kInFlight = 2;

  void AllocateRows();
  void AllocateCells();
  int64_t UsualPages(size_t page_bytes) const;
  int64_t PagesForPositions() const;
  void AllocatePages();
  void UploadProgram();
  void Launch(const StepPlan& plan, InFlight& flight);
  void UploadMasks(const StepPlan& plan, InFlight& flight);
  void ReserveForStep(const EncodedStep& step, InFlight& flight);
  std::byte* Page(int32_t page) const {
    return reinterpret_cast<std::byte*>(page_kv_.data()) + page * page_bytes_;
  }
  void SetPace(const EncodedStep& step, DecodeParams& params) const;
  void AssignEpochs(const StepPlan& plan, InFlight& flight);
  PrefillQueue& prefills();

  DeviceModel model_;
  BackendOptions options_;
  int device_;
  int pages_ = 0;
  int64_t page_bytes_ = 0;
  int split_;
  PlaneMap planes_;
  KeptPlanes kept_;
  DecodeLaunch launch_;
  Program program_;
  WideKernels wide_;
  Stream stream_{-1};  // ahead of prompts
  DecodeParams params_{};
  StepEncoder encoder_;
  PrefillSettings prefill_settings_;

  DeviceArray<Op> ops_;
  DeviceArray<MatrixShare> shares_[2];  // [small_batch]
  DeviceArray<MatrixSource> sources_;
  DeviceArray<TensorMap> maps_, wide_maps_;
  DeviceArray<double> frequencies_;
  DeviceArray<float> state_, update_, coda_x_, local_stream_, qk_raw_, partials_, attention_o_,
      logits_, work_, distributions_;
  DeviceArray<float2> rope_, attention_ml_;
  DeviceArray<bf16> prelude_out_, cell_kv_, page_kv_, act_hidden_, act_attention_, act_ff_,
      act_adapter_, q_;

  // Of the low-latency exchange.
  DeviceArray<LLWord> ll_sums_, ll_hidden_, ll_ff_, ll_attention_, ll_qkv_, ll_o_, ll_ml_;
  uint32_t next_epoch_ = 1;
  bool stall_next_step_ = false;

  InFlight flights_[kInFlight];
  Ticket next_ticket_ = 1;
  StepResult result_;

  std::optional<PrefillQueue> prefills_;  // made when first needed; ends before what it reads
};

}  // namespace loopspec::cuda
