// The verifying readouts of a run that are on the committed path. Where several tokens pass the
// last depth in one step, branches that come to nothing are verified too; the text tells them
// apart.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "backends/backend.h"

namespace loopspec {

class VerdictLog {
 public:
  // Takes in a step; calls record(readout) for each of its verifying readouts, in order. Each call
  // gives the next number.
  template <typename F>
  void Step(const StepPlan& plan, F record) {
    for (const RowPlan& row : plan.rows) token_of_[row.cell] = row.token;
    for (size_t i = 0; i < plan.readouts.size(); ++i) {
      if (plan.readouts[i].purpose != ReadoutPurpose::kVerify) continue;
      const RowPlan& row = plan.rows[static_cast<size_t>(plan.readouts[i].row)];
      Verdict verdict;
      verdict.first = row.position - row.chain_length;
      for (int32_t c = 0; c < row.chain_length; ++c)
        verdict.tokens.push_back(
            token_of_.at(plan.chains[static_cast<size_t>(row.chain_begin + c)]));
      verdict.tokens.push_back(row.token);
      verdicts_.push_back(std::move(verdict));
      record(static_cast<int>(i));
    }
  }

  // Which token of text[prompt], text[prompt + 1], ... verdict number `n` decided, from 0; -1 when
  // its branch is not on the way of the text.
  int Decides(size_t n, std::span<const int32_t> text, size_t prompt) const {
    const Verdict& verdict = verdicts_[n];
    const size_t decided = static_cast<size_t>(verdict.first) + verdict.tokens.size();
    if (decided < prompt || decided >= text.size()) return -1;
    for (size_t i = 0; i < verdict.tokens.size(); ++i) {
      if (text[static_cast<size_t>(verdict.first) + i] != verdict.tokens[i]) return -1;
    }
    return static_cast<int>(decided - prompt);
  }
  // The numbers of the verdicts that decided each of them; -1 for one that is missing.
  std::vector<int> Committed(std::span<const int32_t> text, size_t prompt) const {
    std::vector<int> numbers(text.size() - prompt, -1);
    for (size_t n = 0; n < verdicts_.size(); ++n) {
      if (const int decided = Decides(n, text, prompt); decided >= 0)
        numbers[static_cast<size_t>(decided)] = static_cast<int>(n);
    }
    return numbers;
  }
  size_t size() const { return verdicts_.size(); }

 private:
  struct Verdict {
    int32_t first;                // position of tokens[0]; those before it are committed
    std::vector<int32_t> tokens;  // its uncommitted ancestors and itself
  };
  std::map<int32_t, int32_t> token_of_;  // by cell
  std::vector<Verdict> verdicts_;
};

}  // namespace loopspec
