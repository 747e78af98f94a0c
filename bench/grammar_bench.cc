// Times of grammars: grammar_bench FOLDER SCHEMA...: with the tokenizer of FOLDER, from a schema's
// text to the first mask, and for each further mask along a random text. One line for each schema,
// then medians, averages and 99th percentiles over all.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"
#include "tests/grammar/vocabularies.h"

using namespace loopspec;
using namespace loopspec::grammar;

namespace {

// CPU time of this process: other processes do not change it.
double Microseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

double Quantile(std::vector<double>& times, double share) {
  if (times.empty()) return 0;
  std::ranges::sort(times);
  return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
}

// Times of the masks after the first.
std::vector<double> Walk(Grammar& grammar, const State& start, int steps) {
  std::mt19937 random(1);
  std::vector<double> times;
  State state = start;
  for (int step = 0; step < steps; ++step) {
    const Mask mask = state.NextTokens();
    // A random allowed token, looked for from a random place on.
    const auto size = static_cast<uint32_t>(grammar.vocabulary()->size());
    uint32_t id = static_cast<uint32_t>(random()) % size;
    while (((*mask)[id / 32] >> (id % 32) & 1) == 0) id = (id + 1) % size;
    const double since = Microseconds();
    state.AdvanceToken(static_cast<int32_t>(id));
    if (state.ended()) break;
    state.NextTokens();
    times.push_back(Microseconds() - since);
  }
  return times;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "grammar_bench FOLDER SCHEMA...\n");
    return 2;
  }
  const auto vocabulary = VocabularyOf(arguments[1]);
  std::vector<double> firsts, masks;
  int refused = 0;
  for (int i = 2; i < count; ++i) {
    std::ifstream file(arguments[i]);
    const std::string schema((std::istreambuf_iterator<char>(file)), {});
    try {
      const double since = Microseconds();
      const auto grammar = Grammar::FromSchema(schema, vocabulary);
      const State start = grammar->Start();
      start.NextTokens();
      firsts.push_back(Microseconds() - since);
      std::vector<double> times = Walk(*grammar, start, 200);
      std::printf(
          "%8.0f us first, %6.1f us median, %6.0f us p99, %8.0f us longest of %4zu masks, %7zu "
          "bytes %s\n",
          firsts.back(), Quantile(times, 0.5), Quantile(times, 0.99), Quantile(times, 1),
          times.size(), schema.size(), arguments[i]);
      masks.insert(masks.end(), times.begin(), times.end());
    } catch (const Error& error) {
      ++refused;
      std::printf("refused: %s %s\n", error.what(), arguments[i]);
    }
  }
  double sum = 0;
  for (const double time : masks) sum += time;
  std::printf("first mask: median %.0f us, p99 %.0f us, of %zu schemas, %d refused\n",
              Quantile(firsts, 0.5), Quantile(firsts, 0.99), firsts.size(), refused);
  std::printf("masks: average %.1f us, median %.1f us, p99 %.0f us, of %zu\n",
              masks.empty() ? 0 : sum / static_cast<double>(masks.size()), Quantile(masks, 0.5),
              Quantile(masks, 0.99), masks.size());
}
