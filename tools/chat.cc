// loopspec chat: a conversation at the terminal, or through a pipe.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/load/device.h"
#include "loopspec/engine.h"
#include "text/chat_json.h"
#include "text/reasoning.h"
#include "tools/commands.h"
#include "tools/line_input.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/report.h"

namespace loopspec::tools {
namespace {

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  DecodeOptions decode;
  std::string system;
  std::vector<std::string> template_args;
  std::optional<int> max_tokens;  // of an answer; unless given, what the context has room for
  bool no_history = false;
  uint64_t seed = 0;
};

constexpr const char* kHelp =
    "  /help    this list\n"
    "  \\        at the end of a line: the message goes on in the next\n"
    "  \"\"\"      begins and ends a message of several lines\n"
    "  /clear   forget the conversation\n"
    "  /stats   speed and drafts of the last answer\n"
    "  /quit    leave (Ctrl-D too)\n"
    "  Ctrl-C   stop the answer\n";

// An answer as it comes: at a terminal, what the model thinks first is dim and without its tags.
class AnswerPrinter {
 public:
  // `thinking`: the prompt ended inside <think>.
  explicit AnswerPrinter(bool thinking) : splitter_(thinking) {}

  // False when nobody reads any more.
  bool Show(const std::string& piece) {
    shown_ += piece.size();
    return Print(splitter_.Push(piece), piece);
  }
  void Finish(const std::string& text) {
    const std::string rest = text.substr(std::min(shown_, text.size()));
    Show(rest);
    Print(splitter_.Finish(), "");
    if (dim_ && open_) fmt::print("{}", kPlain);
    fmt::print("\n");
    std::fflush(stdout);
  }
  // Without what was thought.
  const std::string& content() const { return content_; }

 private:
  bool Print(const ReasoningSplitter::Parts& parts, const std::string& raw) {
    content_ += parts.content;
    if (!dim_) {
      Write(raw);
    } else {
      if (!parts.reasoning.empty()) {
        if (!open_) fmt::print("\033[2m");
        open_ = true;
        Write(parts.reasoning);
      }
      if (!parts.content.empty()) {
        if (open_) fmt::print("{}\n\n", kPlain);
        open_ = false;
        Write(parts.content);
      }
    }
    return std::fflush(stdout) == 0;
  }
  static void Write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  ReasoningSplitter splitter_;
  const bool dim_ = ColourOnStdout();
  bool open_ = false;  // dim text is being written
  size_t shown_ = 0;   // bytes
  std::string content_;
};

Engine EngineFor(const ChatOptions& options) {
  const auto loaded = std::make_shared<const LoadedModel>(options.model.ToEngineOptions());
  const Model& model = loaded->model();
  EngineOptions engine = options.decode.ToEngineOptions(options.model, model);
  // A GPU takes its memory at once: no more of it than one text can use.
  if (!IsCpu(engine)) engine.kv_positions = model.spec.max_positions;
  loaded->tokenizer();  // who has none is told now
  loaded->chat_template();
  Engine made(engine, loaded);
  if (made.facts().context < model.spec.max_positions)
    LogWarning("memory holds {} tokens of the model's context of {}", made.facts().context,
               model.spec.max_positions);
  return made;
}

class Conversation {
 public:
  explicit Conversation(const ChatOptions& options)
      : options_(options), engine_(EngineFor(options)), context_(engine_.facts().context) {
    Clear();
  }

  void Clear() {
    messages_ = OrderedJson::array();
    if (!options_.system.empty())
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  // Streams the answer. A turn that fails leaves the conversation as it was.
  void Say(const std::string& line, bool terminal) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    try {
      const std::string answer = Answer();
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    } catch (const Error& error) {
      messages_.erase(messages_.size() - 1);
      if (!terminal) throw;
      fmt::print(stderr, "loopspec: {}\n", Printable(error.what()));
    }
  }

  void Stats() const {
    if (last_.tokens.empty()) return fmt::print("nothing said yet\n");
    const Statistics& s = last_.statistics;
    fmt::print(
        "{} tokens, {:.0f} tokens/s, first after {}; {:.1f} rows on average, {:.2f} tokens per "
        "pass of R; drafts taken",
        s.decoded_tokens, s.tokens_per_second, HumanSeconds(s.first_token_seconds), s.rows_mean,
        s.tokens_per_pass);
    for (const int64_t accepted : s.accepted) fmt::print(" {}", accepted);
    fmt::print(", without {}\n", s.fallback);
  }

