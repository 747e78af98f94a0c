// loopspec generate: one prompt in, text out.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "engine/run_request.h"
#include "engine/session.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/interrupt.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/token_list.h"
#include "tools/trace_file.h"

namespace loopspec::tools {
namespace {

struct GenerateOptions {
  ModelOptions model;
  SamplingOptions sampling;
  DecodeOptions decode;
  std::string prompt, prompt_file, tokens, system, trace;
  bool has_prompt = false;
  bool chat = false, ignore_eos = false, json = false, color = false, show_special = false;
  std::vector<std::string> stop, template_args;
  std::vector<int32_t> stop_tokens;
  std::optional<int> max_tokens;  // unless given: kDefaultTokens, or what the context has room for
  uint64_t seed = 0;
  int logprobs = -1;
};

std::string PromptText(const GenerateOptions& options) {
  return options.prompt_file.empty() ? options.prompt : ReadInput(options.prompt_file);
}

std::vector<int32_t> PromptTokens(const GenerateOptions& options, const LoadedModel& loaded) {
  if (!options.tokens.empty()) return ParseTokenList(options.tokens);
  if (!loaded.has_tokenizer()) {
    Fail("{} has no tokenizer.json: give the prompt as --tokens 1,2,3", loaded.folder().string());
  }
  if (!options.chat) return loaded.tokenizer().Encode(PromptText(options));
  OrderedJson messages = OrderedJson::array();
  if (!options.system.empty())
    messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", PromptText(options)}});
  return loaded.EncodeMessages(messages, ParseTemplateArguments(options.template_args));
}

OrderedJson LogprobsJson(const RequestResult& result) {
  OrderedJson list = OrderedJson::array();
  for (const CommittedToken& token : result.tokens) {
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& entry : token.top)
      top.push_back({{"token", entry.token}, {"logprob", entry.logprob}});
    list.push_back({{"token", token.token}, {"logprob", token.logprob}, {"top", top}});
  }
  return list;
}

Request MakeRequest(const GenerateOptions& options, const LoadedModel& loaded) {
  if (!options.stop.empty() && !loaded.has_tokenizer()) {
    Fail("{} has no tokenizer.json: use --stop-token instead of --stop", loaded.folder().string());
  }
  for (const int32_t token : options.stop_tokens) {
    if (token < 0 || token >= loaded.spec().vocab)
      Fail("--stop-token {} is outside the vocabulary of {}", token, loaded.spec().vocab);
  }
  Request request;
  request.tokens = PromptTokens(options, loaded);
  request.sampling = options.sampling.Get();
  request.seed = options.seed;
  request.max_tokens = options.max_tokens;
  request.stop = options.stop;
  request.stop_tokens = options.stop_tokens;
  request.ignore_eos = options.ignore_eos;
  request.show_special = options.show_special;
  request.logprobs = options.logprobs;
  request.decoding = options.decode.decoding();
  return request;
}

// An engine with key/value memory for one text alone.
EngineOptions EngineFor(const GenerateOptions& options, const Request& request,
                        const Model& model) {
  EngineOptions engine = options.decode.ToEngineOptions(options.model, model);
  engine.kv_positions =
      std::min<int64_t>(std::ssize(request.tokens) + request.max_tokens.value_or(kDefaultTokens),
                        model.spec.max_positions);  // longer texts are refused anyway
  return engine;
}

// Tokens to standard output as they come.
class Printer {
 public:
  Printer(const GenerateOptions& options, bool text)
      : text_(text),
        printed_(!options.json && options.trace != "-"),
        coloured_(options.color && !(isatty(STDOUT_FILENO) != 0 && !CanErase(STDOUT_FILENO))) {}

