#include "backends/cuda/prefill/prefill.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/host/architecture.h"
#include "backends/cuda/host/transfers.h"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

constexpr double kLog2e = 1.4426950408889634;
// Rows of a chunk: enough to fill the GPU, few enough that what one kernel leaves is still in the
// second-level cache, as far as that goes, when the next one reads it.
constexpr int kHopperRows = 4096;
constexpr int kPortableRows = 1024;
constexpr int kLogitRows = 256;  // whose logits are on their way at once
constexpr int kLayersOfMark = 16;

int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  Check(cudaDeviceGetAttribute(&value, attribute, device), "reading the device");
  return value;
}

}  // namespace

Prefiller::Prefiller(const DeviceModel& model, const PromptMemory& memory, const KeptPlanes& kept,
                     const BackendOptions& options, const PrefillSettings& settings, int device)
    : model_(model),
      memory_(memory),
      kept_(kept),
      int8_keys_(options.int8_keys()),
      int8_memory_{memory.pages, memory.planes},
      listed_(memory),
      planes_(model.spec, static_cast<int>(options.readout_depths.size())),
      readout_depths_(options.readout_depths),
      start_(StartOf(model.spec, options.state_seed)),
      hopper_(UsesHopperKernels(device) && !settings.portable),
      rows_(settings.rows != 0 ? settings.rows
            : hopper_          ? kHopperRows
                               : kPortableRows),
      embedding_{model.embedding, static_cast<float>(model.spec.embed_scale)} {
  // No more than there is room for, but whole blocks of rows of every kernel.
  const int64_t room = (options.kv_positions + kLtRows - 1) / kLtRows * kLtRows;
  rows_ = static_cast<int>(std::clamp<int64_t>(room, kLtRows, rows_));
  LOOPSPEC_CHECK(rows_ % kLtRows == 0);
  products_.emplace(model, settings, hopper_, rows_,
                    Attribute(cudaDevAttrMultiProcessorCount, device), stream_.get());
  Allocate();
  if (int8_keys_) {
    memory_.planes = listed_.planes = 1;
    ReservePlane(static_cast<size_t>(rows_ / kPageSize));
  } else if (hopper_ && HopperAttention::Takes(memory)) {
    attention_.emplace(buffers_, memory_, rows_);
  }
}

void Prefiller::ReservePlane(size_t pages) {
  const auto have =
      static_cast<size_t>(int8_keys_ && plane_kv_.size() > 0 ? memory_.page_count : 0);
  if (pages <= have) return;
  const size_t room = std::max(pages, std::min(2 * have, static_cast<size_t>(listed_.page_count)));
  stream_.Synchronize();
  plane_kv_ = DeviceArray<bf16>();
  // Padding within a head must read as zero.
  plane_kv_ = DeviceArray<bf16>(room * static_cast<size_t>(memory_.kv_heads) * 2 * kPageSize *
                                    static_cast<size_t>(memory_.head_stride),
                                "the keys and values of a prompt's layer", true);
  memory_.pages = plane_kv_.data();
  memory_.page_count = static_cast<int>(room);
  if (hopper_ && HopperAttention::Takes(memory_)) attention_.emplace(buffers_, memory_, rows_);
}

