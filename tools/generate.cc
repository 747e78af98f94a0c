// loopspec generate: one prompt in, text out.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "engine/generate.h"
#include "engine/model_path.h"
#include "text/incremental_decoder.h"
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

struct Options {
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

constexpr int kDefaultTokens = 256;

int MaxTokens(const Options& options, int64_t prompt, int64_t context) {
  if (options.max_tokens) return *options.max_tokens;
  return static_cast<int>(std::clamp<int64_t>(context - prompt, 1, kDefaultTokens));
}

std::string PromptText(const Options& options) {
  return options.prompt_file.empty() ? options.prompt : ReadInput(options.prompt_file);
}

std::vector<int32_t> PromptTokens(const Options& options, const TextParts& text,
                                  const std::filesystem::path& folder) {
  if (!options.tokens.empty()) return ParseTokenList(options.tokens);
  if (!text.tokenizer)
    Fail("{} has no tokenizer.json: give the prompt as --tokens 1,2,3", folder.string());
  const Tokenizer& tokenizer = *text.tokenizer;
  if (!options.chat) return tokenizer.Encode(PromptText(options));
  OrderedJson messages = OrderedJson::array();
  if (!options.system.empty())
    messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", PromptText(options)}});
  ChatTemplate::Options render;
  render.arguments = ParseTemplateArguments(options.template_args);
  // The template writes the special tokens itself.
  return tokenizer.Encode(text.RequireTemplate(folder).Render(messages, render), false);
}

OrderedJson LogprobsJson(const GenerateResult& result) {
  OrderedJson list = OrderedJson::array();
  for (const CommittedToken& token : result.tokens) {
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& entry : token.top)
      top.push_back({{"token", entry.token}, {"logprob", entry.logprob}});
    list.push_back({{"token", token.token}, {"logprob", token.logprob}, {"top", top}});
  }
  return list;
}

DecodeRequest MakeRequest(const Options& options, const Model& model, const TextParts& text,
                          const std::filesystem::path& folder) {
  if (!options.stop.empty() && !text.tokenizer)
    Fail("{} has no tokenizer.json: use --stop-token instead of --stop", folder.string());
  for (const int32_t token : options.stop_tokens) {
    if (token < 0 || token >= model.spec.vocab)
      Fail("--stop-token {} is outside the vocabulary of {}", token, model.spec.vocab);
  }
  DecodeRequest request;
  request.prompt = PromptTokens(options, text, folder);
  request.sampling = options.sampling.Get();
  options.decode.Apply(options.decode.Depths(options.model, model), request);
  request.max_tokens =
      MaxTokens(options, static_cast<int64_t>(request.prompt.size()), model.spec.max_positions);
  request.seed = options.seed;
  request.logprobs = options.logprobs;
  request.trace = !options.trace.empty();
  request.stop_tokens = options.stop_tokens;
  if (!options.ignore_eos)
    request.stop_tokens.insert(request.stop_tokens.end(), text.special.eos.begin(),
                               text.special.eos.end());
  return request;
}

// Tokens as they come, to standard output and into `whole`.
class Stream {
 public:
  Stream(const Options& options, const TextParts& text)
      : printed_(!options.json && options.trace != "-"),
        coloured_(options.color && !(isatty(STDOUT_FILENO) != 0 && !CanErase(STDOUT_FILENO))) {
    if (!text.tokenizer) return;
    IncrementalDecoder::Options how;
    how.skip_special = !options.show_special;
    how.stop = options.stop;
    decoder_.emplace(*text.tokenizer, how);
  }

  // False when nobody reads any more, or a stop string has come.
  bool Push(const CommittedToken& token) {
    if (decoder_) return Show(decoder_->Push(token.token), token) && !decoder_->stopped();
    if (printed_) fmt::print("{}{}", count_++ == 0 ? "" : ",", token.token);
    return true;
  }
  void Finish(const CommittedToken& last) {
    if (decoder_ && !decoder_->stopped()) Show(decoder_->Finish(), last);
    if (printed_) fmt::print("\n");
    std::fflush(stdout);
  }

  bool has_text() const { return decoder_.has_value(); }
  const std::string& whole() const { return whole_; }

 private:
  bool Show(const std::string& piece, const CommittedToken& token) {
    whole_ += piece;
    if (!printed_ || piece.empty()) return true;
    if (coloured_)
      fmt::print("{}{}{}", SourceColour(token.source, token.early), piece, kPlain);
    else
      std::fwrite(piece.data(), 1, piece.size(), stdout);
    return std::fflush(stdout) == 0;
  }

  const bool printed_, coloured_;
  std::optional<IncrementalDecoder> decoder_;
  std::string whole_;
  int count_ = 0;
};

void PrintJson(const Options& options, const Model& model, const Backend& backend,
               const DecodeRequest& request, const GenerateResult& result, const Stream& stream) {
  std::vector<int32_t> ids;
  for (const CommittedToken& token : result.tokens) ids.push_back(token.token);
  OrderedJson out = {
      {"text", stream.has_text() ? OrderedJson(stream.whole()) : OrderedJson(nullptr)},
      {"token_ids", ids},
      {"prompt_tokens", request.prompt.size()},
      {"finish_reason", NameOf(result.finish_reason)},
      {"stats", StatsJson(model, backend, request.depths, result,
                          static_cast<int64_t>(request.prompt.size()))}};
  if (options.logprobs >= 0) out["logprobs"] = LogprobsJson(result);
  fmt::print("{}\n", out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

void PrintSummary(const GenerateResult& result, int recurrence) {
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

void Run(const Options& options) {
  CatchInterrupt();
  if (!options.trace.empty()) CheckOutputFile(options.trace, "--trace");
  const std::filesystem::path folder = ResolveModel(options.model.model);
  const Model model = options.model.Load();
  const TextParts text = TextParts::Load(options.model, model);
  DecodeRequest request = MakeRequest(options, model, text, folder);
  const auto backend = options.model.MakeBackend(
      model, request.depths, static_cast<int64_t>(request.prompt.size()) + request.max_tokens,
      options.decode.row_budget);
  Generator generator(*backend, LoadStepCost(*backend));
  Stream stream(options, text);
  ProgressLine progress(kQuietSeconds);
  GenerateResult result = generator.Run(
      request,
      [&](const CommittedToken& token) {
        progress.Clear();
        return stream.Push(token) && !Interrupted();
      },
      [&](int64_t done, int64_t total) {
        progress.Show("reading the prompt", done, total, "tokens");
        return !Interrupted();
      });
  progress.Clear();
  if (Interrupted()) result.finish_reason = FinishReason::kCancelled;
  stream.Finish(result.tokens.empty() ? CommittedToken{} : result.tokens.back());
  if (request.trace)
    WriteTrace(options.trace, model.spec.recurrence, request.depths, result,
               text.tokenizer ? &*text.tokenizer : nullptr);
  if (options.json) return PrintJson(options, model, *backend, request, result, stream);
  if (result.finish_reason == FinishReason::kLength)
    NoteCut(result.tokens.size(), options.max_tokens.has_value());
  PrintSummary(result, model.spec.recurrence);
}

}  // namespace

void AddGenerateCommand(Command app) {
  auto options = std::make_shared<Options>();
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
    Run(*options);
  });
}

}  // namespace loopspec::tools
