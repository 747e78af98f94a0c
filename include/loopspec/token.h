// What comes back: tokens, and how a text ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace loopspec {

struct Alternative {
  int32_t id = 0;
  float logprob = 0.0f;
};

struct Token {
  int choice = 0;
  int32_t id = 0;
  int source = 0;      // 0: decided at full depth, j: accepted from proposal j
  bool early = false;  // its computation had begun on a guess
  // What may be shown now, in whole characters; empty while a character or a stop string is
  // incomplete. At a choice's end: what was held back when it was cancelled.
  std::string text = {};
  // Of the unfiltered distribution over the tokens that a grammar allows, where asked for.
  std::optional<float> logprob = {};
  std::vector<Alternative> top = {};
  std::chrono::steady_clock::time_point time = {};  // when it was decided
};

// kNone: the text has not ended. kError: Statistics::error says what went wrong.
enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
// none, stop, length, cancelled, error
std::string NameOf(FinishReason reason);

// How one choice ended, and what it took.
struct Statistics {
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
  // What kStop was due to: one of Request::stop, or the last token, which is one of
  // Request::stop_tokens or the model's own end of text.
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token;

  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int64_t decoded_tokens = 0;
  std::vector<int64_t> accepted;  // tokens by proposal
  int64_t fallback = 0;           // tokens decided without an accepted draft
  int64_t early = 0;              // tokens whose computation had begun on a guess
  double gamma = 0;               // tokens per R recurrences, the paper's measure
  int preemptions = 0;            // times that it was swapped out for others

  double queue_seconds = 0;
  double prefill_seconds = 0;      // from admission to the read prompt
  double first_token_seconds = 0;  // from admission to the first token
  double decode_seconds = 0;       // from the read prompt to the last token
  double tokens_per_second = 0;

  // For those who study the decoder; these follow it, and may change with it.
  int64_t drafted = 0;  // drafts made, whether or not they were used
  int64_t gate_evaluated = 0, gate_opened = 0;
  int64_t guesses = 0, guesses_adopted = 0;
  int64_t recurrences = 0;      // of steps: one advances all rows of its step
  int64_t row_recurrences = 0;  // rows summed over them
  double rows_mean = 0;         // branches of this request computed together
  int rows_peak = 0;
  std::vector<int64_t> rows_histogram;           // recurrences by number of rows
  double tokens_per_pass = 0;                    // as gamma, but by the recurrences that were made
  int64_t preludes = 0, readouts = 0;            // rows through P, and through C
  int64_t prelude_steps = 0, readout_steps = 0;  // steps in which P ran, and C
  int64_t planes = 0;  // (depth, recurrence) pairs whose committed keys and values were read
  // Positions whose keys and values were read, per layer of B, of P and of C: rows of one depth
  // share the committed ones.
  int64_t kv_positions = 0, prelude_positions = 0, readout_positions = 0;
  // Over all steps that the request took part in, other requests' rows included.
  double prelude_seconds = 0, recur_seconds = 0, readout_seconds = 0, host_seconds = 0;
  double bytes_read = 0;  // that the steps had to read: weights, keys and values

  double busy_seconds() const {
    return prelude_seconds + recur_seconds + readout_seconds + host_seconds;
  }
};

}  // namespace loopspec
