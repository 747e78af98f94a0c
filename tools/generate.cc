// loopspec generate: one prompt in, text out.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "engine/load/loaded_model.h"
#include "fields/max_tokens.h"
#include "fields/request_fields.h"
#include "loopspec/engine.h"
#include "tools/answer_grammar.h"
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
  bool chat = false, ignore_eos = false, json = false, color = false, show_special = false;
  std::vector<std::string> stop, template_args;
  std::vector<int32_t> stop_tokens;
  AnswerGrammar grammar;
  std::optional<int> max_thinking_tokens;
  std::optional<int> max_tokens;  // unless given: kDefaultTokens, or what the context has room for
  uint64_t seed = 0;
  std::optional<int> logprobs;
};

// A file, or a pipe such as `echo`, ends its last line with a line break that is not meant.
std::string PromptText(const GenerateOptions& options) {
  if (options.prompt_file.empty()) return options.prompt;
  std::string text = ReadInput(options.prompt_file);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
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

OrderedJson LogprobsJson(const Choice& result) {
  OrderedJson list = OrderedJson::array();
  for (const Token& token : result.tokens) {
    OrderedJson top = OrderedJson::array();
    for (const Alternative& entry : token.top)
      top.push_back({{"token", entry.id}, {"logprob", entry.logprob}});
    list.push_back({{"token", token.id}, {"logprob", token.logprob.value_or(0)}, {"top", top}});
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
  request.seed = options.seed;
  request.max_tokens = options.max_tokens;
  request.max_thinking_tokens = options.max_thinking_tokens;
  request.stop = options.stop;
  request.stop_tokens = options.stop_tokens;
  request.ignore_eos = options.ignore_eos;
  request.show_special = options.show_special;
  request.grammar = options.grammar.Get();
  request.logprobs = options.logprobs;
  request.trace = !options.trace.empty();
  request.progress = true;
  options.decode.Apply(request);
  return request;
}

// With key/value memory for one text alone.
Engine EngineFor(const GenerateOptions& options, const Request& request,
                 const std::shared_ptr<const LoadedModel>& loaded) {
  EngineOptions engine = options.decode.ToEngineOptions(options.model, loaded->model());
  engine.kv_positions =
      std::min<int64_t>(std::ssize(request.tokens) + request.max_tokens.value_or(kDefaultTokens),
                        loaded->spec().max_positions);  // longer texts are refused anyway
  return Engine(engine, loaded);
}

// Tokens to standard output as they come.
class Printer {
 public:
  Printer(const GenerateOptions& options, bool text)
      : text_(text),
        printed_(!options.json && options.trace != "-"),
        coloured_(options.color && !(isatty(STDOUT_FILENO) != 0 && !CanErase(STDOUT_FILENO))) {}

  // False when nobody reads any more.
  bool Push(const Token& token) {
    if (text_) return Show(token.text, token);
    if (printed_) fmt::print("{}{}", count_++ == 0 ? "" : ",", token.id);
    return true;
  }
  // What was held back, if the text ended before its time.
  void Finish(const Choice& result) {
    Show(result.text.substr(shown_), result.tokens.empty() ? Token{} : result.tokens.back());
    if (printed_) fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  bool Show(const std::string& piece, const Token& token) {
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

void PrintJson(const GenerateOptions& options, const ModelFacts& facts,
               const std::vector<int>& depths, const Choice& result) {
  std::vector<int32_t> ids;
  for (const Token& token : result.tokens) ids.push_back(token.id);
  OrderedJson out = {
      {"text", facts.has_tokenizer ? OrderedJson(result.text) : OrderedJson(nullptr)},
      {"token_ids", ids},
      {"prompt_tokens", result.statistics.prompt_tokens},
      {"finish_reason", NameOf(result.statistics.finish_reason)},
      {"stats", StatsJson(facts, depths, result)}};
  if (options.logprobs) out["logprobs"] = LogprobsJson(result);
  fmt::print("{}\n", out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

void PrintSummary(const Statistics& s) {
  if (!ColourOnStderr()) return;
  fmt::print(stderr,
             "\033[2m{} tokens, {:.0f} tokens/s, first after {}; {:.1f} rows on average, {:.2f} "
             "tokens per pass of R{}\n",
             s.decoded_tokens, s.tokens_per_second, HumanSeconds(s.first_token_seconds),
             s.rows_mean, s.tokens_per_pass, kPlain);
}

void RunGenerate(const GenerateOptions& options) {
  CatchInterrupt();
  if (!options.trace.empty()) CheckOutputFile(options.trace, "--trace");
  const auto loaded = std::make_shared<const LoadedModel>(options.model.ToEngineOptions());
  const SaidSampling said = options.sampling.Said();
  Request request = MakeRequest(options, *loaded);
  Engine engine = EngineFor(options, request, loaded);
  const ModelFacts& facts = engine.facts();
  request.sampling = said.Over(facts.sampling);
  Printer printer(options, facts.has_tokenizer);
  ProgressLine progress(kQuietSeconds);
  Result generated = engine.Generate(
      request,
      [&](const Token& token) {
        progress.Clear();
        return printer.Push(token) && !Interrupted();
      },
      [&](const Stream::Progress& prompt) {
        progress.Show("reading the prompt", prompt.done, prompt.total, "tokens");
        return !Interrupted();
      });
  Choice& result = generated.choices[0];
  progress.Clear();
  Statistics& s = result.statistics;
  if (Interrupted()) s.finish_reason = FinishReason::kCancelled;
  printer.Finish(result);
  if (request.trace) WriteTrace(options.trace, engine, generated.depths, result);
  if (options.json) return PrintJson(options, facts, generated.depths, result);
  if (s.finish_reason == FinishReason::kLength)
    NoteCut(result.tokens.size(),
            options.max_tokens ? "-n" : "-n sets another number, as far as the context has room");
  PrintSummary(s);
}

}  // namespace

void AddGenerateCommand(Command app) {
  auto options = std::make_shared<GenerateOptions>();
  const Command command = app.AddCommand("generate", "Continue a prompt, or answer it with --chat");
  const Option prompt = command.AddOption("--prompt,-p", options->prompt, "The text to continue");
  const Option file =
      command.AddOption("--prompt-file,-f", options->prompt_file,
                        "A file that holds it, or - for standard input; a line break at its end "
                        "is left out");
  const Option tokens = command.AddOption("--tokens", options->tokens, "Token ids instead: 1,2,3");
  const Option chat = command.AddFlag(
      "--chat", options->chat, "Put the prompt into the model's chat template as a user's message");
  const Option system =
      command.AddOption("--system", options->system, "With --chat: a system message before it");
  const Option variables =
      command
          .AddOption("--template-arg", options->template_args,
                     "With --chat: a template variable, key=value (enable_thinking=false)")
          .OneValueEach();
  command
      .AddOption("--max-tokens,-n", options->max_tokens,
                 "Maximum tokens to generate; default: 256, or what the context has room for")
      .Range(1, 1 << 30)
      .Alias("--n-predict");
  options->model.AddTo(command);
  const Option positional = command.AddOption(
      "PROMPT", options->prompt, "The text to continue, as --prompt gives it; - is standard input");
  positional.OrElse({prompt, file, tokens});
  options->decode.AddTo(command);
  options->sampling.AddTo(command);
  command.AddOption("--seed", options->seed, "Seed of sampling: same seed, same text")
      .ShowDefault();
  command.AddOption("--stop", options->stop, "End before this text; may be given several times")
      .OneValueEach();
  command
      .AddOption("--stop-token", options->stop_tokens,
                 "End after this token id; may be given several times")
      .OneValueEach();
  command
      .AddOption("--max-thinking-tokens", options->max_thinking_tokens,
                 RequestFieldNamed("max_thinking_tokens").help)
      .Range(0, 1 << 30);
  command.AddFlag("--ignore-eos", options->ignore_eos,
                  "Do not stop at the model's end-of-text tokens");
  options->grammar.AddTo(command);
  command.AddFlag("--show-special", options->show_special, "Show special tokens in the text");
  const Option json = command.AddFlag("--json", options->json,
                                      "Print one JSON object with text, ids and statistics");
  const Option logprobs =
      command
          .AddOption("--logprobs", options->logprobs,
                     "With --json: log-probabilities of each token and the N likeliest")
          .Range(0, 1000);
  const Option color =
      command.AddFlag("--color", options->color,
                      "Colour the text by source, as the page of serve does: blue first draft, "
                      "cyan second, red none "
                      "was right; yellow and underlined: begun before it was drafted");
  const Option trace = command.AddOption(
      "--trace", options->trace,
      "Write the timeline of branches to this file (draw it with loopspec trace); - prints it "
      "instead of the text");
  command.SetFooter(
      "\nExamples:\n"
      "  loopspec generate models/ouro-demo \"Once upon a time\" -n 100\n"
      "  loopspec generate models/ouro-demo \"Tell me a story.\" --chat --temperature 0.7 --seed "
      "1\n"
      "  echo \"Once upon a time\" | loopspec generate models/ouro-demo - --json");
  command.SetAction([=] {
    const auto needs = [](Option option, Option other) {
      if (option.Count() > 0 && other.Count() == 0)
        Fail("{} has no meaning without {}", option.Name(), other.Name());
    };
    const auto excludes = [](Option option, Option other) {
      if (option.Count() > 0 && other.Count() > 0)
        Fail("{} and {} exclude each other", option.Name(), other.Name());
    };
    const size_t given = prompt.Count() + positional.Count() + file.Count() + tokens.Count();
    if (given != 1) {
      Fail(
          "generate needs one prompt, found {}: a text after the model, --prompt TEXT, "
          "--prompt-file FILE (- is standard input) or --tokens 1,2,3{}",
          given == 0 ? "none" : fmt::format("{}", given),
          given == 0 ? TextInPlaceOfModel(options->model.model) : "");
    }
    if (positional.Count() > 0 && options->prompt == "-") options->prompt_file = "-";
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
