// Where the last few tokens stood before: guesses for the next token from the text itself.
//
// Prompt and output are entered as they are committed. A look-up takes the end of any prefix (the
// committed text and a branch's uncommitted chain) and returns what followed the most recent place
// with the longest match, of 1 to 6 tokens. Memory is taken at the start; entering and looking up
// allocate nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"
#include "decode/acceptance.h"

namespace loopspec {

struct Guess {
  int32_t token = -1;  // -1: no match
  int32_t match = 0;   // tokens that matched, or GuessRates::kForced
};

// Guesses from elsewhere.
class GuessSource {
 public:
  virtual ~GuessSource() = default;
  // For the token that is drawn with this key.
  virtual Guess At(const DrawKey& token) const = 0;
};

class NgramIndex {
 public:
  // For `capacity` tokens at most; 0: the index stays empty.
  explicit NgramIndex(int64_t capacity);

  void Push(int32_t token);
  // The guess for what follows the text entered so far and then `chain`, given latest token first.
  Guess Find(std::span<const int32_t> chain) const;

 private:
  // Ends of n-grams by their hash; a slot that another n-gram took is noticed by comparing tokens.
  size_t Slot(uint64_t hash) const { return hash >> shift_; }
  bool Matches(int32_t end, std::span<const int32_t> last) const;

  std::vector<int32_t> text_;
  std::vector<int32_t> ends_;  // position of an n-gram's last token, -1: empty
  int shift_ = 64;
};

}  // namespace loopspec
