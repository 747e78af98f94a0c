// The answer filters and metrics of lm-evaluation-harness's tasks, as its task files define them:
// gsm8k_cot (version 3), minerva_math500 (version 3), bbh_cot_fewshot (version 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loopspec::measure {

// What a filter gives when it finds nothing.
inline constexpr std::string_view kInvalidAnswer = "[invalid]";

// gsm8k_cot: the first "The answer is N.", and the last thing that looks like a number.
std::string Gsm8kStrictMatch(std::string_view answer);
std::string Gsm8kFlexibleExtract(std::string_view answer);
// Equal but for commas, dollar signs, a full stop at the end and what stands before "#### ".
bool Gsm8kExactMatch(std::string_view extracted, std::string_view reference);
// What follows the last "####" of a worked answer.
std::string Gsm8kReference(std::string_view worked_answer);

// bbh_cot_fewshot: what follows the first "the answer is " without the line's last character.
std::string BbhGetAnswer(std::string_view answer);

// minerva_math: the text between "Final Answer: The final answer is" and "I hope it is correct.",
// or "[invalidanswer]".
std::string MinervaUnnormalizedAnswer(std::string_view answer);
// Appendix D of Lewkowycz et al. (2022): without units, text commands and other wrapping.
std::string MinervaNormalize(std::string_view answer);
// The last \boxed{...} (or \fbox{...}) of a solution, without the box.
std::optional<std::string> LastBoxed(std::string_view solution);

}  // namespace loopspec::measure
