// A mixture of experts in place of a block's feed-forward. A row's experts are chosen by that row
// alone; rows that chose the same expert go through its matrices together, and those of experts
// that nobody chose are not read.
#include <algorithm>
#include <cmath>

#include "backends/cpu/stack.h"

namespace loopspec::cpu {

// The experts of each row, by the sigmoid of its scores (equal ones: the lower number), weighted by
// their share; and slots for the rows of each expert.
void Stack::ChooseExperts(const Block& block, int rows) {
  const auto experts = static_cast<int>(block.experts.size());
  const int active = spec_.active_experts;
  std::fill(expert_rows_.begin(), expert_rows_.end(), 0);
  for (int r = 0; r < rows; ++r) {
    float* scores = scores_.data() + int64_t{r} * experts;
    Choice* chosen = choices_.data() + int64_t{r} * active;
    for (int e = 0; e < experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-scores[e]));
    float sum = 0.0f;
    for (int k = 0; k < active; ++k) {
      const auto best = static_cast<int>(std::max_element(scores, scores + experts) - scores);
      chosen[k] = {best, expert_rows_[static_cast<size_t>(best)]++, scores[best]};
      sum += scores[best];
      scores[best] = -1.0f;
    }
    for (int k = 0; k < active && active > 1; ++k) chosen[k].weight /= sum;
  }
  expert_slots_[0] = 0;
  for (size_t e = 0; e < expert_rows_.size(); ++e)
    expert_slots_[e + 1] =
        expert_slots_[e] + (expert_rows_[e] + slot_block_ - 1) / slot_block_ * slot_block_;
  std::fill_n(slot_rows_.begin(), expert_slots_.back(), -1);
  for (int i = 0; i < rows * active; ++i) {
    Choice& choice = choices_[static_cast<size_t>(i)];
    choice.slot += expert_slots_[static_cast<size_t>(choice.expert)];
    slot_rows_[static_cast<size_t>(choice.slot)] = i / active;
  }
}

// x += sum of weight * W_down swiglu(W_gate_up norm_in(x)) over the row's experts.
void Stack::ExpertsPart(Worker& worker, const Block& block, std::span<const BatchRow> rows) {
  Scratch& scratch = scratch_[static_cast<size_t>(worker.index())];
  const int n = static_cast<int>(rows.size()), active = spec_.active_experts;
  const auto experts = static_cast<int64_t>(block.experts.size());
  const int64_t h = spec_.hidden;
  const Worker::Range mine = worker.Share(n);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    float* normed = normed_.data() + r * h;
    RmsNorm(rows[r].x, block.mlp_norm_in.data(), static_cast<float>(spec_.norm_eps), h, normed);
    block.router.kernel->pack(packed_.data(), static_cast<int>(r), h, 0, normed, h);
  }
  worker.Sync();
  const Worker::Range scores = worker.Share(experts, block.router.kernel->grain);
  block.router.Multiply(scores.begin, scores.end, packed_.data(), n, scores_.data() + scores.begin,
                        experts);
  worker.Sync();
  if (worker.index() == 0) ChooseExperts(block, n);
  worker.Sync();

  const Worker::Range slots = worker.Share(expert_slots_.back(), slot_block_);
  size_t expert = 0;
  for (int64_t slot = slots.begin; slot < slots.end; ++slot) {
    while (slot >= expert_slots_[expert + 1]) ++expert;
    const int row = slot_rows_[static_cast<size_t>(slot)];
    if (row < 0) continue;
    block.experts[expert].gate_up.kernel->pack(packed_.data(), static_cast<int>(slot), h, 0,
                                               normed_.data() + row * h, h);
  }
  worker.Sync();
  for (size_t e = 0; e < block.experts.size(); ++e) {
    if (expert_rows_[e] > 0)
      MultiplyExpert(worker, block.experts[e], expert_slots_[e], expert_rows_[e]);
  }
  worker.Sync();
  for (size_t e = 0; e < block.experts.size(); ++e) {
    if (expert_rows_[e] == 0) continue;
    const Linear& down = block.experts[e].down;
    const Worker::Range hidden = worker.Share(h, down.kernel->grain);
    down.Multiply(hidden.begin, hidden.end,
                  packed_ff_.data() + down.kernel->PackedBytes(expert_slots_[e], spec_.ff),
                  expert_rows_[e], sub_.data() + expert_slots_[e] * h + hidden.begin, h);
  }
  worker.Sync();

  for (int64_t r = mine.begin; r < mine.end; ++r) {
    std::fill_n(scratch.row.begin(), h, 0.0f);
    for (int k = 0; k < active; ++k) {
      const Choice& choice = choices_[static_cast<size_t>(r * active + k)];
      const float* from = sub_.data() + choice.slot * h;
      for (int64_t i = 0; i < h; ++i)
        scratch.row[static_cast<size_t>(i)] += choice.weight * from[i];
    }
    AddSublayer(rows[r].x, scratch.row.data(), block.mlp_norm_out);
  }
}

// This worker's share of gate and up, for the rows of one expert; they leave as packed input of
// `down`.
void Stack::MultiplyExpert(Worker& worker, const Expert& expert, int first_slot, int count) {
  Scratch& scratch = scratch_[static_cast<size_t>(worker.index())];
  const int64_t ff = spec_.ff, h = spec_.hidden;
  const int64_t grain = std::max(expert.gate_up.kernel->grain, expert.down.kernel->k_block);
  const int64_t step = std::max(grain, kFfChunk / grain * grain);
  const std::byte* packed = packed_.data() + expert.gate_up.kernel->PackedBytes(first_slot, h);
  const Worker::Range outputs = worker.Share(ff, grain);
  for (int64_t at = outputs.begin; at < outputs.end; at += step) {
    const int64_t width = std::min(step, outputs.end - at);
    expert.gate_up.Multiply(at, at + width, packed, count, scratch.gate.data(), kFfChunk);
    expert.gate_up.Multiply(ff + at, ff + at + width, packed, count, scratch.up.data(), kFfChunk);
    for (int r = 0; r < count; ++r) {
      float* gate = scratch.gate.data() + r * kFfChunk;
      SwiGlu(gate, scratch.up.data() + r * kFfChunk, width, gate);
      expert.down.kernel->pack(packed_ff_.data(), first_slot + r, ff, at, gate, width);
    }
  }
}

}  // namespace loopspec::cpu