 private:
  // `thinking`: the answer begins inside <think>.
  Request MakeRequest(bool& thinking) const {
    Request request;
    const OrderedJson arguments = ParseTemplateArguments(options_.template_args);
    const std::string prompt = engine_.Render(ChatJson{messages_, arguments});
    thinking = EndsInThink(prompt);
    request.tokens = engine_.Encode(prompt, false);
    const int64_t length = std::ssize(request.tokens);
    const int64_t room = context_ - length;
    if (room < 1 && messages_.size() <= (options_.system.empty() ? 1u : 2u)) {
      Fail("the message makes a prompt of {} tokens, the context has room for {} and an answer",
           length, context_ - 1);
    }
    if (room < 1)
      Fail("the conversation fills the context of {} tokens: /clear starts anew", context_);
    request.max_tokens = static_cast<int>(
        options_.max_tokens ? std::min<int64_t>(*options_.max_tokens, room) : room);
    request.sampling = options_.sampling.Over(engine_.facts().sampling);
    request.seed = options_.seed + static_cast<uint64_t>(messages_.size());
    request.progress = true;
    options_.decode.Apply(request);
    return request;
  }

  std::string Answer() {
    bool thinking = false;
    const Request request = MakeRequest(thinking);
    AnswerPrinter printer(thinking);
    ForgetChatInterrupt();
    const auto go_on = [] { return !ChatInterrupted(); };
    ProgressLine progress(kQuietSeconds);
    Result result = engine_.Generate(
        request,
        [&](const Token& token) {
          progress.Clear();
          return printer.Show(token.text) && go_on();
        },
        [&](const Stream::Progress& prompt) {
          progress.Show("reading the conversation", prompt.done, prompt.total, "tokens");
          return go_on();
        });
    last_ = std::move(result.choices[0]);
    progress.Clear();
    printer.Finish(last_.text);
    if (last_.statistics.finish_reason == FinishReason::kLength)
      NoteCut(last_.tokens.size(),
              options_.max_tokens && std::ssize(last_.tokens) == *options_.max_tokens);
    return printer.content();
  }

  const ChatOptions& options_;
  Engine engine_;
  const int64_t context_;  // tokens that a conversation may have: the model's, or what memory holds
  OrderedJson messages_;
  Choice last_;
};

void RunChat(const ChatOptions& options) {
  Conversation conversation(options);
  LineInput input(options.no_history ? "" : DefaultHistoryFile());
  CatchChatInterrupt();
  if (input.terminal())
    fmt::print("Talk to {}; /help lists commands, Ctrl-D leaves.\n", options.model.model);
  while (const auto line = input.Next()) {
    if (line->empty()) continue;
    if (*line == "/quit" || *line == "/exit") break;
    if (*line == "/help") {
      fmt::print("{}", kHelp);
    } else if (*line == "/clear") {
      conversation.Clear();
    } else if (*line == "/stats") {
      conversation.Stats();
    } else if ((*line)[0] == '/' && line->find('\n') == std::string::npos) {
      fmt::print("unknown command {}\n{}", Printable(*line), kHelp);
    } else {
      conversation.Say(*line, input.terminal());
    }
    std::fflush(stdout);
  }
}

}  // namespace

void AddChatCommand(Command app) {
  auto options = std::make_shared<ChatOptions>();
  const Command command = app.AddCommand("chat", "Talk with a model at the terminal");
  command.AddOption("--system", options->system, "A system message before the conversation");
  command
      .AddOption("--max-tokens,-n", options->max_tokens,
                 "Maximum tokens to generate per answer; default: what the context has room for")
      .Range(1, 1 << 30)
      .TypeName("N");
  command.AddFlag("--no-history", options->no_history,
                  "Do not keep what is typed for the next run");
  command
      .AddOption("--template-arg", options->template_args,
                 "A template variable, key=value (enable_thinking=false)")
      .OneValueEach();
  command.AddOption("--seed", options->seed, "Seed of sampling: same seed, same text")
      .ShowDefault();
  options->model.AddTo(command);
  options->decode.AddTo(command);
  options->sampling.AddTo(command);
  command.SetAction([options] { RunChat(*options); });
}

}  // namespace loopspec::tools
