#include "tools/decode_spec.h"

#include <charconv>

#include "base/error.h"
#include "decode/depths.h"
#include "decode/row_choice.h"
#include "engine/laboratory.h"

namespace loopspec::tools {
namespace {

int Number(const std::string& text, int low, int high, const std::string& what) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < low || value > high)
    Fail("{}: expected a whole number from {} to {}, found \"{}\"", what, low, high, text);
  return value;
}

// Takes the word for how this way of decoding samples; false for other words.
bool SetSampling(const std::string& part, DecodeSpec& spec) {
  if (part == "cascade" || part == "coupled")
    spec.sampler = part == "coupled" ? Sampler::kCoupled : Sampler::kCascade;
  else if (part == "gated")
    spec.later = LaterProposal::kGatedResidual;
  else if (part == "residual")
    spec.later = LaterProposal::kResidual;
  else if (part == "non-residual")
    spec.later = LaterProposal::kNonResidual;
  else
    return false;
  return true;
}

}  // namespace

void DecodeSpec::Apply(Request& request) const {
  SetDecoding(depths, guesses, request);
  request.max_rows = max_rows;
  request.group = group;
  ChangeLaboratory(request,
                   [&](Laboratory& laboratory) { laboratory.every_branch = every_branch; });
  if (later) request.sampling->later = *later;
  if (sampler) request.sampling->sampler = *sampler;
}

DecodeSpec ParseDecodeSpec(const std::string& text, int recurrence, const std::string& option,
                           const std::vector<int>& defaults) {
  DecodeSpec spec;
  spec.name = text;
  const size_t end = text.find_first_of("@/");
  const std::string kind = text.substr(0, end);
  const bool loopspec = kind == "loopspec" || kind.starts_with("loopspec:");
  if (kind == "loopspec") {
    spec.depths = defaults;
  } else if (loopspec) {
    spec.depths = ParseDepths(kind.substr(9));
    if (spec.depths.empty())
      Fail("{} {}: expected depths after the colon, such as loopspec:1,2", option, text);
  } else if (kind != "ar" && kind != "lookup") {
    Fail("{} {}: expected ar, lookup, loopspec, loopspec:1,2 or loopspec:1,2@8", option, text);
  }
  CheckDepths(spec.depths, recurrence);
  if (kind != "ar") spec.guesses = true;
  for (size_t at = end; at != std::string::npos;) {
    const size_t next = text.find_first_of("@/", at + 1);
    const std::string part = text.substr(at + 1, next == std::string::npos ? next : next - at - 1);
    const bool sampling = text[at] == '/' && SetSampling(part, spec);
    if (sampling && spec.later && spec.depths.size() < 2)
      Fail("{} {}: /{} is about later proposals, and it has none", option, text, part);
    if (kind == "ar" && !sampling)
      Fail("{} {}: ar runs one row and takes no settings but /cascade and /coupled", option, text);
    if (sampling) {
      // set above
    } else if (text[at] == '@') {
      spec.max_rows = Number(part, 1, 256, option + " " + text + ", rows after @");
    } else if (part == "early" || part == "noearly") {
      if (kind == "lookup") Fail("{} {}: lookup is early children alone", option, text);
      spec.guesses = part == "early";
    } else if (part == "paper" && loopspec) {
      spec.every_branch = true;
    } else if (part.starts_with("g") && loopspec) {
      spec.group =
          Number(part.substr(1), 1, kMaxGroup, option + " " + text + ", generations after g");
    } else {
      Fail(
          "{} {}: expected @ROWS, /gN, /early, /noearly, /paper, /gated, /residual, "
          "/non-residual, /cascade or /coupled, found /{}",
          option, text, part);
    }
    at = next;
  }
  if (spec.every_branch) {
    if (spec.max_rows > 0 || spec.group > 1 || text.find("/early") != std::string::npos)
      Fail("{} {}: /paper runs every live branch in every step, without @ROWS, /gN or /early",
           option, text);
    spec.group = 1;
    spec.guesses = false;
  }
  return spec;
}

}  // namespace loopspec::tools
