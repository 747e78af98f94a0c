#include "tools/suggest.h"

#include <algorithm>
#include <numeric>

namespace loopspec::tools {
namespace {

// Letters to put in, take out or change (Levenshtein).
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

std::string Nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 4) + 1;
  for (const std::string& other : known) {
    const size_t distance = Distance(word, other);
    if (distance < least && distance < std::min(word.size(), other.size())) {
      least = distance;
      best = other;
    }
  }
  if (!best.empty() || word.size() < 5) return best;
  for (const std::string& other : known) {
    if (other.starts_with(word)) return other;
  }
  return "";
}

}  // namespace loopspec::tools
