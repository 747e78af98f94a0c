#include "backends/cuda/host/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/host/architecture.h"
#include "backends/cuda/host/read_bandwidth.h"
#include "backends/cuda/host/transfers.h"
#include "backends/cuda/prefill/widen.h"
#include "base/check.h"
#include "base/error.h"

namespace loopspec::cuda {
namespace {

constexpr double kLog2e = 1.4426950408889634;
// Seconds of its own running time before the watchdog gives a step up; the longest steps take a
// small part of one.
constexpr double kTimeout = 10;

// Bytes of the current device, and how many of them nobody has taken.
struct GpuMemory {
  size_t free = 0, total = 0;
};
GpuMemory ReadMemory() {
  GpuMemory memory;
  Check(cudaMemGetInfo(&memory.free, &memory.total), "asking for the free memory");
  return memory;
}
double Gigabytes(size_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}

int HeadStride(const ModelSpec& spec) {
  for (const int stride : {32, 64, 128, 256}) {
    if (spec.head_dim <= stride) return stride;
  }
  Fail("the model's head_dim is {}, the CUDA backend takes at most 256", spec.head_dim);
}

// Parts of a model that there is no code for here; it must not run without them.
void CheckParts(const ModelSpec& spec) {
  const char* missing = nullptr;
  if (spec.prelude_norm && spec.prelude_layers == 0 && !spec.injects_update())
    missing = "a norm on the embedding";
  if (spec.experts > 0) missing = "a mixture of experts";
  if (spec.two_states()) missing = "two states";
  if (missing != nullptr)
    Fail("the {} model has {}, which the CUDA backend does not have; the CPU backend does",
         spec.family, missing);
}

void CheckShapes(const ModelSpec& spec) {
  if (spec.hidden > kMaxHidden || spec.hidden % 4 != 0) {
    Fail("the model's hidden size is {}, the CUDA backend takes multiples of 4 up to {}",
         spec.hidden, kMaxHidden);
  }
}

BackendOptions Granted(BackendOptions options, const ModelSpec& spec) {
  if (options.compute == ComputeMode::kF32)
    Fail("the CUDA backend computes in bf16, float32 was asked for");
  LOOPSPEC_CHECK((options.kv_type == KvType::kLoops) == options.key_plan.has_value());
  if (options.key_plan && options.key_plan->plan.HasResiduals())
    Fail("plan of keys {}: the CUDA backend reads no residuals, expected int8 and last, or the CPU",
         options.key_plan->text());
  options.compute = ComputeMode::kBF16;
  if (options.readout_depths.empty()) options.readout_depths = {spec.recurrence};
  if (options.cells < 1 || options.cells > 4096)
    Fail("{} cells were asked for, expected 1 to 4096", options.cells);
  return options;
}

}  // namespace

CudaBackend::CudaBackend(DeviceModel model, const BackendOptions& options, int device,
                         const PrefillSettings& prefill)
    : model_(std::move(model)),
      options_(Granted(options, model_.spec)),
      device_(device),
      split_(SplitPositions(HeadStride(model_.spec))),
      planes_(model_.spec, static_cast<int>(options_.readout_depths.size())),
      kept_(model_.spec, static_cast<int>(options_.readout_depths.size()), options_.key_plan),
      launch_(PrepareDecode(device, options_.int8_keys(), model_.packed())),
      program_(BuildProgram(model_, launch_.ctas)),
      wide_(program_, model_.spec.hidden, device),
      encoder_(model_.spec, kept_, split_, launch_.ctas * kWarps, options_.cells,
               static_cast<int>(options_.readout_depths.size())),
      prefill_settings_(prefill) {
  const ModelSpec& spec = model_.spec;
  CheckShapes(spec);
  DecodeParams& p = params_;
  p.shapes.hidden = spec.hidden;
  p.shapes.heads = spec.heads;
  p.shapes.kv_heads = spec.kv_heads;
  p.shapes.head_dim = spec.head_dim;
  p.shapes.head_stride = HeadStride(spec);
  p.shapes.group = spec.heads / spec.kv_heads;
  p.shapes.one_over_hidden = 1.0f / static_cast<float>(spec.hidden);
  p.shapes.q_size = spec.q_size();
  p.shapes.kv_size = spec.kv_size();
  p.shapes.ff = spec.ff;
  p.shapes.vocab = spec.vocab;
  p.shapes.core_layers = spec.core_layers;
  p.shapes.prelude = spec.prelude_layers > 0 || spec.injects_update() ? 1 : 0;
  p.shapes.planes = planes_.count();
  p.shapes.split = split_;
  p.shapes.row_stride = options_.cells;
  p.shapes.ld_hidden = PaddedK(spec.hidden);
  p.shapes.ld_attention = PaddedK(spec.q_size());
  p.shapes.ld_ff = PaddedK(spec.ff);
  p.shapes.ld_adapter = PaddedK(2 * spec.hidden);
  p.shapes.eps = static_cast<float>(spec.norm_eps);
  p.shapes.attention_scale = static_cast<float>(kLog2e * spec.AttentionScale());
  p.shapes.embed_scale = static_cast<float>(spec.embed_scale);
  p.shapes.start = StartOf(spec, options_.state_seed);
  p.shapes.orthogonal = spec.injection == Injection::kOrthogonal ? 1 : 0;
  p.shapes.injection_eps = static_cast<float>(spec.injection_eps);
  p.shapes.adapter = spec.adapter() ? 1 : 0;
  p.shapes.key_words = KeyWords(p.shapes.head_stride, options_.int8_keys());
  p.shapes.recurrence_planes = kept_.has_window() ? 0 : spec.core_layers;
  p.buffers.embedding = model_.embedding;
  SetTimeout(kTimeout);
  UploadProgram();
  AllocateRows();
  AllocateCells();
  AllocatePages();
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_.get());
}

