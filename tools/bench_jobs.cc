#include "tools/bench_jobs.h"

#include <algorithm>

#include "base/error.h"
#include "experiments/experiment_run.h"
#include "tools/bench_concurrency.h"
#include "tools/input_file.h"
#include "tools/prompts.h"

namespace loopspec::tools {
namespace {

constexpr int kMadePrompts = 8;  // unless --limit says

// Texts of the kinds that people ask for, where the user has none.
constexpr const char* kOwnPrompts[] = {
    "Tom has 12 apples. He gives 5 to Anna and buys 9 more. How many apples does Tom have now?",
    "Once upon a time there was a little dog who lived by the sea.",
    "Explain in a few sentences why the sky is blue.",
    "Write a function that returns the largest number of a list.",
};
constexpr int kOwnMadeTokens = 32;  // of a prompt, for a model without a tokenizer

std::string Plural(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::vector<int32_t> PromptTokens(const std::string& prompt, const BenchSource& source,
                                  const LoadedModel& loaded) {
  if (!source.chat) return loaded.tokenizer().Encode(prompt);
  return loaded.EncodeMessages(OrderedJson::array({{{"role", "user"}, {"content", prompt}}}),
                               ParseTemplateArguments(source.template_args));
}

void CheckTokens(const std::vector<int32_t>& tokens, int max_tokens, const ModelSpec& spec,
                 const std::string& where) {
  if (tokens.empty()) Fail("{}: the prompt has no tokens", where);
  for (const int32_t token : tokens) {
    if (token >= spec.vocab)
      Fail("{}: the prompt has token {}, the vocabulary has {}", where, token, spec.vocab);
  }
  const auto positions = static_cast<int64_t>(tokens.size()) + max_tokens;
  if (positions > spec.max_positions) {
    Fail("{}: a prompt of {} tokens and {} new ones make {}, the model's context is {}", where,
         tokens.size(), max_tokens, positions, spec.max_positions);
  }
}

void CheckLength(const BenchSource& source, int max_tokens) {
  if (source.max_length && *source.max_length <= max_tokens + 1) {
    Fail("--max-length {}: leaves no room for a prompt before {} new tokens", *source.max_length,
         max_tokens);
  }
}

void FromTask(const BenchSource& source, const LoadedModel& loaded, BenchJobs& out) {
  const ModelSpec& spec = loaded.spec();
  experiments::Task task = experiments::MakeTask(
      source.task,
      {.data = experiments::TaskFolder(source.task, loaded.folder(), source.benchmarks),
       .shots = source.shots,
       .chat = source.chat,
       .limit =
           source.limit > 0 ? std::optional(static_cast<size_t>(source.limit)) : std::nullopt});
  task.max_tokens = source.max_tokens.value_or(task.max_tokens);
  task.max_length = source.max_length.value_or(task.max_length);
  CheckLength(source, task.max_tokens);
  // A model of a shorter context than the task's still runs it: prompts lose their beginning.
  task.max_length = std::min(task.max_length, spec.max_positions);
  task.stop.insert(task.stop.end(), source.stop.begin(), source.stop.end());
  for (const experiments::TaskItem& item : task.items) {
    experiments::MeasuredJob job;
    job.item = item.id;
    job.tokens = experiments::TaskPromptTokens(
        task, item, loaded.tokenizer(),
        loaded.has_chat_template() ? &loaded.chat_template() : nullptr,
        ParseTemplateArguments(source.template_args));
    CheckTokens(job.tokens, task.max_tokens, spec,
                fmt::format("task {}, item {}", task.name, item.id));
    job.answer = item.answer;
    out.jobs.push_back(std::move(job));
  }
  if (out.jobs.empty()) Fail("task {} has no items", source.task);
  out.max_tokens = task.max_tokens;
  out.stop = task.stop;
  out.what = fmt::format("{} of task {}", Plural(out.jobs.size(), "prompt"), source.task);
  out.note = task.note;
}

void FromFile(const BenchSource& source, const LoadedModel& loaded, BenchJobs& out) {
  for (const PromptEntry& entry : ReadPrompts(source.prompts, source.limit)) {
    experiments::MeasuredJob job;
    job.item = std::to_string(out.jobs.size() + 1);
    try {
      job.tokens = PromptTokens(entry.prompt, source, loaded);
    } catch (const Error& error) {
      Fail("{}: {}", entry.where, error.what());
    }
    if (source.max_length) experiments::CutPrompt(*source.max_length, out.max_tokens, job.tokens);
    CheckTokens(job.tokens, out.max_tokens, loaded.spec(), entry.where);
    if (entry.answer) job.answer = experiments::FinalAnswer(*entry.answer);
    out.jobs.push_back(std::move(job));
  }
  out.what =
      fmt::format("{} of {}", Plural(out.jobs.size(), "prompt"), NameOfInput(source.prompts));
}

// Where nobody asked for a number of tokens: what the context has room for, if that is less.
void FitContext(const BenchSource& source, const ModelSpec& spec, BenchJobs& out) {
  if (source.max_tokens) return;
  const int64_t room = spec.max_positions - static_cast<int64_t>(out.longest_prompt());
  out.max_tokens = static_cast<int>(std::clamp<int64_t>(room, 1, out.max_tokens));
}

void FromNothing(const BenchSource& source, const ModelSpec& spec, BenchJobs& out) {
  for (auto& made : MadePrompts(source.limit > 0 ? source.limit : kMadePrompts,
                                source.prompt_tokens, spec.vocab)) {
    out.jobs.push_back({std::to_string(out.jobs.size() + 1), std::move(made), 0, {}});
  }
  FitContext(source, spec, out);
  for (const auto& job : out.jobs) CheckTokens(job.tokens, out.max_tokens, spec, "--prompt-tokens");
  out.what =
      fmt::format("{} of {} made tokens", Plural(out.jobs.size(), "prompt"), source.prompt_tokens);
}

void FromOwn(const BenchSource& source, const LoadedModel& loaded, BenchJobs& out) {
  for (const char* const prompt : kOwnPrompts) {
    if (source.limit > 0 && static_cast<int>(out.jobs.size()) == source.limit) break;
    experiments::MeasuredJob job;
    job.item = std::to_string(out.jobs.size() + 1);
    job.tokens = PromptTokens(prompt, source, loaded);
    // A context that hardly holds the prompt gets its beginning.
    const auto half = static_cast<size_t>(std::max(1, loaded.spec().max_positions / 2));
    if (job.tokens.size() > half) job.tokens.resize(half);
    out.jobs.push_back(std::move(job));
  }
  FitContext(source, loaded.spec(), out);
  for (const auto& job : out.jobs)
    CheckTokens(job.tokens, out.max_tokens, loaded.spec(), "bench's own prompt");
  out.what = fmt::format("{} of bench's own", Plural(out.jobs.size(), "prompt"));
}

}  // namespace

size_t BenchJobs::longest_prompt() const {
  size_t longest = 0;
  for (const experiments::MeasuredJob& job : jobs) longest = std::max(longest, job.tokens.size());
  return longest;
}

BenchJobs MakeBenchJobs(const BenchSource& source, const LoadedModel& loaded) {
  BenchJobs out;
  out.max_tokens = source.max_tokens.value_or(kBenchTokens);
  out.stop = source.stop;
  CheckLength(source, out.max_tokens);
  const bool own = source.task.empty() && source.prompts.empty();
  if (source.prompt_tokens > 0 || (own && !loaded.has_tokenizer())) {
    BenchSource made = source;
    if (made.prompt_tokens == 0)
      made.prompt_tokens = std::clamp(loaded.spec().max_positions / 2, 1, kOwnMadeTokens);
    FromNothing(made, loaded.spec(), out);
    return out;
  }
  loaded.tokenizer();
  if (source.chat) loaded.chat_template();
  if (!source.task.empty())
    FromTask(source, loaded, out);
  else if (own)
    FromOwn(source, loaded, out);
  else
    FromFile(source, loaded, out);
  return out;
}

}  // namespace loopspec::tools