void Prefiller::Allocate() {
  const ModelSpec& spec = model_.spec;
  const auto n = [](int value) { return static_cast<size_t>(value); };
  const size_t rows = n(rows_);
  const auto make = [&](auto& array, size_t of_row) {
    array = std::decay_t<decltype(array)>(rows * of_row, "the buffers of prompts", true);
    return array.data();
  };
  PromptBuffers& b = buffers_;
  b.hidden = spec.hidden;
  b.heads = spec.heads;
  b.ff = spec.ff;
  b.ld_hidden = PaddedK(spec.hidden);
  b.ld_attention = PaddedK(spec.q_size());
  b.ld_ff = PaddedK(spec.ff);
  b.ld_adapter = PaddedK(2 * spec.hidden);
  b.eps = static_cast<float>(spec.norm_eps);
  b.attention_scale = static_cast<float>(kLog2e * spec.AttentionScale());
  b.rope = make(rope_, n(spec.head_dim / 2));
  b.q = make(q_, n(spec.heads) * n(memory_.head_stride));
  b.attention = make(attention_out_, n(b.ld_attention));
  b.ff_in = make(ff_in_, n(b.ld_ff));
  make(x_, n(spec.hidden));
  make(hidden_, n(b.ld_hidden));
  make(coda_hidden_, n(b.ld_hidden));
  if (spec.coda_layers > 0) make(coda_x_, n(spec.hidden));
  if (spec.injects_update()) make(update_, n(spec.hidden));
  if (spec.adapter()) {
    make(e_, n(spec.hidden));
    make(adapter_in_, n(b.ld_adapter));
    products_->AddInput(adapter_in_.data(), b.ld_adapter);
  }
  make(sums_, std::max(products_->SumsOfRow(), n(spec.hidden)));
  products_->AddInput(hidden_.data(), b.ld_hidden);
  products_->AddInput(coda_hidden_.data(), b.ld_hidden);
  products_->AddInput(b.attention, b.ld_attention);
  products_->AddInput(b.ff_in, b.ld_ff);
  frequencies_ = cuda::Upload(spec.RopeFrequencies(), "the rotary frequencies");
}

EncodedPrompt Prefiller::Encode(std::span<const PrefillPlan> parts) const {
  for (const PrefillPlan& part : parts) LOOPSPEC_CHECK(part.recurrences <= model_.spec.recurrence);
  return EncodePrompt(parts, listed_, rows_, model_.spec.vocab, int8_keys_ ? &kept_ : nullptr);
}

Prefiller::Lists Prefiller::Upload(PromptJob& job) {
  const EncodedPrompt& prompt = job.prompt;
  size_t bytes = 0;
  const auto place = [&](const auto& list) {
    const size_t at = bytes;
    bytes += (list.size() * sizeof(list[0]) + 15) / 16 * 16;
    return at;
  };
  const size_t rows = place(prompt.rows), tiles = place(prompt.tiles), tails = place(prompt.tails),
               pages = place(prompt.pages), numbers = place(prompt.numbers),
               stored = place(prompt.stored), far = place(prompt.far),
               windows = place(prompt.windows);
  if (job.host.size() < bytes) {
    job.host = PinnedArray<std::byte>(2 * bytes);
    job.device = DeviceArray<std::byte>(2 * bytes, "the plan of a prompt");
  }
  const auto copy = [&](const auto& list, size_t at) {
    if (!list.empty())
      std::memcpy(job.host.data() + at, list.data(), list.size() * sizeof(list[0]));
  };
  copy(prompt.rows, rows);
  copy(prompt.tiles, tiles);
  copy(prompt.tails, tails);
  copy(prompt.pages, pages);
  copy(prompt.numbers, numbers);
  copy(prompt.stored, stored);
  copy(prompt.far, far);
  copy(prompt.windows, windows);
  CopyToDevice(job.device.data(), job.host.data(), bytes, stream_.get(), "the plan of a prompt");
  const std::byte* base = job.device.data();
  list_length_ = prompt.pages.size();
  return {reinterpret_cast<const PromptRow*>(base + rows),
          reinterpret_cast<const AttentionTile*>(base + tiles),
          reinterpret_cast<const PageTail*>(base + tails),
          reinterpret_cast<const int32_t*>(base + (int8_keys_ ? numbers : pages)),
          reinterpret_cast<const StoredPage*>(base + stored),
          reinterpret_cast<const StoredPage*>(base + far),
          reinterpret_cast<const int32_t*>(base + pages),
          reinterpret_cast<const int32_t*>(base + windows)};
}

