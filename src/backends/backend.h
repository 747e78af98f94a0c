// The seam: what every backend does, and all that the decoders know of one.
//
// A backend holds one model and advances *rows*. A row is one live branch: a token on its prefix,
// somewhere between depth 0 and R. Rows of one step may be at different depths and of different
// sequences; a row's result depends on that row alone, bit for bit. A step is submitted and
// awaited; what comes back are decisions, small enough to cross to the host, while states, keys,
// values and distributions stay on the device behind cell numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "kv/kept_planes.h"
#include "kv/ledger.h"
#include "loopspec/token.h"
#include "model/model.h"
#include "sampling/cascade.h"
#include "sampling/params.h"

namespace loopspec {

// kF32: float32 activations. kBF16: inputs of matrix products and keys/values rounded to bf16, sums
// and the residual stream float32, as the released models run.
enum class ComputeMode { kAuto, kF32, kBF16 };

// How keys and values are kept: as activations are, or as int8 with a scale for each head and
// position, rounded when they are written: a token attends to its own rounded keys. kLoops: int8,
// and beyond the last positions only the loops that a plan keeps (kv/kept_planes.h).
enum class KvType { kCompute, kInt8, kLoops };

// Sees the inputs of a matrix product, a row at a time. `weights`: where the matrix, or its first
// part, lies in the checkpoint.
using InputObserver = std::function<void(const std::byte* weights, std::span<const float> input)>;
// Rounds the keys, or the values, of one head and position in place, before they are stored.
using KeyRounding = std::function<void(std::span<float> head)>;

struct BackendOptions {
  std::vector<int> readout_depths;  // ascending, the last is R; C planes exist for these
  int drafts = 0;                   // of a branch at most; 0: one at every depth but the last
  int cells = 256;                  // branches alive at once, over all requests
  int64_t kv_positions = 0;  // committed positions to hold over all sequences; 0: what memory holds
  int64_t kv_memory = 0;     // bytes of key/value memory instead of positions
  double kv_share = 0;       // or a share of the device's memory that is free beside the weights
  ComputeMode compute = ComputeMode::kAuto;
  KvType kv_type = KvType::kCompute;
  std::optional<SpannedKeyPlan> key_plan = {};  // with kLoops, and only then
  int threads = 0;                              // CPU: 0 takes every usable core
  uint64_t state_seed = 0;  // keys Raven's initial states, a property of the loaded model
  // For those who fit weights to what they are multiplied with: the CPU in float32 calls it for
  // every product, from one thread.
  InputObserver observe_inputs = {};
  // For those who measure number formats of keys: the CPU in float32 calls it for every head, from
  // any of its threads.
  KeyRounding round_keys = {};

  bool int8_keys() const { return kv_type != KvType::kCompute; }
};

// Drafts of a branch whose distributions are kept.
inline int MostDrafts(const BackendOptions& options) {
  return options.drafts > 0 ? options.drafts : static_cast<int>(options.readout_depths.size()) - 1;
}

// Bytes of the keys, or of the values, of one head and position.
inline int64_t KvHeadBytes(const BackendOptions& options, int head_dim) {
  if (options.int8_keys()) return head_dim + 4;
  return int64_t{head_dim} * (options.compute == ComputeMode::kF32 ? 4 : 2);
}

// "f32", "bf16", "int8", "loops:int8*8,last@64": text depends on it, so reports and caches name it.
inline std::string NameOfKvType(const BackendOptions& options) {
  if (options.kv_type == KvType::kInt8) return "int8";
  if (options.kv_type == KvType::kLoops) return "loops:" + options.key_plan->text();
  return options.compute == ComputeMode::kF32 ? "f32" : "bf16";
}

// ---- What a step consists of ----

// The committed part of a sequence, as rows of this step see it.
struct SequencePlan {
  const int32_t* pages;             // page of positions [64 i, 64 i + 64)
  const int32_t* window = nullptr;  // Backend::window_pages() of them
  int32_t recurrences = 0;          // depths of B that its text has; 0: all of them
};

inline SequencePlan PlanOf(const SequencePages& pages, int recurrences = 0) {
  return {pages.pages().data(), pages.window().data(), recurrences};
}

// The keys and values of `cell` become those of a committed position. Done before the rows of the
// step advance.
struct CommitPlan {
  int32_t cell;
  int32_t sequence;  // index into StepPlan::sequences
  int32_t position;
};

struct RowPlan {
  int32_t sequence;      // index into StepPlan::sequences
  int32_t cell;          // holds the row's state, keys and values, proposals
  int32_t token;         // the token that the row is
  int32_t position;      // its absolute position
  int32_t depth;         // recurrences done; a row at depth 0 goes through P first
  int32_t chain_begin;   // its uncommitted ancestors' cells, oldest first:
                         // StepPlan::chains[chain_begin ...]
  int32_t chain_length;  // positions below position - chain_length are committed
};

enum class ReadoutPurpose {
  kPropose,  // draft the next token from an early depth
  kVerify,   // decide the next token at the request's last depth, by cascade over the recorded
             // drafts (none: plain sampling)
};

// A draft of the same cell recorded by an earlier readout; its distribution is kept under (cell,
// proposal).
struct RecordedDraft {
  int32_t proposal;  // its index among the proposal depths
  int32_t token;
};

// The tokens that a readout may choose from. A backend asks for them while the rows of the step
// advance, once for each readout and from any thread, so that they can be made meanwhile.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Bit id % 32 of word id / 32 is set when the token is allowed. The words stay until the step has
  // been awaited. Where none is set the decision means nothing, and who planned it knows.
  virtual std::span<const uint32_t> Words() = 0;
};

