// --assume-acceptance: timing simulations at given rates.
#pragma once

#include <string>

#include "decode/assumed.h"

namespace loopspec::tools {

// "paper", "0.90,0.075" or "0.90,0.075/0.10": shares of tokens by proposal, and how often the gate
// opens in all, right or not; without it as often as the paper found for models of depth R. Throws
// Error.
AssumedAcceptance ParseAssumedRates(const std::string& text, int recurrence);

// As ParseAssumedRates reads it.
std::string NameOf(const AssumedAcceptance& assumed);

}  // namespace loopspec::tools
