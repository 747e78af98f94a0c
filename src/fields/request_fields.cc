#include "fields/request_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/field_error.h"

namespace loopspec {
namespace {

using R = Request;

constexpr RequestField kRequestFields[] = {
    {"n", &R::choices, {1, kMaxInt}, "Answers to each prompt, each with draws of its own"},
    {"max_tokens", &R::max_tokens, {0, kMaxInt}, "Maximum tokens of an answer"},
    {"max_thinking_tokens",
     &R::max_thinking_tokens,
     {0, kMaxInt},
     "Maximum tokens of thinking: where the prompt ends in <think>, </think> comes after this "
     "many"},
    {"ignore_eos", &R::ignore_eos, {}, "Do not stop at end-of-text tokens"},
    {"add_special_tokens",
     &R::add_special_tokens,
     {},
     "Put the tokens around a prompt that the tokenizer wants there"},
    {"logprobs",
     &R::logprobs,
     {0, kMaxInt},
     "Log-probabilities of each token and of this many of the likeliest"},
    {"prompt_logprobs",
     &R::prompt_logprobs,
     {0, kMaxInt},
     "Log-probabilities of the prompt's tokens and of this many of the likeliest"},
    {"trace",
     &R::trace,
     {},
     "List what each step did to the branches: spawned, advanced, drafted, accepted, pruned"},
    {"priority",
     &R::priority,
     {-kMaxInt, kMaxInt},
     "Among waiting requests of the same key, or address, a lower one comes first"},
    {"recurrence",
     &R::recurrence,
     {1, 4096},
     "Recurrences of a token, among the model's `recurrences`; fewer are quicker and another text"},
    {"max_rows",
     &R::max_rows,
     {0, kMaxInt},
     "Maximum rows of a step; 0: as many as are worth their time on this machine"},
    {"group",
     &R::group,
     {0, 16},
     "Tokens that pass the later depths together, sharing what is read of the context; 0: chosen "
     "by "
     "the length of the context"},
    {"guesses",
     &R::guesses,
     {},
     "Begin tokens before they are drafted, guessed from what followed the same words before"},
};

// Options whose names are not their fields'.
constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
    {"config", "--set"},      {"decoding", "--decode"},
    {"prompt", "the prompt"}, {"stop_token_ids", "--stop-token"},
    {"guesses", "--early"},
};

}  // namespace

void RequestField::Set(Request& request, int value) const {
  std::visit(
      [&](auto at) {
        using Value = std::remove_reference_t<decltype(request.*at)>;
        if constexpr (std::is_same_v<Value, bool>)
          request.*at = value != 0;
        else
          request.*at = value;
      },
      member);
}

std::span<const RequestField> RequestFields() {
  return kRequestFields;
}

const RequestField& RequestFieldNamed(std::string_view name) {
  const auto found = std::find_if(std::begin(kRequestFields), std::end(kRequestFields),
                                  [&](const RequestField& field) { return field.name == name; });
  LOOPSPEC_CHECK(found != std::end(kRequestFields));
  return *found;
}

void CheckNumbers(const Request& request) {
  for (const RequestField& field : kRequestFields) {
    std::optional<int> value;
    if (const auto* plain = std::get_if<int Request::*>(&field.member)) value = request.**plain;
    if (const auto* maybe = std::get_if<std::optional<int> Request::*>(&field.member))
      value = request.**maybe;
    if (value && !field.range.Holds(*value))
      throw FieldError(field.name, fmt::format("{}", *value), Expected(field.range));
  }
}

std::string OptionOf(std::string_view field) {
  for (const auto& [name, option] : kOptions) {
    if (name == field) return std::string(option);
  }
  std::string option = "--" + std::string(field);
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

}  // namespace loopspec
