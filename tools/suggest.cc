#include "tools/suggest.h"

#include <algorithm>

namespace loopspec::tools {
namespace {

// Letters to put in, take out or change, and neighbours to swap (optimal string alignment).
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) rows[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

std::string WithoutDashes(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

}  // namespace

std::string Nearest(const std::string& word, const std::vector<std::string>& known) {
  // A third of the letters may be wrong: what differs in more is another word.
  const std::string bare = WithoutDashes(word);
  std::string best;
  size_t least = std::max<size_t>(1, bare.size() / 3) + 1;
  for (const std::string& other : known) {
    const size_t distance = Distance(bare, WithoutDashes(other));
    if (distance < least && distance < bare.size()) {
      least = distance;
      best = other;
    }
  }
  if (!best.empty() || bare.size() < 3) return best;
  for (const std::string& other : known) {
    if (WithoutDashes(other).starts_with(bare)) return other;
  }
  return "";
}

}  // namespace loopspec::tools