std::string CudaBackend::chip() const {
  return CudaDeviceName(device_);
}

std::string CudaBackend::device() const {
  return fmt::format("cuda:{}", device_);
}

void CudaBackend::UploadProgram() {
  maps_ = MakeTensorMaps(program_.weights, device_);
  std::vector<MatrixSource> sources;
  for (const DeviceMatrix& m : program_.weights) {
    sources.push_back({m.begin(), m.ld});
  }
  ops_ = Upload(program_.ops, "the program");
  sources_ = Upload(sources, "the program");
  for (const int small_batch : {0, 1}) {
    shares_[small_batch] = Upload(program_.shares[small_batch], "the program");
    params_.program.shares[small_batch] = shares_[small_batch].data();
  }
  if (wide_.available()) {
    wide_maps_ = MakeWideMaps(program_.weights);
    params_.program.wide_maps = wide_maps_.data();
  }
  frequencies_ = Upload(model_.spec.RopeFrequencies(), "the rotary frequencies");
  params_.program.ops = ops_.data();
  params_.program.sources = sources_.data();
  params_.program.maps = maps_.data();
  params_.program.matrices = program_.matrices;
  params_.program.core_start = program_.core_start;
  params_.program.producer = program_.producer ? 1 : 0;
  params_.buffers.rope_frequencies = frequencies_.data();
  for (int phase = 0; phase < kPhases; ++phase) {
    params_.program.ops_begin[phase] = program_.ops_begin[phase];
    params_.program.ops_end[phase] = program_.ops_end[phase];
    params_.program.matrices_end[phase] = program_.matrices_end[phase];
  }
}