void Prefiller::Run(PromptJob& job, const LogitsSink* sink) {
  if (!job.prompt.rows.empty()) {
    const Lists all = Upload(job);
    if (int8_keys_) ReservePlane(job.prompt.pages.size());
    for (const PromptChunk& chunk : job.prompt.chunks) {
      lists_ = all;
      lists_.rows += chunk.row;
      lists_.tiles += chunk.tile;
      lists_.tails += chunk.tail;
      lists_.stored += chunk.stored;
      lists_.far += chunk.far;
      RunChunk(job, chunk, sink);
    }
  }
  Check(cudaEventRecord(job.done.get(), stream_.get()), "marking the end of a prompt");
}

void Prefiller::RunChunk(const PromptJob& job, const PromptChunk& chunk, const LogitsSink* sink) {
  const ModelSpec& spec = model_.spec;
  buffers_.rows = lists_.rows;
  chunk_rows_ = chunk.rows;
  chunk_tiles_ = chunk.tiles;
  chunk_stored_ = chunk.stored_pages;
  chunk_far_ = chunk.far_pages;
  depth_ = chunk.recurrences > 0 ? chunk.recurrences : spec.recurrence;
  FillRotations(buffers_, frequencies_.data(), spec.head_dim / 2, chunk_rows_, stream_.get());
  ClearTails(lists_.tails, chunk.tails, memory_, stream_.get());
  Prelude();
  const Next first{model_.core[0].attn_norm_in, hidden_.data(), buffers_.ld_hidden};
  const Next again = spec.adapter()
                         ? Next{nullptr, adapter_in_.data(), buffers_.ld_adapter, e_.data()}
                     : spec.injects_update() ? Next{}
                                             : first;
  for (int r = 1; r <= depth_; ++r) {
    if (spec.adapter()) {
      products_->Sums(model_.adapter, adapter_in_.data(), 0, chunk_rows_, sums_.data(), spec.hidden,
                      spec.hidden);
      RowStep step;
      step.source = RowStep::Source::kReplace;
      step.bias = model_.adapter_bias;
      step.x = x_.data();
      Rows(step, first);
    }
    if (spec.injects_update()) Inject(first);
    const bool last = r == depth_;
    Layers(model_.core, planes_.Core(0, r), x_.data(), hidden_.data(), model_.loop_norm,
           last ? Next{} : again, last && spec.coda_layers == 0 && sink == nullptr);
    for (size_t i = 0; i < readout_depths_.size(); ++i) {
      if (readout_depths_[i] == r) Readout(static_cast<int>(i), sink == nullptr, job, chunk, sink);
    }
  }
}

// x is P's output, or the initial state, and the input of B's first product is there.
void Prefiller::Prelude() {
  const ModelSpec& spec = model_.spec;
  const Next core = spec.adapter()
                        ? Next{nullptr, adapter_in_.data(), buffers_.ld_adapter, e_.data()}
                        : Next{model_.core[0].attn_norm_in, hidden_.data(), buffers_.ld_hidden};
  // What P's output goes into: B's first product, the product that u is made of, or none yet.
  const Next after = spec.adapter()          ? Next{}
                     : spec.injects_update() ? Next{nullptr, hidden_.data(), buffers_.ld_hidden}
                                             : core;
  RowStep embed;
  embed.source = RowStep::Source::kEmbedding;
  embed.x = x_.data();
  if (!model_.prelude.empty()) {
    Rows(embed, {model_.prelude[0].attn_norm_in, hidden_.data(), buffers_.ld_hidden});
    Layers(model_.prelude, planes_.Prelude(0), x_.data(), hidden_.data(), model_.prelude_norm,
           after, false);
  } else {
    embed.loop_norm = model_.prelude_norm;
    Rows(embed, after);
  }
  if (spec.injects_update()) MakeUpdate();
  if (!spec.adapter()) return;
  StartState(buffers_, x_.data(), e_.data(), start_, chunk_rows_, stream_.get());
  RowStep state;
  state.from = x_.data();
  Rows(state, core);
}

