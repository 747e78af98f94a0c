#include "equality.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/timer.h"
#include "decode/depths.h"
#include "prompts.h"
#include "tests/support/run_request.h"
#include "tests/support/verdicts.h"

namespace loopspec {
namespace {

// Logits of every token of a text, as one after another decided them.
struct Record {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens][vocab]
  int64_t drafted = 0, steps = 0;
};

class Comparison {
 public:
  Comparison(const EqualityRequest& request, const BackendMaker& make_backend)
      : request_(request),
        model_(Model::Load(request.folder)),
        prompt_(request.folder, model_.spec),
        vocab_(static_cast<size_t>(model_.spec.vocab)) {
    if (request_.depth_sets.empty()) request_.depth_sets = EqualityDepths(model_.spec.recurrence);
    std::set<int> readouts = {model_.spec.recurrence};
    for (const std::vector<int>& depths : request_.depth_sets) {
      CheckDepths(depths, model_.spec.recurrence);
      readouts.insert(depths.begin(), depths.end());
    }
    BackendOptions options;
    options.readout_depths.assign(readouts.begin(), readouts.end());
    options.kv_positions = std::min<int64_t>(model_.spec.max_positions, request.text + 512);
    options.kv_type = request.kv_type;
    if (!request.key_plan.empty())
      options.key_plan = SpannedKeyPlan::Parse(request.key_plan, model_.spec.recurrence);
    backend_ = make_backend(model_, options);
    scheduler_ = std::make_unique<Scheduler>(*backend_, OneAtATime());
    // Every row there is, the device's own choice, and few: the text must not depend on it.
    const int budgets[] = {0, 32, 5};
    for (const std::vector<int>& depths : request_.depth_sets)
      result_.sets.push_back({depths, budgets[result_.sets.size() % 3]});
  }

  EqualityResult Run() {
    Timer timer;
    while (result_.tokens < request_.tokens && !result_.out_of_time) {
      ResolvedRequest decode;
      decode.prompt = prompt_(result_.texts++);
      decode.max_tokens =
          static_cast<int>(std::min<int64_t>(request_.text, request_.tokens - result_.tokens));
      if (result_.texts % 2 == 0) {
        decode.sampling.temperature = 0.8f;
        decode.sampling.sampler = Sampler::kCoupled;
        decode.seed = static_cast<uint64_t>(result_.texts);
      }
      const Record reference = Decode(decode, nullptr, nullptr);
      result_.tokens += static_cast<int64_t>(reference.tokens.size());
      result_.autoregressive_steps += reference.steps;
      for (EqualityResult::Set& set : result_.sets) {
        decode.depths = set.depths;
        decode.max_rows = set.max_rows;
        // Groups and early children change from text to text.
        const int groups[] = {1, 3, 0, 5, 2};
        const size_t round = static_cast<size_t>(result_.texts) + set.depths.size();
        decode.group = groups[round % std::size(groups)];
        decode.guesses = round % 2 == 0;
        const Record ours = Decode(decode, &reference, &set);
        set.drafted += ours.drafted;
        set.steps += ours.steps;
        set.tokens += static_cast<int64_t>(reference.tokens.size());
        Compare(reference.tokens, ours.tokens, set);
      }
      if (request_.seconds > 0 && timer.Seconds() > request_.seconds &&
          result_.tokens < request_.tokens)
        result_.out_of_time = true;
    }
    return result_;
  }

 private:
  // Records the logits, or compares them with a reference as they come.
  Record Decode(ResolvedRequest request, const Record* reference, EqualityResult::Set* set) {
    Record record;
    VerdictLog log;
    std::vector<int32_t> text = request.prompt;
    if (reference == nullptr) {
      record.logits.resize(static_cast<size_t>(request.max_tokens) * vocab_);
    } else {
      text.insert(text.end(), reference->tokens.begin(), reference->tokens.end());
      row_.resize(vocab_);
    }
    request.laboratory.after_step = [&](const StepPlan& plan, const StepResult&) {
      log.Step(plan, [&](int readout) {
        if (reference == nullptr) {  // autoregressive: every verdict is the text's
          backend_->ReadLogits(readout,
                               std::span(record.logits).subspan((log.size() - 1) * vocab_, vocab_));
          return;
        }
        const int token = log.Decides(log.size() - 1, text, request.prompt.size());
        if (token < 0) return;
        backend_->ReadLogits(readout, row_);
        const auto at = static_cast<size_t>(token);
        const bool same = std::memcmp(row_.data(), reference->logits.data() + at * vocab_,
                                      vocab_ * sizeof(float)) == 0;
        set->equal_logits += same ? 1 : 0;
        if (!same) Note(*set, at, "other bits in the verifying logits");
      });
    };
    const Choice generated = RunRequest(*scheduler_, request);
    for (const Token& token : generated.tokens) {
      record.tokens.push_back(token.id);
      record.drafted += token.source > 0 ? 1 : 0;
    }
    record.steps = generated.statistics.recurrences;
    return record;
  }

  void Compare(const std::vector<int32_t>& want, const std::vector<int32_t>& got,
               EqualityResult::Set& set) {
    for (size_t i = 0; i < want.size(); ++i) {
      if (i < got.size() && got[i] == want[i]) {
        ++set.equal_tokens;
      } else {
        Note(set, i, fmt::format("token {} instead of {}", i < got.size() ? got[i] : -1, want[i]));
      }
    }
    if (got.size() > want.size()) Note(set, want.size(), "more tokens than without proposals");
  }

  void Note(const EqualityResult::Set& set, size_t token, const std::string& what) {
    if (!result_.first_difference.empty()) return;
    result_.first_difference =
        fmt::format("depths {} with {} rows, text {}, token {}: {}", fmt::join(set.depths, ","),
                    set.max_rows, result_.texts - 1, token, what);
  }

  EqualityRequest request_;
  Model model_;
  PromptMaker prompt_;
  size_t vocab_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<float> row_;
  EqualityResult result_;
};

}  // namespace

std::vector<std::vector<int>> EqualityDepths(int recurrence) {
  std::vector<std::vector<int>> sets;
  const std::vector<std::vector<int>> wanted =
      recurrence <= 4 ? std::vector<std::vector<int>>{{1, 2}, {1}, {1, 3}, {2, 3}, {1, 2, 3}, {2}}
                      : std::vector<std::vector<int>>{{2, 8}, {4, 8}, {2}, {3, 7}, {2, 8, 16}, {8}};
  for (const std::vector<int>& depths : wanted) {
    if (depths.back() < recurrence) sets.push_back(depths);
  }
  return sets;
}

EqualityResult CompareDecoders(const EqualityRequest& request, const BackendMaker& make_backend) {
  return Comparison(request, make_backend).Run();
}

}  // namespace loopspec