void CudaBackend::AllocateRows() {
  DecodeParams& p = params_;
  const auto rows = static_cast<size_t>(p.shapes.row_stride);
  const auto make = [](auto& array, size_t count, auto*& pointer) {
    array = std::decay_t<decltype(array)>(count, "the rows of a step", true);
    pointer = array.data();
  };
  const auto n = [](int value) { return static_cast<size_t>(value); };
  // Inputs of matrices in both layouts (device/input_layout.cuh).
  const size_t input_rows = n(InputRows(p.shapes.row_stride) + WideInputRows(p.shapes.row_stride));
  make(coda_x_, rows * n(p.shapes.hidden), p.buffers.coda_x);
  make(local_stream_, n(launch_.ctas) * n(p.shapes.hidden), p.buffers.local_stream);
  p.exchange.enabled = program_.low_latency ? 1 : 0;
  encoder_.SetSpanRows(ProducerRows(launch_, p));
  SetWideFrom(usual_wide_from());
  const size_t small_batch = program_.low_latency ? n(kSmallBatchRows) : 0;
  make(ll_sums_, small_batch * n(p.shapes.hidden), p.exchange.sums);
  make(ll_hidden_, small_batch * n(p.shapes.ld_hidden / 2), p.exchange.hidden);
  make(ll_ff_, small_batch * n(p.shapes.ld_ff / 2), p.exchange.ff);
  make(ll_attention_, small_batch * n(p.shapes.ld_attention / 2), p.exchange.attention);
  make(ll_qkv_, small_batch * n(p.shapes.heads + 2 * p.shapes.kv_heads) * n(p.shapes.head_dim / 2),
       p.exchange.qkv);
  make(act_hidden_, input_rows * n(p.shapes.ld_hidden), p.buffers.act_hidden);
  make(act_attention_, input_rows * n(p.shapes.ld_attention), p.buffers.act_attention);
  make(act_ff_, input_rows * n(p.shapes.ld_ff), p.buffers.act_ff);
  make(act_adapter_, input_rows * n(model_.spec.adapter() ? p.shapes.ld_adapter : 0),
       p.buffers.act_adapter);
  make(q_, rows * n(p.shapes.heads) * n(p.shapes.head_stride), p.buffers.q);
  make(
      qk_raw_,
      rows * n(model_.spec.qk_norm || model_.spec.qk_bias ? p.shapes.q_size + p.shapes.kv_size : 0),
      p.buffers.qk_raw);
  make(partials_, n(program_.max_chunks) * rows * n(p.shapes.hidden), p.buffers.partials);
  make(rope_, n(kPhases) * rows * n(p.shapes.head_dim / 2), p.buffers.rope);
  const size_t readouts = n(options_.cells) * n(p.shapes.vocab);
  logits_ = DeviceArray<float>(readouts, "the logits of a step");
  work_ = DeviceArray<float>(readouts, "the logits of a step");
  p.buffers.logits = logits_.data();
  for (InFlight& flight : flights_) {
    flight.clock = PinnedArray<uint64_t>(2 * kPhases);
    flight.status = PinnedArray<uint32_t>(1);
    flight.decisions = PinnedArray<DecisionInfo>(n(options_.cells));
  }
}

void CudaBackend::AllocateCells() {
  DecodeParams& p = params_;
  const auto cells = static_cast<size_t>(options_.cells);
  const size_t kv = static_cast<size_t>(p.shapes.planes) * static_cast<size_t>(p.shapes.kv_heads) *
                    2 * static_cast<size_t>(p.shapes.head_stride);
  const size_t hidden = static_cast<size_t>(p.shapes.hidden);
  state_ = DeviceArray<float>(cells * hidden, "the states of live tokens", true);
  prelude_out_ = DeviceArray<bf16>(model_.spec.adapter() ? cells * hidden : 0,
                                   "the states of live tokens", true);
  update_ = DeviceArray<float>(model_.spec.injects_update() ? cells * hidden : 0,
                               "the states of live tokens", true);
  cell_kv_ = DeviceArray<bf16>(cells * kv, "the keys and values of live tokens", true);
  p.buffers.state = state_.data();
  p.buffers.prelude_out = prelude_out_.data();
  p.buffers.update = update_.data();
  p.buffers.cell_kv = cell_kv_.data();
}

// Pages where nobody says how many: what 32 texts of full length need, but no more than lets a
// second engine like this one have as much on the same GPU. It does not depend on what others have
// taken: who finds too little free is told so.
int64_t CudaBackend::UsualPages(size_t page_bytes) const {
  constexpr double kShare = 0.45;  // of the GPU, for all that this engine takes
  size_t other = size_t{1} << 30;  // the driver's context, buffers of steps and prompts
  other += model_.matrices.bytes() + model_.vectors.bytes();
  if (!UsesHopperKernels(device_)) other += WidenedWeights::RoomFor(model_);
  if (options_.int8_keys())  // a plane of the longest text as bf16 (prompt_int8.h)
    other += static_cast<size_t>(PagesFor(model_.spec.max_positions)) * kPageSize *
             static_cast<size_t>(2 * params_.shapes.kv_heads * params_.shapes.head_stride) *
             sizeof(bf16) * (kept_.has_window() ? 3 : 2) / 2;  // half of it twice (AddSpans)
  const auto total = static_cast<double>(ReadMemory().total), taken = static_cast<double>(other);
  // A model too large for two engines leaves room for its own work alone.
  const double room = std::max(kShare * total - taken, (total - taken) / 4);
  const auto fitting = static_cast<int64_t>(room / static_cast<double>(page_bytes));
  const int64_t of_text = PagesFor(model_.spec.max_positions) + kept_.window_pages();
  return std::max<int64_t>(1 + kept_.window_pages(), std::min<int64_t>(fitting, 32 * of_text));
}