  // False when nobody reads any more.
  bool Push(const StreamEvent& event) {
    if (text_) return Show(event.text, event.token);
    if (printed_) fmt::print("{}{}", count_++ == 0 ? "" : ",", event.token.token);
    return true;
  }
  // What was held back, if the text ended before its time.
  void Finish(const RequestResult& result) {
    Show(result.text.substr(shown_),
         result.tokens.empty() ? CommittedToken{} : result.tokens.back());
    if (printed_) fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  bool Show(const std::string& piece, const CommittedToken& token) {
    shown_ += piece.size();
    if (!printed_ || piece.empty()) return true;
    if (coloured_)
      fmt::print("{}{}{}", SourceColour(token.source, token.early), piece, kPlain);
    else
      std::fwrite(piece.data(), 1, piece.size(), stdout);
    return std::fflush(stdout) == 0;
  }

  const bool text_, printed_, coloured_;
  size_t shown_ = 0;  // bytes of the text
  int count_ = 0;
};

void PrintJson(const GenerateOptions& options, Session& session, const Submission& submission,
               const RequestResult& result) {
  std::vector<int32_t> ids;
  for (const CommittedToken& token : result.tokens) ids.push_back(token.token);
  const bool text = submission.tokenizer != nullptr;
  OrderedJson out = {{"text", text ? OrderedJson(result.text) : OrderedJson(nullptr)},
                     {"token_ids", ids},
                     {"prompt_tokens", result.prompt_tokens},
                     {"finish_reason", NameOf(result.finish_reason)},
                     {"stats", StatsJson(session.loaded().model(), session.backend(),
                                         submission.request.depths, result)}};
  if (options.logprobs >= 0) out["logprobs"] = LogprobsJson(result);
  fmt::print("{}\n", out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

void PrintSummary(const RequestResult& result, int recurrence) {
  if (!ColourOnStderr()) return;
  const DecodeStatistics& s = result.statistics;
  fmt::print(stderr,
             "\033[2m{} tokens, {:.0f} tokens/s, first after {}; {:.1f} rows on average, {:.2f} "
             "tokens per pass of R{}\n",
             result.tokens.size(), result.tokens_per_second(),
             HumanSeconds(result.times.first_token), s.rows_mean(),
             s.steps > 0 ? static_cast<double>(result.tokens.size()) * recurrence /
                               static_cast<double>(s.steps)
                         : 0.0,
             kPlain);
}

void RunGenerate(const GenerateOptions& options) {
  CatchInterrupt();
  if (!options.trace.empty()) CheckOutputFile(options.trace, "--trace");
  const auto loaded = std::make_shared<const LoadedModel>(options.model.ToEngineOptions());
  const Request request = MakeRequest(options, *loaded);
  Session session(EngineFor(options, request, loaded->model()), loaded);
  Submission submission = session.Prepare(request);
  options.decode.ApplyRows(submission.request);
  submission.request.trace = !options.trace.empty();
  submission.report_prefill = true;
  Scheduler scheduler(session.backend(), session.scheduler_options());
  Printer printer(options, submission.tokenizer != nullptr);
  ProgressLine progress(kQuietSeconds);
  RequestResult result = RunRequest(scheduler, submission, [&](const StreamEvent& event) {
    if (event.kind == StreamEvent::Kind::kPrefilled) {
      progress.Show("reading the prompt", event.prefilled, event.to_prefill, "tokens");
      return !Interrupted();
    }
    progress.Clear();
    return printer.Push(event) && !Interrupted();
  });
  progress.Clear();
  if (Interrupted()) result.finish_reason = FinishReason::kCancelled;
  printer.Finish(result);
  const int recurrence = session.spec().recurrence;
  if (submission.request.trace)
    WriteTrace(options.trace, recurrence, submission.request.depths, result, submission.tokenizer);
  if (options.json) return PrintJson(options, session, submission, result);
  if (result.finish_reason == FinishReason::kLength)
    NoteCut(result.tokens.size(), options.max_tokens.has_value());
  PrintSummary(result, recurrence);
}

}  // namespace

void AddGenerateCommand(Command app) {
  auto options = std::make_shared<GenerateOptions>();
  const Command command = app.AddCommand("generate", "Continue a prompt, or answer it with --chat");
  const Option prompt = command.AddOption("--prompt,-p", options->prompt, "The text to continue");
  const Option file = command.AddOption("--prompt-file,-f", options->prompt_file,
                                        "A file that holds it, or - for standard input");
  const Option tokens = command.AddOption("--tokens", options->tokens, "Token ids instead: 1,2,3");
  const Option chat = command.AddFlag(
      "--chat", options->chat, "Put the prompt into the model's chat template as a user's message");
  const Option system =
      command.AddOption("--system", options->system, "With --chat: a system message before it");
  const Option variables =
      command.AddOption("--template-arg", options->template_args,
                        "With --chat: a template variable, key=value (enable_thinking=false)");
  command
      .AddOption("--max-tokens,-n", options->max_tokens,
                 "Most tokens to decode; default: 256, or what the context has room for")
      .Range(1, 1 << 30)
      .TypeName("N");
  options->model.AddTo(command);
  options->decode.AddTo(command);
  options->sampling.AddTo(command);
  AddSeed(command, "--seed", options->seed, "Seed of sampling: same seed, same text");
  command.AddOption("--stop", options->stop, "End before this text; may be given several times");
  command.AddOption("--stop-token", options->stop_tokens,
                    "End after this token id; may be given several times");
  command.AddFlag("--ignore-eos", options->ignore_eos,
                  "Do not stop at the model's end-of-text tokens");
  command.AddFlag("--show-special", options->show_special, "Show special tokens in the text");
  const Option json = command.AddFlag("--json", options->json,
                                      "Print one JSON object with text, ids and statistics");
  const Option logprobs =
      command
          .AddOption("--logprobs", options->logprobs,
                     "With --json: log-probabilities of each token and the N likeliest")
          .Range(0, 1000)
          .TypeName("N");
  const Option color = command.AddFlag(
      "--color", options->color,
      "Colour the text by source: green first proposal, yellow second, red fallback; underlined: "
      "begun before it was drafted");
  const Option trace = command.AddOption(
      "--trace", options->trace,
      "Write the timeline of branches to this file (draw it with loopspec trace); - prints it "
      "instead of the text");
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec generate -m models/ouro-demo -p \"Once upon a time\" -n 100\n"
      "  loopspec generate -m models/ouro-demo --chat -p \"Tell me a story.\" --temperature 0.7 "
      "--seed 1\n"
      "  loopspec generate -m models/ouro-demo -f prompt.txt --json");
  command.SetAction([=] {
    const auto needs = [](Option option, Option other) {
      if (option.Count() > 0 && other.Count() == 0)
        Fail("{} has no meaning without {}", option.Name(), other.Name());
    };
    const auto excludes = [](Option option, Option other) {
      if (option.Count() > 0 && other.Count() > 0)
        Fail("{} and {} exclude each other", option.Name(), other.Name());
    };
    if (prompt.Count() + file.Count() + tokens.Count() != 1) {
      Fail(
          "generate needs one prompt: --prompt TEXT, --prompt-file FILE (- is standard input) or "
          "--tokens 1,2,3");
    }
    needs(system, chat);
    needs(variables, chat);
    needs(logprobs, json);
    excludes(tokens, chat);
    excludes(color, json);
    if (options->trace == "-") excludes(trace, json);
    RunGenerate(*options);
  });
}

}  // namespace loopspec::tools
