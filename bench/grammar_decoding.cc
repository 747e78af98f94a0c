// What grammars do to decoding: grammar_decoding FOLDER...: for each model the passes per token on
// four documents without guesses, with guesses from what the text repeats, and with the bytes that
// the grammar forces as guesses too; then the processor time per token of a text under a grammar
// that allows every text, beside that of the same text without a grammar, taken in turn.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "engine/schedule/scheduler.h"
#include "engine/session.h"
#include "tests/support/run_request.h"

using namespace loopspec;

namespace {

struct Document {
  const char* name;
  const char* prompt;
  const char* schema;
};

// The kinds of answers that people ask for.
constexpr Document kDocuments[] = {
    {"records", "Three people as JSON:\n",
     R"({"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "object", "properties": {
         "first_name": {"type": "string", "maxLength": 8}, "family_name": {"type": "string", "maxLength": 8},
         "age_in_years": {"type": "integer", "minimum": 1, "maximum": 99}, "is_member": {"type": "boolean"}},
         "required": ["first_name", "family_name", "age_in_years", "is_member"], "additionalProperties": false}})"},
    {"tool calls", "The calls:\n",
     R"({"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "object", "properties": {
         "name": {"const": "get_weather_forecast"}, "arguments": {"type": "object", "properties": {
           "location": {"type": "string", "maxLength": 8}, "temperature_unit": {"enum": ["celsius", "fahrenheit"]}},
           "required": ["location", "temperature_unit"], "additionalProperties": false}},
         "required": ["name", "arguments"], "additionalProperties": false}})"},
    {"rows", "A table:\n",
     R"({"type": "object", "properties": {"rows": {"type": "array", "minItems": 6, "maxItems": 6, "items": {
         "type": "object", "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 999},
           "x": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
           "required": ["id", "x", "ok"], "additionalProperties": false}}},
         "required": ["rows"], "additionalProperties": false})"},
    {"prose", "A story as JSON:\n",
     R"({"type": "object", "properties": {"title": {"type": "string", "maxLength": 24},
         "story": {"type": "string", "minLength": 240, "maxLength": 300}},
         "required": ["title", "story"], "additionalProperties": false})"}};
constexpr int kMostTokens = 160;
constexpr int kRounds = 7;  // of the comparison of times

double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::vector<int32_t> Ids(const Choice& choice) {
  std::vector<int32_t> ids;
  for (const Token& token : choice.tokens) ids.push_back(token.id);
  return ids;
}

class Subject {
 public:
  explicit Subject(const std::string& model) {
    EngineOptions options;
    options.model = model;
    options.device = "cpu";
    options.threads = 1;
    options.kv_positions = 2048;
    session_ = std::make_unique<Session>(options);
    SchedulerOptions one = OneAtATime();
    one.tokenizer = &session_->loaded().tokenizer();
    scheduler_ = std::make_unique<Scheduler>(session_->backend(), one);
  }
  ResolvedRequest Resolve(const char* prompt, GrammarSource grammar) const {
    Request request;
    request.prompt = prompt;
    request.max_tokens = kMostTokens;
    request.sampling = SamplingParams();  // greedy
    request.grammar = std::move(grammar);
    return session_->Resolve(request);
  }
  Choice Run(const ResolvedRequest& request) { return RunRequest(*scheduler_, request); }

 private:
  std::unique_ptr<Session> session_;
  std::unique_ptr<Scheduler> scheduler_;
};

void ComparePasses(Subject& subject, const Document& document) {
  ResolvedRequest request =
      subject.Resolve(document.prompt, {GrammarKind::kJsonSchema, document.schema});
  const Choice all = subject.Run(request);
  request.encode = nullptr;
  const Choice repeats = subject.Run(request);
  request.guesses = false;
  const Choice none = subject.Run(request);
  LOOPSPEC_CHECK(Ids(all) == Ids(repeats) && Ids(all) == Ids(none));
  const auto passes = [](const Choice& choice) {
    return static_cast<double>(choice.statistics.recurrences);
  };
  std::printf("| %s | %zu | %.0f | %.0f | %.0f | %.2fx |\n", document.name, all.tokens.size(),
              passes(none), passes(repeats), passes(all), passes(repeats) / passes(all));
}

void CompareTimes(Subject& subject) {
  const char* prompt = "Once upon a time there was";
  const ResolvedRequest plain = subject.Resolve(prompt, {});
  const ResolvedRequest masked = subject.Resolve(prompt, {GrammarKind::kRegex, "(.|\\n)*"});
  std::vector<double> ratios;
  size_t tokens = 0;
  for (int round = 0; round < kRounds; ++round) {
    double times[2];
    std::vector<int32_t> ids[2];
    for (const int which : {round % 2, 1 - round % 2}) {
      const double since = Seconds();
      ids[which] = Ids(subject.Run(which == 0 ? plain : masked));
      times[which] = (Seconds() - since) / static_cast<double>(ids[which].size());
    }
    LOOPSPEC_CHECK(ids[0] == ids[1]);
    tokens = ids[0].size();
    ratios.push_back(times[0] / times[1]);
  }
  std::ranges::sort(ratios);
  std::printf(
      "%zu tokens under a grammar that allows all: %.3fx of the speed without (median of "
      "%d; %.3f to %.3f)\n",
      tokens, ratios[kRounds / 2], kRounds, ratios.front(), ratios.back());
}

}  // namespace

int main(int count, char** arguments) {
  try {
    for (int i = 1; i < count; ++i) {
      Subject subject(arguments[i]);
      std::printf(
          "%s\n\n| document | tokens | passes without guesses | with repeated text | with "
          "forced bytes too | fewer |\n|---|---|---|---|---|---|\n",
          arguments[i]);
      for (const Document& document : kDocuments) ComparePasses(subject, document);
      std::printf("\n");
      CompareTimes(subject);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