// Of all positions, and a window for each of the texts that share them, as far as they have no page
// in common.
int64_t CudaBackend::PagesForPositions() const {
  const int pages = PagesFor(options_.kv_positions);
  return pages + int64_t{kept_.window_pages()} * std::clamp(options_.cells / 4, 1, pages);
}

void CudaBackend::AllocatePages() {
  DecodeParams& p = params_;
  const size_t page_elements = static_cast<size_t>(kept_.slots()) *
                               static_cast<size_t>(p.shapes.kv_heads) * 2 * kPageSize *
                               static_cast<size_t>(p.shapes.key_words);
  const size_t page_bytes = page_elements * sizeof(bf16);
  const int needed = 1 + kept_.window_pages();
  int64_t pages;
  if (options_.kv_memory > 0) {
    pages = options_.kv_memory / static_cast<int64_t>(page_bytes);
    if (pages < needed) {
      Fail("key/value memory is {} bytes, one page of {} positions takes {}", options_.kv_memory,
           kPageSize, page_bytes * static_cast<size_t>(needed));
    }
  } else if (options_.kv_share > 0) {
    pages = static_cast<int64_t>(static_cast<double>(ReadMemory().free) * options_.kv_share /
                                 static_cast<double>(page_bytes));
    if (pages < needed) {
      Fail("{:.0f} % of the {:.2f} GB that are free on the GPU hold no page of {} positions",
           100 * options_.kv_share, Gigabytes(ReadMemory().free), kPageSize);
    }
  } else if (options_.kv_positions > 0) {
    pages = PagesForPositions();
  } else {
    pages = UsualPages(page_bytes);
  }
  pages = std::min<int64_t>(pages, int64_t{1} << 24);
  const GpuMemory memory = ReadMemory();
  if (static_cast<size_t>(pages) * page_bytes > memory.free) {
    Fail(
        "the GPU has {:.2f} of {:.2f} GB free, key/value memory for {} positions needs {:.2f} GB: "
        "ask for less of it{}",
        Gigabytes(memory.free), Gigabytes(memory.total), pages * kPageSize,
        Gigabytes(static_cast<size_t>(pages) * page_bytes),
        options_.int8_keys() ? "" : ", or for int8 keys, which take half as much");
  }
  // Padding within a head must read as zero.
  const bool padded = p.shapes.head_stride != p.shapes.head_dim;
  page_kv_ = DeviceArray<bf16>(static_cast<size_t>(pages) * page_elements,
                               fmt::format("key/value memory for {} positions", pages * kPageSize),
                               padded);
  p.buffers.page_kv = page_kv_.data();
  pages_ = static_cast<int>(pages);
  page_bytes_ = static_cast<int64_t>(page_bytes);
  options_.kv_positions = pages * kPageSize;
  options_.kv_memory = pages * static_cast<int64_t>(page_bytes);
}

int64_t CudaBackend::device_bytes() const {
  return static_cast<int64_t>(ReadMemory().total);
}

int64_t CudaBackend::weight_bytes() const {
  return static_cast<int64_t>(model_.matrices.bytes() + model_.vectors.bytes());
}

PrefillQueue& CudaBackend::prefills() {
  if (!prefills_) {
    const ShapeParams& shapes = params_.shapes;
    const PromptMemory memory{page_kv_.data(), pages_,          kept_.slots(),
                              shapes.kv_heads, shapes.head_dim, shapes.head_stride};
    prefills_.emplace(model_, memory, kept_, options_, prefill_settings_, device_);
  }
  return *prefills_;
}

Ticket CudaBackend::SubmitPrefill(std::span<const PrefillPlan> parts) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  return prefills().Submit(parts);
}