// u = step (W e), where e lies as a product's input; then the state starts.
void Prefiller::MakeUpdate() {
  const int width = buffers_.hidden;
  products_->Sums(model_.update, hidden_.data(), 0, chunk_rows_, sums_.data(), width, width);
  RowStep update;
  update.source = RowStep::Source::kReplace;
  update.scale = model_.step;
  update.x = update_.data();
  Rows(update, {});
  StartState(buffers_, x_.data(), nullptr, start_, chunk_rows_, stream_.get());
}

// x = inject(x, u).
void Prefiller::Inject(const Next& next) {
  RowStep step;
  step.from = step.x = x_.data();
  step.scale = model_.decay;
  step.update = update_.data();
  step.orthogonal = model_.spec.injection == Injection::kOrthogonal;
  step.injection_eps = static_cast<float>(model_.spec.injection_eps);
  Rows(step, next);
}

void Prefiller::Layers(const std::vector<DeviceLayer>& layers, int plane, float* x, bf16* hidden,
                       const float* last_norm, const Next& next, bool keys_alone) {
  const int width = buffers_.hidden;
  for (size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayer& layer = layers[i];
    const bool last = i + 1 == layers.size();
    const int at = plane + static_cast<int>(i);
    LimitQueue();
    const bool attends = !last || !keys_alone;
    if (int8_keys_ && attends) FetchEarlier(at);
    Qkv(layer, hidden, at);
    if (!attends) return;
    Attention(at);
    products_->Sums(layer.attn_out, buffers_.attention, 0, chunk_rows_, sums_.data(), width, width);
    RowStep add;
    add.source = RowStep::Source::kAdd;
    add.from = add.x = x;
    EndSublayer(layer.attn_norm_out, add);
    Rows(add, {layer.mlp_norm_in, hidden, buffers_.ld_hidden});
    products_->SwiGlu(layer, hidden, chunk_rows_, sums_.data(), buffers_);
    products_->Sums(layer.down, buffers_.ff_in, 0, chunk_rows_, sums_.data(), width, width);
    add.loop_norm = last ? last_norm : nullptr;
    EndSublayer(layer.mlp_norm_out, add);
    Rows(add, last ? next : Next{layers[i + 1].attn_norm_in, hidden, buffers_.ld_hidden});
  }
}

// The norm that ends a sublayer: of its output, or of the stream once that is added.
void Prefiller::EndSublayer(const float* norm_out, RowStep& step) const {
  (model_.spec.norms == NormPlacement::kAfterSum ? step.loop_norm : step.post_norm) = norm_out;
}

void Prefiller::Qkv(const DeviceLayer& layer, const bf16* hidden, int plane) {
  products_->Qkv(layer, hidden, chunk_rows_, sums_.data(), buffers_, memory_,
                 int8_keys_ ? 0 : plane);
  if (!int8_keys_) return;
  const auto [pages, slot] = OwnPlace(plane);
  RoundKeys(lists_.rows, chunk_rows_, memory_, pages, slot, stream_.get());
}

// The pages and the slot of them in which a plane's own keys are.
std::pair<Int8Memory, int> Prefiller::OwnPlace(int plane) const {
  const PlaneSlots& slots = kept_.At(depth_, plane);
  Int8Memory pages = int8_memory_;
  pages.page_list = lists_.sequence_pages;
  if (slots.own >= 0) return {pages, slots.own};
  LOOPSPEC_CHECK(slots.window >= 0);
  const auto turn = static_cast<size_t>(slots.window / kept_.slots());
  pages.page_list = lists_.windows + turn * list_length_;
  return {pages, kept_.SlotInWindowPage(slots.window)};
}

