// Runs rows through blocks: the transformer itself. Every function is entered by all workers of the
// pool together and divides its work among them; Sync() marks where one needs what the others
// wrote.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/weights.h"
#include "base/thread_pool.h"

namespace loopspec::cpu {

// A row as the blocks see it: where its residual stream is, what it attends to, where its keys and
// values go.
struct BatchRow {
  float* x;  // [hidden]
  SequencePlan sequence;
  int64_t page_positions;  // positions [0, page_positions) are read from pages, ...
  const int32_t* cells;    // ... the rest from these cells, in order
  int cell_count;
  int cell;  // writes its own keys and values here, or, when -1, into its page
  int32_t position;
  int plane;         // of the stack's first block; block l uses plane + l
  const float* cos;  // rotary tables of its position, [head_dim / 2]
  const float* sin;

  int64_t positions() const { return page_positions + cell_count; }
};

class Stack {
 public:
  // `row_capacity`: most rows of a batch. `max_positions`: longest context. `round_keys`: mostly
  // none; it outlives this.
  Stack(const ModelSpec& spec, const Weights& weights, KvMemory& kv, const KeyRounding& round_keys,
        int threads, int row_capacity, int64_t max_positions);

  // `related`: rows may attend to each other on the same plane, as those of a prompt do, and those
  // of a chain of branches at the same depth. `first_call`: calls of blocks since the rows' planes.
  void Blocks(Worker& worker, std::span<const Block> blocks, std::span<const BatchRow> rows,
              bool related, int first_call = 0);

  // P's last stage, where rows hold its output e: its norm; `states` get a copy where they start
  // from e (empty: they do not); and where B adds the same u in every recurrence, u = step (W e)
  // takes the place of e.
  void FinishPrelude(Worker& worker, std::span<const BatchRow> rows,
                     std::span<float* const> states);
  // B's first stage: mixes e, or what FinishPrelude made of it, into the state.
  void Inject(Worker& worker, std::span<const BatchRow> rows, std::span<const float* const> e);
  // B's last stage (Ouro): x = norm(x).
  void LoopNorm(Worker& worker, std::span<const BatchRow> rows);
  // What the blocks of C begin with: a copy of one row's state, normed where the model has it.
  void CodaInput(const float* state, float* to) const;
  // C's last stage: logits[row * vocab + v].
  void Head(Worker& worker, std::span<const BatchRow> rows, float* logits);

 private:
  struct RowResiduals {
    size_t begin, count;
    int bits;
  };
  struct Scratch {  // per worker
    std::vector<float> row, gate, up, head_out;
    LazyBuffer attention;
    std::vector<KvRun> runs;
    std::vector<KvRun> own_runs;              // of the rows of a tile, one after the other
    std::vector<OwnRuns> own;                 // empty: all rows of the tile read `runs`
    std::vector<const std::byte*> residuals;  // of the rows of a tile, one after the other
    std::vector<RowResiduals> row_residuals;  // of each row, or of all of them
    std::vector<AttentionQuery> queries;
    std::vector<int> tiles;  // where each begins, and the end
  };

  void AttentionPart(Worker& worker, const Block& block, std::span<const BatchRow> rows, int layer,
                     bool related);
  // A worker's part of attention: pairs of rows, one or a tile of them, and a key/value head.
  struct HeadTasks {
    bool own;             // the worker has its heads to itself, for all rows
    Worker::Range heads;  // the heads among which tasks count
    int64_t begin, end;
    int64_t rows;
    bool by_head;  // all rows of a head, then the next head

    int64_t Row(int64_t task) const {
      return by_head ? task % rows : task / (heads.end - heads.begin);
    }
    int Head(int64_t task) const {
      const int64_t head = by_head ? task / rows : task % (heads.end - heads.begin);
      return static_cast<int>(heads.begin + head);
    }
  };
  HeadTasks ShareHeads(const Worker& worker, int rows, bool by_head = false) const;
  void FindTiles(std::span<const BatchRow> rows, int workers, std::vector<int>& tiles) const;
  bool ReadTheSameLoop(const BatchRow& row, const BatchRow& other) const;
  void ProjectHeads(const Block& block, Worker::Range heads, int rows, const std::byte* next);
  void FindRuns(const BatchRow& row, int plane, int head, const BatchRow& next_row, int next_plane,
                int next_head, Scratch& scratch) const;
  void FindSharedRuns(std::span<const BatchRow> rows, int layer, int head, Scratch& scratch) const;
  void FindResiduals(const KvMemory::Reader& reader, Scratch& scratch) const;
  void AttendTile(const Block& block, std::span<const BatchRow> rows, int first_row, int head,
                  int worker);
  bool HeadsPackAlone(const MatMulKernel& kernel) const;
  void StoreKeysValues(const Block& block, const BatchRow& row, int plane, int head, float* qkv);
  void RotateHead(const BatchRow& row, const float* bias, float* head) const;
  void Adapter(Worker& worker, std::span<const BatchRow> rows, std::span<const float* const> e);
  void AddSublayer(float* x, float* sub, const std::vector<float>& norm_out) const;
  int64_t FfGrain(const Block& block) const;
  Worker::Range ShareFf(const Worker& worker, const Block& block) const;
  // `next`: the block that most likely comes after this one.
  void MlpPart(Worker& worker, const Block& block, const Block& next,
               std::span<const BatchRow> rows);

  void ExpertsPart(Worker& worker, const Block& block, std::span<const BatchRow> rows);
  void ChooseExperts(const Block& block, int rows);
  void MultiplyExpert(Worker& worker, const Expert& expert, int first_slot, int count);

  static constexpr int64_t kFfChunk = 64;  // outputs of gate and up that a worker holds at a time

  const ModelSpec& spec_;
  const Weights& weights_;
  KvMemory& kv_;
  const KeyRounding& round_keys_;
  AttentionFunction attention_;
  int64_t max_positions_;

  LazyBuffer packed_;       // normed inputs of qkv, gate_up, the head; of the adapter
  LazyBuffer packed_att_;   // inputs of W_o
  LazyBuffer packed_ff_;    // inputs of `down`
  std::vector<float> qkv_;  // [rows, q + 2 kv]
  std::vector<float> sub_;  // [rows, hidden]: output of a sublayer
  // A mixture: rows by expert, each expert's in slots that begin at a block of packed rows.
  struct Choice {
    int expert, slot;
    float weight;
  };
  std::vector<float> normed_;      // [rows, hidden]
  std::vector<float> scores_;      // [rows, experts]
  std::vector<Choice> choices_;    // [rows, active experts], the likeliest first
  std::vector<int> slot_rows_;     // the row of each slot, -1: none
  std::vector<int> expert_slots_;  // [experts + 1]: where each expert's slots begin
  std::vector<int> expert_rows_;   // [experts]: how many of them are rows
  int slot_block_ = 1;             // slots of an expert begin at a multiple of this
  std::vector<Scratch> scratch_;
};

}  // namespace loopspec::cpu