bool CudaBackend::PrefillDone(Ticket ticket) {
  return prefills().Done(ticket);
}

void CudaBackend::WaitPrefill(Ticket ticket) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  prefills().Wait(ticket);
}

void CudaBackend::Score(const PrefillPlan& plan, const LogitsSink& sink) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  prefills().Score(plan, sink);
}

// Memory whose size depends on the step; it doubles, so that few steps wait for it.
void CudaBackend::ReserveForStep(const EncodedStep& step, InFlight& flight) {
  const auto n = [](int value) { return static_cast<size_t>(value); };
  if (step.bytes > flight.plan.size()) {
    flight.plan = DeviceArray<std::byte>(std::max<size_t>(2 * step.bytes, size_t{1} << 16),
                                         "the plan of a step");
  }
  const size_t slots = static_cast<size_t>(step.partials) * n(params_.shapes.heads);
  if (slots > attention_ml_.size()) {
    stream_.Synchronize();
    const size_t room = std::max<size_t>(2 * slots, 2048 * n(params_.shapes.heads));
    attention_o_ = DeviceArray<float>();
    attention_o_ = DeviceArray<float>(room * n(params_.shapes.head_stride), "attention partials");
    attention_ml_ = DeviceArray<float2>(room, "attention partials");
    params_.buffers.attention_o = attention_o_.data();
    params_.buffers.attention_ml = attention_ml_.data();
  }
  const size_t exchanged =
      params_.exchange.enabled != 0
          ? static_cast<size_t>(step.small_batch_partials) * n(params_.shapes.heads)
          : 0;
  if (2 * exchanged > ll_ml_.size()) {
    stream_.Synchronize();
    const size_t room = std::max<size_t>(2 * exchanged, 256 * n(params_.shapes.heads));
    ll_o_ = DeviceArray<LLWord>();
    ll_o_ = DeviceArray<LLWord>(room * n(params_.shapes.head_dim), "attention partials", true);
    ll_ml_ = DeviceArray<LLWord>(2 * room, "attention partials", true);
    params_.exchange.o = ll_o_.data();
    params_.exchange.ml = ll_ml_.data();
  }
  const size_t mask_words = n(step.masks) * n(MaskWords(params_.shapes.vocab));
  if (mask_words > flight.masks.size()) {
    flight.masks = DeviceArray<uint32_t>(2 * mask_words, "the masks of a step");
    flight.host_masks = PinnedArray<uint32_t>(2 * mask_words);
  }
  if (step.distributions && distributions_.size() == 0) {
    stream_.Synchronize();
    const size_t drafts = n(std::max(1, MostDrafts(options_)));
    distributions_ = DeviceArray<float>(n(options_.cells) * drafts * n(params_.shapes.vocab),
                                        "the distributions of drafts");
  }
}

// Gives the step's operations epochs that no operation before had.
void CudaBackend::AssignEpochs(const StepPlan& plan, InFlight& flight) {
  const auto operations = static_cast<uint32_t>(program_.ops.size());
  const uint32_t needed = operations * static_cast<uint32_t>(plan.recurrences + 2);
  if (next_epoch_ > 0xFFFFFFFFu - needed - 1) {
    // Once in 2^32 operations the epochs start again, and old words must not look new.
    stream_.Synchronize();
    for (DeviceArray<LLWord>* words :
         {&ll_sums_, &ll_hidden_, &ll_ff_, &ll_attention_, &ll_qkv_, &ll_o_, &ll_ml_}) {
      if (words->size() > 0) ClearAndWait(words->data(), words->bytes());
    }
    next_epoch_ = 1;
  }
  auto* header = reinterpret_cast<PlanHeader*>(flight.host_plan.data());
  // One arrival short of every barrier's target, however many there are.
  if (std::exchange(stall_next_step_, false))
    std::fill_n(header->barrier, kPhases, 1u - static_cast<uint32_t>(launch_.ctas));
  for (int phase = 0; phase < kPhases; ++phase) {
    header->epoch[phase] = next_epoch_;
    next_epoch_ += operations * (phase == kPhaseCore ? static_cast<uint32_t>(plan.recurrences) : 1);
  }
}

