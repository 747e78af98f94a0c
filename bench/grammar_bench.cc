// Times of grammars: grammar_bench FOLDER FILE...: with the tokenizer of FOLDER, from a schema's
// text to the first mask, and for each further mask along texts. A file is {"schema": ..., "texts":
// [...]}, as bench/grammar_inputs.py makes them, or a schema alone, for which a random text is
// taken. One line for each file, then medians, averages and 99th percentiles over all.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "tests/grammar/vocabularies.h"
#include "text/tokenizer.h"

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

// Takes a token and makes the next mask; false where the text has ended or does not go on so.
bool TimeMask(State& state, int32_t id, std::vector<double>& times) {
  const double since = Microseconds();
  if (!state.AdvanceToken(id) || state.ended()) return false;
  state.NextTokens();
  times.push_back(Microseconds() - since);
  return true;
}

// A random allowed token, looked for from a random place on.
int32_t AnyToken(const State& state, uint32_t size, std::mt19937& random) {
  const Mask mask = state.NextTokens();
  uint32_t id = static_cast<uint32_t>(random()) % size;
  while (((*mask)[id / 32] >> (id % 32) & 1) == 0) id = (id + 1) % size;
  return static_cast<int32_t>(id);
}

// Times of the masks after the first, along the texts or along a random one.
std::vector<double> Walk(const Grammar& grammar, const State& start, const OrderedJson& texts,
                         const Tokenizer& tokenizer) {
  std::vector<double> times;
  for (const auto& text : texts) {
    State state = start;
    for (const int32_t id : tokenizer.Encode(text.get<std::string>(), false)) {
      if (!TimeMask(state, id, times)) break;
    }
  }
  if (!texts.empty()) return times;
  std::mt19937 random(1);
  State state = start;
  const auto size = static_cast<uint32_t>(grammar.vocabulary()->size());
  for (int step = 0; step < 200; ++step) {
    if (!TimeMask(state, AnyToken(state, size, random), times)) break;
  }
  return times;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "grammar_bench FOLDER FILE...\n");
    return 2;
  }
  const auto vocabulary = VocabularyOf(arguments[1]);
  const Tokenizer tokenizer = Tokenizer::FromFolder(arguments[1]);
  SchemaOptions options;
  options.space = JsonSpace::kUsual;  // as answers have it
  std::vector<double> firsts, masks;
  int refused = 0;
  for (int i = 2; i < count; ++i) {
    std::ifstream file(arguments[i]);
    std::string schema((std::istreambuf_iterator<char>(file)), {});
    OrderedJson texts = OrderedJson::array();
    const OrderedJson json = ParseOrderedJson(schema, arguments[i]);
    if (json.contains("schema") && json.contains("texts")) {
      schema = json["schema"].dump();
      texts = json["texts"];
    }
    try {
      const double since = Microseconds();
      const auto grammar = Grammar::FromSchema(schema, vocabulary, options);
      const State start = grammar->Start();
      start.NextTokens();
      firsts.push_back(Microseconds() - since);
      std::vector<double> times = Walk(*grammar, start, texts, tokenizer);
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
