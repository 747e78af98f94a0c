#include "tools/assumed_rates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace loopspec::tools {
namespace {

constexpr const char* kExpected = "expected paper, or rates such as 0.90,0.075 or 0.90,0.075/0.10";

// What the paper found: (1,2) of Ouro, (2,8) of Raven.
AssumedAcceptance PaperRates(int recurrence) {
  if (recurrence <= 8) return {.rates = {0.90, 0.075}, .gate = 0.10};
  return {.rates = {0.92, 0.075}, .gate = 0.20};
}

double Number(const std::string& part, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(part.c_str(), &end);
  if (part.empty() || *end != '\0') Fail("--assume-acceptance {}: {}", text, kExpected);
  return value;
}

}  // namespace

AssumedAcceptance ParseAssumedRates(const std::string& text, int recurrence) {
  AssumedAcceptance assumed = PaperRates(recurrence);
  if (text == "paper") return assumed;
  assumed.rates.clear();
  const size_t slash = text.find('/');
  const std::string list = text.substr(0, slash);
  double sum = 0;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    assumed.rates.push_back(Number(list.substr(begin, end - begin), text));
    sum += assumed.rates.back();
    begin = end + 1;
  }
  const bool negative = std::any_of(assumed.rates.begin(), assumed.rates.end(),
                                    [](double rate) { return !(rate >= 0); });
  if (!(sum <= 1.0 + 1e-9) || negative)
    Fail("--assume-acceptance {}: rates must be at least 0 and sum to at most 1", text);
  const double later = sum - assumed.rates[0];
  if (slash == std::string::npos) {
    assumed.gate = std::max(assumed.gate, later);
    return assumed;
  }
  assumed.gate = Number(text.substr(slash + 1), text);
  if (!(assumed.gate >= later - 1e-9 && assumed.gate <= 1)) {
    Fail(
        "--assume-acceptance {}: a gate that opens at {} of the readouts, expected {:.3g} (what "
        "later "
        "proposals win) to 1",
        text, assumed.gate, later);
  }
  return assumed;
}

std::string NameOf(const AssumedAcceptance& assumed) {
  if (assumed.rates.size() < 2) return fmt::format("{}", fmt::join(assumed.rates, ","));
  return fmt::format("{}/{}", fmt::join(assumed.rates, ","), assumed.gate);
}

}  // namespace loopspec::tools