// Nothing is exchanged while attention streams its keys, so where they are more than the weights, a
// producer warp may copy faster. Measured on an H200: 2 to 4 % of a step.
void CudaBackend::SetPace(const EncodedStep& step, DecodeParams& params) const {
  constexpr double kWithManyKeys = 0.87;
  const ShapeParams& shapes = params.shapes;
  const auto keys = step.positions_read * shapes.core_layers * shapes.kv_heads * shapes.key_words *
                    2 * static_cast<int64_t>(sizeof(bf16));
  const double pace = keys > static_cast<int64_t>(model_.core_bytes) ? kWithManyKeys : 1.0;
  for (int i = 0; i < 2; ++i)
    params.producer_interval[i] = static_cast<int32_t>(launch_.producer_interval[i] * pace);
}

Ticket CudaBackend::Submit(const StepPlan& plan) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  InFlight& flight = flights_[next_ticket_ % kInFlight];
  LOOPSPEC_CHECK(flight.ticket == 0);  // the step before the last has been awaited
  try {
    Launch(plan, flight);
  } catch (...) {
    // The copy of its plan may be under way, and the next step writes to the same memory.
    (void)cudaStreamSynchronize(stream_.get());
    throw;
  }
  flight.ticket = next_ticket_++;
  return flight.ticket;
}

// Puts the copy of a step's plan and its kernels on the stream.
void CudaBackend::Launch(const StepPlan& plan, InFlight& flight) {
  const EncodedStep step = encoder_.Encode(plan, flight.host_plan);
  ReserveForStep(step, flight);
  AssignEpochs(plan, flight);
  cudaStream_t stream = stream_.get();
  CopyToDevice(flight.plan.data(), flight.host_plan.data(), step.bytes, stream,
               "the plan of a step");
  DecodeParams params = params_;
  params.plan = reinterpret_cast<PlanHeader*>(flight.plan.data());
  params.clock = flight.clock.data();
  params.status = flight.status.data();
  *flight.status.data() = 0;
  std::fill_n(flight.clock.data(), 2 * kPhases, uint64_t{0});
  LaunchCommits(params, step.commits, stream);
  SetPace(step, params);
  if (!plan.rows.empty()) {
    const auto& header = *reinterpret_cast<const PlanHeader*>(flight.host_plan.data());
    LaunchDecode(launch_, wide_, params, header, stream);
  }
  if (step.masks > 0) UploadMasks(plan, flight);
  SamplingBuffers sampling{};
  sampling.masks = flight.masks.data();
  sampling.plan = params.plan;
  sampling.vocab = params.shapes.vocab;
  sampling.logits = logits_.data();
  sampling.work = work_.data();
  sampling.distributions = distributions_.data();
  sampling.proposals = std::max(1, MostDrafts(options_));
  sampling.decisions = flight.decisions.data();
  LaunchSampling(sampling, step.readouts, stream);
  Check(cudaEventRecord(flight.done.get(), stream), "marking the end of a step");
  flight.readouts = step.readouts;
}

// Asks for the masks, which may have to be made, while the kernels before the readouts run.
void CudaBackend::UploadMasks(const StepPlan& plan, InFlight& flight) {
  uint32_t* to = flight.host_masks.data();
  for (const ReadoutPlan& readout : plan.readouts) {
    if (readout.mask == nullptr) continue;
    const std::span<const uint32_t> words = readout.mask->Words();
    LOOPSPEC_CHECK(static_cast<int>(words.size()) == MaskWords(params_.shapes.vocab));
    to = std::copy(words.begin(), words.end(), to);
  }
  CopyToDevice(flight.masks.data(), flight.host_masks.data(),
               static_cast<size_t>(to - flight.host_masks.data()) * sizeof(uint32_t), stream_.get(),
               "the masks of a step");
}