// Before the chunk's own keys are stored: a window's pages for its first span are those of the span
// but one before it, and those for its second those of the span before it.
void Prefiller::FetchEarlier(int plane) {
  const auto [pages, slot] = OwnPlace(plane);
  FetchKeys(lists_.stored, chunk_stored_, memory_, pages, slot, stream_.get());
  Int8Memory far = int8_memory_;
  far.page_list = lists_.sequence_pages;
  FetchKeys(lists_.far, chunk_far_, memory_, far, kept_.At(depth_, plane).far, stream_.get());
}

void Prefiller::Attention(int plane) {
  const AttentionArguments arguments{buffers_,     memory_,      int8_keys_ ? 0 : plane,
                                     lists_.tiles, lists_.pages, chunk_tiles_};
  if (attention_) {
    attention_->Run(arguments, stream_.get());
  } else {
    PortableAttention(arguments, stream_.get());
  }
}

void Prefiller::Rows(RowStep step, const Next& next) {
  step.sums = sums_.data();
  step.pre_norm = next.norm;
  step.out = next.out;
  step.ld = next.ld;
  step.e = next.e;
  RunRows(step, buffers_, embedding_, chunk_rows_, stream_.get());
}

// C on the state as it is now. Without a sink only its keys and values are wanted.
void Prefiller::Readout(int readout, bool keys_alone, const PromptJob& job,
                        const PromptChunk& chunk, const LogitsSink* sink) {
  if (model_.coda.empty() && sink == nullptr) return;
  const Next head{model_.final_norm, coda_hidden_.data(), buffers_.ld_hidden};
  RowStep copy;  // the next recurrence goes on from the state itself
  copy.from = x_.data();
  if (model_.coda.empty()) {
    Rows(copy, head);
  } else {
    copy.x = coda_x_.data();
    copy.loop_norm = model_.spec.coda_norm ? model_.final_norm : nullptr;
    Rows(copy, {model_.coda[0].attn_norm_in, coda_hidden_.data(), buffers_.ld_hidden});
    Layers(model_.coda, planes_.Coda(0, readout), coda_x_.data(), coda_hidden_.data(), nullptr,
           head, keys_alone);
  }
  if (sink != nullptr) Logits(readout, job, chunk, *sink);
}

void Prefiller::Logits(int readout, const PromptJob& job, const PromptChunk& chunk,
                       const LogitsSink& sink) {
  const auto vocab = static_cast<size_t>(model_.spec.vocab);
  const size_t ld = (vocab + 3) / 4 * 4;
  if (logits_.size() == 0) {
    logits_ = DeviceArray<float>(kLogitRows * ld, "the logits of a prompt");
    host_logits_ = PinnedArray<float>(kLogitRows * ld);
  }
  for (int first = 0; first < chunk.rows; first += kLogitRows) {
    const int rows = std::min(kLogitRows, chunk.rows - first);
    products_->Sums(model_.head, coda_hidden_.data(), first, rows, logits_.data(),
                    model_.spec.vocab, static_cast<int>(ld));
    CopyToHost(host_logits_.data(), logits_.data(), static_cast<size_t>(rows) * ld * sizeof(float),
               stream_.get(), "logits");
    stream_.Synchronize();
    for (int row = 0; row < rows; ++row) {
      const PromptRow& at = job.prompt.rows[static_cast<size_t>(chunk.row + first + row)];
      sink(at.position, readout, {host_logits_.data() + static_cast<size_t>(row) * ld, vocab});
    }
  }
}

// The driver takes about a thousand launches ahead; past that a launch waits, perhaps with a lock
// that other streams need.
void Prefiller::LimitQueue() {
  if (++layers_since_mark_ < kLayersOfMark) return;
  layers_since_mark_ = 0;
  mark_ = (mark_ + 1) % kMarks;
  Check(cudaEventSynchronize(marks_[mark_].get()), "waiting for a prompt");
  Check(cudaEventRecord(marks_[mark_].get(), stream_.get()), "marking part of a prompt");
}

}  // namespace loopspec::cuda
