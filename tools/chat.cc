// loopspec chat: a conversation at the terminal, or through a pipe.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/load/device.h"
#include "engine/session.h"
#include "loopspec/engine.h"
#include "tools/commands.h"
#include "tools/follow.h"
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
  int max_tokens = 512;
  uint64_t seed = 0;
};

std::atomic<bool> answer_stopped{false};
void StopAnswer(int) {
  answer_stopped.store(true, std::memory_order_relaxed);
}

constexpr const char* kHelp =
    "  /help    this list\n"
    "  /clear   forget the conversation\n"
    "  /stats   speed and drafts of the last answer\n"
    "  /quit    leave (Ctrl-D too)\n"
    "  Ctrl-C   stop the answer\n";

// Lines from the terminal with editing and history, or from a pipe as they are.
class Input {
 public:
  Input() : terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    if (terminal_) using_history();
  }
  bool terminal() const { return terminal_; }
  // Nothing at the end of input.
  std::optional<std::string> Next() {
    if (!terminal_) {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      if (line.ends_with('\r')) line.pop_back();  // lines of a file from Windows
      return line;
    }
    answer_stopped = false;
    char* line = readline("> ");
    if (line == nullptr) {
      fmt::print("\n");
      // Ctrl-C drops the line and not the program.
      return answer_stopped ? std::optional<std::string>("") : std::nullopt;
    }
    std::string text = line;
    std::free(line);
    if (!text.empty()) add_history(text.c_str());
    return text;
  }

 private:
  bool terminal_;
};

Engine EngineFor(const ChatOptions& options) {
  const auto loaded = std::make_shared<const LoadedModel>(options.model.ToEngineOptions());
  const Model& model = loaded->model();
  EngineOptions engine = options.decode.ToEngineOptions(options.model, model);
  // A GPU takes its memory at once: no more of it than one text can use.
  if (!IsCpu(engine.device)) engine.kv_positions = model.spec.max_positions;
  auto session = std::make_unique<Session>(engine, loaded);
  if (session->longest() < model.spec.max_positions)
    LogWarning("memory holds {} tokens of the model's context of {}", session->longest(),
               model.spec.max_positions);
  loaded->tokenizer();  // who has none is told now
  loaded->chat_template();
  return Engine(std::move(session));
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
  Request MakeRequest() const {
    Request request;
    const OrderedJson arguments = ParseTemplateArguments(options_.template_args);
    request.tokens = engine_.Encode(engine_.Render(messages_.dump(), arguments.dump()), false);
    const int64_t length = std::ssize(request.tokens);
    const int64_t room = context_ - length;
    if (room < 1 && messages_.size() <= (options_.system.empty() ? 1u : 2u)) {
      Fail("the message makes a prompt of {} tokens, the context has room for {} and an answer",
           length, context_ - 1);
    }
    if (room < 1)
      Fail("the conversation fills the context of {} tokens: /clear starts anew", context_);
    request.max_tokens = static_cast<int>(std::min<int64_t>(options_.max_tokens, room));
    request.sampling = options_.sampling.Get();
    request.seed = options_.seed + static_cast<uint64_t>(messages_.size());
    request.progress = true;
    options_.decode.Apply(request);
    return request;
  }

  std::string Answer() {
    Stream stream = engine_.Submit(MakeRequest());
    size_t shown = 0;  // bytes
    const auto show = [&](const std::string& piece) {
      shown += piece.size();
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      return std::fflush(stdout) == 0;
    };
    answer_stopped = false;
    const auto go_on = [] { return !answer_stopped.load(std::memory_order_relaxed); };
    ProgressLine progress(kQuietSeconds);
    last_ = Follow(stream, [&](Stream::Status status, const Token& token) {
      if (status == Stream::Status::kProgress) {
        const auto [done, total] = stream.progress();
        progress.Show("reading the conversation", done, total, "tokens");
        return go_on();
      }
      progress.Clear();
      return show(token.text) && go_on();
    });
    progress.Clear();
    show(last_.text.substr(shown));
    fmt::print("\n");
    std::fflush(stdout);
    if (last_.statistics.finish_reason == FinishReason::kLength)
      NoteCut(last_.tokens.size(), last_.tokens.size() == static_cast<size_t>(options_.max_tokens));
    return last_.text;
  }

  const ChatOptions& options_;
  Engine engine_;
  const int64_t context_;  // tokens that a conversation may have: the model's, or what memory holds
  OrderedJson messages_;
  Followed last_;
};

void RunChat(const ChatOptions& options) {
  Conversation conversation(options);
  Input input;
  struct sigaction action {};
  action.sa_handler =
      StopAnswer;  // without SA_RESTART: the answer's loop looks at the flag, readline comes back
  sigaction(SIGINT, &action, nullptr);
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
    } else if ((*line)[0] == '/') {
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
  command.AddOption("--max-tokens,-n", options->max_tokens, "Most tokens per answer")
      .Range(1, 1 << 30)
      .TypeName("N")
      .ShowDefault();
  command.AddOption("--template-arg", options->template_args,
                    "A template variable, key=value (enable_thinking=false)");
  AddSeed(command, "--seed", options->seed, "Seed of sampling: same seed, same text");
  options->model.AddTo(command);
  options->decode.AddTo(command);
  options->sampling.AddTo(command);
  command.SetAction([options] { RunChat(*options); });
}

}  // namespace loopspec::tools
