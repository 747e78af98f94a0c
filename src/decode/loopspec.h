// LoopSpec: pipelined self-speculative decoding of one request (the paper's algorithm), over the
// seam.
//
// A decoder is steppable. It names its rows for the next step (Plan) and absorbs the decisions that
// come back (Absorb); who drives it, alone or among many, it does not know. With no proposal depths
// it is autoregressive decoding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "decode/branch_tree.h"
#include "decode/prefix_counts.h"
#include "decode/request.h"
#include "kv/ledger.h"

namespace loopspec {

class LoopSpec {
 public:
  // `readout_depths` are the backend's; the request's depths must be among them. Throws Error when
  // the sequence does not fit into the key/value memory or the context.
  LoopSpec(const DecodeRequest& request, const ModelSpec& spec, const BackendOptions& backend,
           KvLedger& ledger);

  // What must be prefilled before the first step: the prompt without its last token, which is the
  // first branch.
  PrefillPlan Prefill() const;

  bool finished() const { return reason_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return reason_; }
  // Ends decoding from outside, after a stop string or a cancelled request.
  void Stop(FinishReason reason);

  // Recurrences until some branch must be read out.
  int StepsToReadout() const;
  // Adds this decoder's rows, commits and readouts of a step of `recurrences` <= StepsToReadout().
  void Plan(int recurrences, StepPlan& plan);
  // The decisions of the readouts that Plan added, in order.
  void Absorb(std::span<const Decision> decisions);

  const std::vector<CommittedToken>& output() const { return output_; }
  const DecodeStatistics& statistics() const { return statistics_; }
  const std::vector<TraceEvent>& trace() const { return trace_; }
  std::span<const int> depths() const { return request_.depths; }
  const BranchTree& tree() const { return tree_; }

 private:
  int32_t Spawn(int32_t parent, int32_t token, int32_t position, int proposal);
  void Draft(int32_t b, int proposal, const Decision& decision);
  void Verify(const Decision& verdict);
  void Reroot(int32_t root);
  void SpawnChildren();
  bool MayHaveChild(int32_t token, int32_t position) const;
  bool IsStop(int32_t token) const;
  void Commit(int32_t token, int source, const Decision& decision);
  void CountReads(int recurrences);
  void PlanReadout(int32_t b, int row, StepPlan& plan);
  std::span<const Decision> Assume(std::span<const Decision> decisions);
  void Trace(TraceEvent::Kind kind, const Branch& branch, int32_t token, int32_t position,
             int proposal);

  const DecodeRequest request_;
  const int recurrence_;  // R
  const int vocab_;
  const std::vector<int> readout_depths_;  // the backend's
  std::vector<int> readout_of_proposal_;   // index into readout_depths_
  int budget_;                             // live branches at most
  SequencePages pages_;
  BranchTree tree_;
  PrefixCounts counts_;

  // Between Plan and Absorb: the readouts in flight. Between Absorb and Plan: the commit to come.
  struct Pending {
    int32_t branch;
    int32_t proposal;  // -1: verification
  };
  std::vector<Pending> pending_;
  std::vector<CommitPlan> commits_;
  std::vector<Decision> assumed_;
  std::vector<bool> depth_seen_;

  FinishReason reason_ = FinishReason::kNone;
  std::vector<CommittedToken> output_;
  DecodeStatistics statistics_;
  std::vector<TraceEvent> trace_;
};

}  // namespace loopspec