const StepResult& CudaBackend::Wait(Ticket ticket) {
  InFlight& flight = flights_[ticket % kInFlight];
  LOOPSPEC_CHECK(ticket != 0 && flight.ticket == ticket);
  flight.ticket = 0;
  Check(cudaEventSynchronize(flight.done.get()), "waiting for a step");
  if (*flight.status.data() != 0) {
    Fail("a step on {} made no progress for {:.1f} s and was given up, its results are lost",
         device(), static_cast<double>(params_.timeout) * 1e-9);
  }
  result_.decisions.resize(static_cast<size_t>(flight.readouts));
  for (size_t i = 0; i < result_.decisions.size(); ++i) {
    const DecisionInfo& from = flight.decisions.data()[i];
    Decision& to = result_.decisions[i];
    to.token = from.token;
    to.accepted = from.accepted;
    to.gate_open = from.gate_open != 0;
    to.finite = from.finite != 0;
    to.logprob = from.logprob;
    to.top.clear();
    for (int t = 0; t < kMaxTopLogprobs && from.top_tokens[t] >= 0; ++t) {
      to.top.push_back({from.top_tokens[t], from.top_logprobs[t]});
    }
  }
  const uint64_t* clock = flight.clock.data();
  const auto seconds = [&](Phase phase) {
    return static_cast<double>(clock[2 * phase + 1] - clock[2 * phase]) * 1e-9;
  };
  result_.prelude_seconds = seconds(kPhasePrelude);
  result_.recur_seconds = seconds(kPhaseCore);
  result_.readout_seconds = seconds(kPhaseCoda);
  return result_;
}

// On the stream of the steps, and finished when they return: prompts may run on another one.
void CudaBackend::SavePages(std::span<const int32_t> pages, std::byte* to) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  for (size_t i = 0; i < pages.size(); ++i) {
    CopyToHost(to + i * static_cast<size_t>(page_bytes_), Page(pages[i]),
               static_cast<size_t>(page_bytes_), stream_.get(), "keys and values");
  }
  stream_.Synchronize();
}

void CudaBackend::LoadPages(std::span<const int32_t> pages, const std::byte* from) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  for (size_t i = 0; i < pages.size(); ++i) {
    CopyToDevice(Page(pages[i]), from + i * static_cast<size_t>(page_bytes_),
                 static_cast<size_t>(page_bytes_), stream_.get(), "keys and values");
  }
  stream_.Synchronize();
}

void CudaBackend::CopyPage(int32_t from, int32_t to) {
  Check(cudaSetDevice(device_), "selecting the GPU");
  CopyOnDevice(Page(to), Page(from), static_cast<size_t>(page_bytes_), stream_.get(),
               "keys and values");
  stream_.Synchronize();
}

void CudaBackend::ReadLogits(int readout, std::span<float> out) {
  LOOPSPEC_CHECK(readout >= 0 && readout < options_.cells &&
                 out.size() == static_cast<size_t>(params_.shapes.vocab));
  CopyToHost(out.data(), logits_.data() + static_cast<size_t>(readout) * out.size(),
             out.size_bytes(), stream_.get(), "logits");
  stream_.Synchronize();
}

double CudaBackend::ReadBandwidth() {
  Check(cudaSetDevice(device_), "selecting the GPU");
  return MeasureReadBandwidth();
}

}  // namespace loopspec::cuda

namespace loopspec {

std::unique_ptr<Backend> MakeCudaBackend(const Model& model, const BackendOptions& options,
                                         int device) {
  std::string why;
  const int count = CudaDeviceCount(&why);
  if (count == 0) Fail("no GPU can be used: {}", why);
  if (device < 0 || device >= count)
    Fail("there is no GPU {}, expected 0 to {}", device, count - 1);
  cuda::Check(cudaSetDevice(device), "selecting the GPU");
  int major = 0;
  cuda::Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
              "reading the device");
  if (major < 8) Fail("GPU {} has compute capability {}.x, expected 8.0 or later", device, major);
  cuda::CheckParts(model.spec);
  return std::make_unique<cuda::CudaBackend>(cuda::DeviceModel::Load(model), options, device);
}

std::string CudaDeviceName(int device) {
  cudaDeviceProp properties{};
  cuda::Check(cudaGetDeviceProperties(&properties, device), "reading the device");
  return properties.name;
}

int CudaDeviceCount(std::string* why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    count = 0;
    int driver = 0;  // 0: there is none, which the runtime calls too old
    const bool none = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    if (why != nullptr) *why = none ? "no NVIDIA driver is installed" : cudaGetErrorString(status);
  } else if (count == 0 && why != nullptr) {
    *why = "no CUDA device is present";
  }
  return count;
}

}  // namespace loopspec