struct ReadoutPlan {
  int32_t row;  // index into StepPlan::rows; its depth after the step is readout_depths[readout]
  int32_t readout;  // which depth, by index into readout_depths: selects the C planes
  ReadoutPurpose purpose;
  int32_t proposal;  // kPropose: index of the proposal made here
  int32_t recorded_count;
  RecordedDraft recorded[kMaxProposals];
  const SamplingParams* sampling;
  DrawKey draw;  // position: that of the token to be decided
  // Distinct tokens of the row's prefix, its own included, with their counts; empty unless
  // sampling->needs_counts().
  const TokenCount* counts;
  int32_t counts_length;
  int32_t logprobs;  // kVerify: -1 none; n: the token's log-probability and the n most likely ones
  TokenMask* mask;   // other tokens have no probability, before any filter; null: all are allowed
};

struct StepPlan {
  std::vector<SequencePlan> sequences;
  std::vector<int32_t> chains;
  std::vector<CommitPlan> commits;
  std::vector<RowPlan> rows;
  int32_t recurrences = 1;  // times that every row goes through B
  std::vector<ReadoutPlan> readouts;

  void Clear() {
    sequences.clear();
    chains.clear();
    commits.clear();
    rows.clear();
    readouts.clear();
    recurrences = 1;
  }
};

// ---- What comes back ----

struct Decision {
  int32_t token = -1;  // kPropose: the draft, or -1 when there is none; kVerify: the decided token
  int32_t accepted = -1;   // kVerify: index into recorded of the accepted draft, -1: fallback
  bool gate_open = false;  // kPropose
  bool finite = true;      // false: the logits hold NaN or infinity, and token means nothing
  float logprob = 0.0f;    // of the unfiltered depth-R softmax over what the mask allows
  std::vector<Alternative> top;
};

struct StepResult {
  std::vector<Decision> decisions;  // one per readout, in order
  // Seconds in each part; the rest of the step's time is the host's.
  double prelude_seconds = 0, recur_seconds = 0, readout_seconds = 0;
};

// Part of a prompt, to be committed straight into pages: P, B at all depths and C's blocks at every
// readout depth, or all this up to a depth beyond which nobody reads the pages.
struct PrefillPlan {
  SequencePlan sequence;
  int32_t start;  // absolute position of tokens[0]; everything before is committed
  std::span<const int32_t> tokens;
  int32_t recurrences = 0;  // depths of B; 0: all of them
};

// What one request may ask of a backend at most; CheckLimits (decode/request.h) refuses the rest
// before anything is submitted.
struct BackendLimits {
  int max_logprobs;  // likeliest tokens that a decision can list
};

