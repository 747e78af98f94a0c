// The tables of fields: what each says is what the engine does with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string>

#include "base/field_error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "fields/choices.h"
#include "fields/max_tokens.h"
#include "fields/request_fields.h"
#include "fields/sampling_fields.h"

namespace loopspec {
namespace {

std::string Refusal(const SamplingParams& params) {
  try {
    CheckSamplingParams(params, 5);
  } catch (const FieldError& error) {
    return error.what();
  }
  return "";
}

std::string TooLong(int64_t prompt, int64_t max_tokens, int64_t context) {
  try {
    CheckLength(prompt, max_tokens, context);
  } catch (const FieldError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTooLong);
    return error.what();
  }
  return "";
}

TEST(SamplingFields, AreOffByDefaultAndDescribed) {
  const SamplingParams params;
  std::set<std::string> names;
  for (const SamplingField& field : SamplingFields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_FALSE(std::string(field.help).empty()) << field.name;
    EXPECT_TRUE(field.range.Holds(field.off)) << field.name;
    if (field.part == SamplingPart::kTemperature) continue;
    EXPECT_EQ(field.Get(params), field.off) << field.name;
  }
  EXPECT_EQ(Refusal(params), "");
  EXPECT_EQ(Described(params), "greedy");
}

// Lists that people write by hand: a field that is added to the table is missing in none.
TEST(SamplingFields, AreNamedWhereListsAreWrittenByHand) {
  const std::filesystem::path source = LOOPSPEC_SOURCE_DIR;
  const std::string manual = ReadFile(source / "docs/python.md");
  const std::string words = ReadFile(source / "fuzz/wire.dict");
  for (const SamplingField& field : SamplingFields()) {
    EXPECT_NE(manual.find("`" + std::string(field.name) + "`"), manual.npos) << field.name;
    EXPECT_NE(words.find("\\\"" + std::string(field.name) + "\\\":"), words.npos) << field.name;
  }
}

// The page offers some of the fields. Each is in the table, and the least value of its box is one
// that the server takes.
TEST(SamplingFields, HoldThoseOfThePage) {
  const std::string html =
      ReadFile(std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "src/serve/page/index.html");
  const std::string begin = "<input id=\"", end = "\" data-sampling type=\"number\" min=\"";
  size_t offered = 0;
  for (size_t at = html.find(end); at != html.npos; at = html.find(end, at + 1), ++offered) {
    const size_t id = html.rfind(begin, at) + begin.size();
    const std::string name = html.substr(id, at - id);
    const auto field =
        std::ranges::find_if(SamplingFields(), [&](const auto& f) { return name == f.name; });
    ASSERT_NE(field, SamplingFields().end()) << name;
    EXPECT_TRUE(field->range.Holds(std::stod(html.substr(at + end.size())))) << name;
  }
  EXPECT_GT(offered, 0u);
}

TEST(SamplingFields, RefuseWhatIsOutsideTheirRange) {
  for (const SamplingField& field : SamplingFields()) {
    SamplingParams params;
    field.Set(params, field.range.high);
    EXPECT_EQ(Refusal(params), "") << field.name;
    field.Set(params, field.range.low - 1);
    EXPECT_EQ(Refusal(params).find(std::string(field.name) + " is "), 0u) << field.name;
    field.Set(params, field.range.low);
    EXPECT_EQ(Refusal(params).empty(), !field.range.above) << field.name;
    if (field.whole()) continue;
    field.Set(params, std::numeric_limits<double>::quiet_NaN());
    EXPECT_NE(Refusal(params), "") << field.name;
  }
}

TEST(SamplingFields, ShowNumbersAsTheyWereGiven) {
  SamplingParams params;
  params.top_p = 1.1f;
  EXPECT_EQ(Refusal(params), "top_p is 1.1, expected above 0, at most 1");
  params.top_p = 1;
  params.top_k = -2;
  EXPECT_EQ(Refusal(params), "top_k is -2, expected -1 or more");
  params.top_k = 0;
  params.bias = {{5, 1.0f}};
  EXPECT_EQ(Refusal(params),
            "logit_bias is for token 5, expected a token below 5, the size of the vocabulary");
  params.bias = {{4, 2e6f}};
  EXPECT_EQ(Refusal(params), "logit_bias is 2000000 for token 4, expected -1e6 to 1e6");
}

TEST(SamplingFields, DescribeWhatIsOn) {
  SamplingParams params;
  params.repetition_penalty = 1.5f;
  params.top_k = 20;
  EXPECT_EQ(Described(params), "greedy, repetition penalty 1.5");
  params.temperature = 0.5f;
  params.min_p = 0.25f;
  EXPECT_EQ(Described(params), "temperature 0.5, top-k 20, min-p 0.25, repetition penalty 1.5");
  params.top_k = -1;
  EXPECT_EQ(Described(params), "temperature 0.5, min-p 0.25, repetition penalty 1.5");
}

TEST(SamplingFields, BecomeJsonOfTheirOwnTypes) {
  SamplingParams params;
  params.top_k = 7;
  const OrderedJson json = ToJson(params, [](const SamplingField&) { return true; });
  EXPECT_EQ(json.size(), SamplingFields().size());
  EXPECT_TRUE(json["top_k"].is_number_integer());
  EXPECT_TRUE(json["top_p"].is_number_float());
  EXPECT_EQ(json["top_k"], 7);
}

TEST(SaidSampling, LeavesToOthersWhatWasNotSaid) {
  SamplingParams others;
  for (const SamplingField& field : SamplingFields()) field.Set(others, field.range.high);
  for (const SamplingField& field : SamplingFields()) {
    SaidSampling said;
    EXPECT_FALSE(said.Says(field));
    said.Set(field, field.off);  // said, although it changes nothing by itself
    EXPECT_TRUE(said.Says(field));
    const SamplingParams both = said.Over(others);
    for (const SamplingField& other : SamplingFields()) {
      const bool same = std::string(other.name) == field.name;
      EXPECT_EQ(other.Get(both), same ? field.off : other.range.high) << field.name << other.name;
    }
  }
  SaidSampling said;
  others.sampler = Sampler::kCoupled;
  EXPECT_EQ(said.Over(others).sampler, Sampler::kCoupled);
  said.SetSampler(Sampler::kCascade);
  EXPECT_EQ(said.Over(others).sampler, Sampler::kCascade);
}

TEST(RequestFields, SetTheirMembersAndKeepTheirRanges) {
  for (const RequestField& field : RequestFields()) {
    Request request;
    EXPECT_NO_THROW(CheckNumbers(request));
    EXPECT_EQ(&RequestFieldNamed(field.name), &field);
    if (field.is_switch()) continue;
    field.Set(request, static_cast<int>(field.range.low));
    EXPECT_NO_THROW(CheckNumbers(request)) << field.name;
    field.Set(request, static_cast<int>(field.range.low) - 1);
    try {
      CheckNumbers(request);
      ADD_FAILURE() << field.name;
    } catch (const FieldError& error) {
      EXPECT_EQ(error.field(), field.name);
    }
  }
}

TEST(RequestFields, HaveOptions) {
  EXPECT_EQ(OptionOf("top_p"), "--top-p");
  EXPECT_EQ(OptionOf("max_tokens"), "--max-tokens");
  EXPECT_EQ(OptionOf("config"), "--set");
}

TEST(Choices, AreFoundByName) {
  EXPECT_EQ(NamesOf(kDecodings), (std::vector<std::string>{"loopspec", "ar", "lookup"}));
  for (const auto& decoding : kDecodings)
    EXPECT_EQ(ValueOf(kDecodings, decoding.name), decoding.value);
  EXPECT_EQ(Request().decoding, kDecodings[0].value);
  EXPECT_EQ(SamplingParams().sampler, kSamplers[0].value);
  EXPECT_EQ(SamplingParams().later, kLaterProposals[0].value);
}

TEST(CheckLength, SaysWhichOfBothIsTooLong) {
  EXPECT_EQ(TooLong(10, 6, 16), "");
  EXPECT_EQ(TooLong(16, 0, 16), "");
  EXPECT_EQ(
      TooLong(10, 7, 16),
      "max_tokens is 7, expected at most 6, since the prompt has 10 tokens and the context 16");
  EXPECT_EQ(
      TooLong(16, 1, 16),
      "prompt is 16 tokens long, expected at most 15, since the context has 16 for prompt and "
      "answer");
  EXPECT_EQ(
      TooLong(17, 0, 16),
      "prompt is 17 tokens long, expected at most 16, since the context has 16 for prompt and "
      "answer");
}

TEST(FieldError, IsWordedWithTheNameThatItsUserKnows) {
  const FieldError error("top_p", "2", "above 0, at most 1");
  EXPECT_STREQ(error.what(), "top_p is 2, expected above 0, at most 1");
  EXPECT_EQ(error.Worded("--top-p"), "--top-p is 2, expected above 0, at most 1");
}

}  // namespace
}  // namespace loopspec