using Ticket = uint64_t;
// Logits of one position at readout_depths[readout]; the span is valid during the call.
using LogitsSink = std::function<void(int32_t position, int32_t readout, std::span<const float>)>;
// Likewise the state that they are read out from, [hidden]: what B left, its own norm included.
using StateSink = LogitsSink;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const ModelSpec& spec() const = 0;
  // As granted: every field that was 0 or kAuto is filled in.
  virtual const BackendOptions& options() const = 0;
  virtual BackendLimits limits() const = 0;
  virtual std::string device() const = 0;                // "cpu", "cuda:0"
  virtual std::string chip() const { return device(); }  // its name, for records and caches
  virtual int pages() const = 0;                         // pages of kPageSize positions there are
  virtual int64_t page_bytes() const = 0;                // of one page on all planes
  // Pages that a sequence holds beside those of its positions, for KvLedger.
  virtual int window_pages() const { return 0; }
  virtual int64_t device_bytes() const = 0;  // memory that the device has, for all users
  virtual int64_t weight_bytes() const = 0;  // that the weights take, as the device reads them
  // Positions of a prompt to prefill between two steps of other requests.
  virtual int PrefillChunk() const { return 512; }
  // Whether rows of one sequence at one depth read its committed keys and values once for all of
  // them, or each for itself.
  virtual bool rows_share_planes() const { return false; }

  // Prompts, submitted and awaited like steps, and beside them: steps of other sequences may be
  // submitted and awaited meanwhile. A position's bits depend neither on how its prompt was cut
  // into parts nor on what else was submitted, so a caller that wants to report progress cuts a
  // long prompt. The plans need not outlive the call; steps submitted after WaitPrefill see the
  // pages. Every ticket is awaited once; parts are done in the order in which they were submitted.
  virtual Ticket SubmitPrefill(std::span<const PrefillPlan> parts) = 0;
  virtual bool PrefillDone(Ticket ticket) = 0;  // whether WaitPrefill would return at once
  virtual void WaitPrefill(Ticket ticket) = 0;
  void Prefill(const PrefillPlan& plan) { WaitPrefill(SubmitPrefill({&plan, 1})); }
  // Whether a position's keys and values have the same bits after a prompt as after steps: what a
  // cache of prefixes must know.
  virtual bool prefill_equals_decode() const = 0;
  // As Prefill, and hands out the logits of every position at every readout depth.
  virtual void Score(const PrefillPlan& plan, const LogitsSink& sink) = 0;
  // As Score, with the states too. Throws Error where the backend keeps them to itself.
  virtual void ScoreStates(const PrefillPlan& /*plan*/, const LogitsSink& /*sink*/,
                           const StateSink& /*states*/) {
    Fail("{} hands out no hidden states, expected the CPU", device());
  }

  // The plan must stay as it is until Wait returns.
  virtual Ticket Submit(const StepPlan& plan) = 0;
  virtual const StepResult& Wait(Ticket ticket) = 0;

  // Whole pages, when no step or prompt that writes them is in flight: to host memory of
  // page_bytes() each and back bit for bit, or from one page to another.
  virtual void SavePages(std::span<const int32_t> pages, std::byte* to) = 0;
  virtual void LoadPages(std::span<const int32_t> pages, const std::byte* from) = 0;
  virtual void CopyPage(int32_t from, int32_t to) = 0;

  // The keys and values of a page as they lie, for those who measure number formats of keys: one
  // head on one plane, [kPageSize][head_dim] each. Throws Error where they do not lie so.
  struct FloatKeys {
    std::span<float> keys, values;
  };
  virtual FloatKeys KeysOf(int32_t /*page*/, int /*plane*/, int /*head*/) {
    Fail("{} hands out no keys, expected the CPU in float32", device());
  }

  // Bytes per second that the device reads from memory far larger than its caches, measured; 0 when
  // unknown.
  virtual double ReadBandwidth() { return 0.0; }

  // The raw logits behind decision `readout` of the last awaited step, for tests and tools.
  virtual void ReadLogits(int readout, std::span<float> out) = 0;
};

// Throws Error when the model cannot run there or memory does not suffice.
std::unique_ptr<Backend> MakeCpuBackend(const Model& model, const BackendOptions& options);
std::unique_ptr<Backend> MakeCudaBackend(const Model& model, const BackendOptions& options,
                                         int device);
// How the CPU backend would compute: what kAuto stands for with this model on this machine.
ComputeMode CpuComputeMode(const Model& model, ComputeMode wanted);
// Number of usable GPUs; 0 where the build has no CUDA or no GPU answers. `why` says why there is
// none.
int CudaDeviceCount(std::string* why = nullptr);
// What a GPU calls itself, as Backend::chip says it; `device` counts from 0.
std::string CudaDeviceName(int device);

}  // namespace loopspec
