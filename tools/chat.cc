// loopspec chat: a conversation at the terminal, or through a pipe.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/load/device.h"
#include "engine/load/model_path.h"
#include "fields/max_tokens.h"
#include "fields/sampling_fields.h"
#include "loopspec/engine.h"
#include "text/chat_json.h"
#include "text/reasoning.h"
#include "tools/commands.h"
#include "tools/input_file.h"
#include "tools/line_input.h"
#include "tools/option_value.h"
#include "tools/options.h"
#include "tools/output_file.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/word_wrap.h"

namespace loopspec::tools {
namespace {

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  DecodeOptions decode;
  std::string system;
  std::vector<std::string> template_args;
  std::optional<int> max_tokens;  // of an answer; unless given, what the context has room for
  int context = 0;                // tokens of the conversation at most; 0: the model's context
  bool no_history = false;
  uint64_t seed = 0;
};

// What went wrong, at a terminal where the conversation goes on.
void Complain(const Error& error) {
  fmt::print(stderr, "{}\n", Wrapped(fmt::format("loopspec: {}", Printable(error.what()))));
}

constexpr const char* kHelp =
    "  /help    this list\n"
    "  \\        at the end of a line: the message goes on in the next\n"
    "  \"\"\"      begins and ends a message of several lines\n"
    "  /clear   forget the conversation\n"
    "  /set     how answers are made: /set temperature 0.8; alone: what holds now\n"
    "  /system  a system message before the conversation; alone: none\n"
    "  /save    FILE: keep the conversation as JSON\n"
    "  /load    FILE: go on with one that was kept\n"
    "  /stats   speed and drafts of the last answer\n"
    "  /quit    leave (/bye and Ctrl-D too)\n"
    "  Ctrl-C   stop the answer\n";

// Drafts by their order: "8 first, 2 second".
constexpr const char* kOrdinals[] = {"first", "second", "third", "fourth"};

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
    FinishWord();
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
        if (open_) {
          FinishWord();
          fmt::print("{}", kPlain);
          Write("\n\n");
        }
        open_ = false;
        Write(parts.content);
      }
    }
    return std::fflush(stdout) == 0;
  }
  void Write(const std::string& text) { Put(wrap_.Push(text)); }
  void FinishWord() { Put(wrap_.Finish()); }
  static void Put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  WordWrap wrap_{TerminalColumns()};
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
  loaded->tokenizer();  // throws now where there is none
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
      : options_(options),
        engine_(EngineFor(options)),
        context_(options.context > 0 ? std::min<int64_t>(options.context, engine_.facts().context)
                                     : engine_.facts().context),
        sampling_(options.sampling.Over(engine_.facts().sampling)),
        max_tokens_(options.max_tokens),
        seed_(options.seed),
        system_(options.system) {}

  void Clear() {
    messages_ = OrderedJson::array();
    left_out_ = 0;
    told_ = false;
  }

  void SetSystem(const std::string& text) { system_ = text; }

  // "temperature 0.8": a number of sampling, seed or max-tokens.
  void Set(std::string name, const std::string& value) {
    std::replace(name.begin(), name.end(), '-', '_');
    OptionRule rule;  // numbers are read as those of options are
    rule.name = "/set " + name;
    if (name == "seed") {
      rule.low = 0;
      return ReadValue(rule, value, seed_);
    }
    if (name == "max_tokens") {
      rule.low = 1;
      rule.high = 1 << 30;
      int tokens = 0;
      ReadValue(rule, value, tokens);
      max_tokens_ = tokens;
      max_tokens_set_ = true;
      return;
    }
    for (const SamplingField& field : SamplingFields()) {
      if (name != field.name) continue;
      double number = 0;
      ReadValue(rule, value, number);
      if (!field.range.Holds(number) || (field.whole() && number != std::floor(number)))
        Fail("/set {} {}: expected {}{}", name, value, field.whole() ? "a whole number, " : "",
             Expected(field.range));
      return field.Set(sampling_, number);
    }
    std::string known = "seed, max_tokens";
    for (const SamplingField& field : SamplingFields()) known += fmt::format(", {}", field.name);
    Fail("/set {}: expected one of {}", name, known);
  }

  void ShowSettings() const {
    fmt::print("sampling: {}\nseed: {}\nmax_tokens: {}\nsystem: {}\n", Described(sampling_), seed_,
               max_tokens_ ? fmt::format("{}", *max_tokens_) : "what the context has room for",
               system_.empty() ? "none" : Printable(system_));
  }

  void Save(const std::string& file) const {
    OrderedJson all = OrderedJson::array();
    if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
    for (const OrderedJson& message : messages_) all.push_back(message);
    WriteTextFile(file, OrderedJson{{"messages", all}}.dump(1, ' ', false,
                                                            OrderedJson::error_handler_t::replace) +
                            "\n");
    fmt::print("kept {} messages in {}\n", messages_.size(), Printable(file));
  }

  // What Save wrote, or a list of messages. Leaves the conversation as it was where it fails.
  void Load(const std::string& file) {
    const OrderedJson json = ParseOrderedJson(ReadInput(file), file);
    const OrderedJson& list =
        json.is_object() && json.contains("messages") ? json["messages"] : json;
    if (!list.is_array()) Fail("{}: expected a list of messages", file);
    std::string system;
    OrderedJson messages = OrderedJson::array();
    for (const OrderedJson& message : list) {
      const auto text = [&](const char* key) {
        if (!message.is_object() || !message.contains(key) || !message[key].is_string())
          Fail("{}: a message without \"{}\", expected role and content of each", file, key);
        return message[key].get<std::string>();
      };
      const std::string role = text("role"), content = text("content");
      if (role == "system" && messages.empty())
        system = content;
      else
        messages.push_back({{"role", role}, {"content", content}});
    }
    Clear();
    system_ = std::move(system);
    messages_ = std::move(messages);
    if (messages_.empty()) return fmt::print("0 messages\n");
    std::string last = messages_.back()["content"].get<std::string>();
    std::replace(last.begin(), last.end(), '\n', ' ');
    fmt::print("{}\n", Wrapped(fmt::format("{} messages; the last: {}", messages_.size(),
                                           Printable(last))));
  }

  // Streams the answer. A turn that fails leaves the conversation as it was.
  void Say(const std::string& line, bool terminal) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    const size_t left_out = left_out_;
    try {
      const std::string answer = Answer();
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    } catch (const Error& error) {
      messages_.erase(messages_.size() - 1);
      left_out_ = left_out;
      if (!terminal) throw;
      Complain(error);
    }
  }

  void Stats() const {
    if (last_.tokens.empty()) return fmt::print("nothing said yet\n");
    const Statistics& s = last_.statistics;
    fmt::print("{} tokens at {:.0f} tokens/s, the first after {}\n", s.decoded_tokens,
               s.tokens_per_second, HumanSeconds(s.first_token_seconds));
    int64_t accepted = 0;
    std::string by_draft;
    for (size_t i = 0; i < s.accepted.size(); ++i) {
      accepted += s.accepted[i];
      by_draft += fmt::format("{}{} {}", by_draft.empty() ? "" : ", ", s.accepted[i],
                              kOrdinals[std::min(i, std::size(kOrdinals) - 1)]);
    }
    fmt::print("{} of them were drafts that proved right{}, {} were computed in full\n", accepted,
               s.accepted.size() > 1 ? fmt::format(" ({} drafts)", by_draft) : "", s.fallback);
    fmt::print(
        "{:.2f} tokens came out of every {} loops (1 without drafts), {:.1f} were computed "
        "at a time\n",
        s.tokens_per_pass, engine_.facts().recurrence, s.rows_mean);
  }

 private:
  // The conversation as far as the model sees it, in its template.
  std::string Rendered() const {
    OrderedJson seen = OrderedJson::array();
    if (!system_.empty()) seen.push_back({{"role", "system"}, {"content", system_}});
    for (size_t i = left_out_; i < messages_.size(); ++i) seen.push_back(messages_[i]);
    return engine_.Render(ChatJson{seen, ParseTemplateArguments(options_.template_args)});
  }

  // The oldest turn that the model sees is left out; false where only the last message is left.
  bool LeaveOutOldest() {
    for (size_t i = left_out_ + 1; i < messages_.size(); ++i) {
      if (messages_[i]["role"] != "user") continue;
      left_out_ = i;
      if (!told_)
        fmt::print(stderr, "{}\n",
                   Wrapped(fmt::format("loopspec: the conversation is longer than the context of "
                                       "{} tokens: its oldest turns are left out from here on",
                                       context_)));
      told_ = true;
      return true;
    }
    return false;
  }

  // `thinking`: the answer begins inside <think>.
  Request MakeRequest(bool& thinking) {
    Request request;
    // An answer wants some room of its own.
    const int64_t wanted = std::clamp<int64_t>(max_tokens_.value_or(kDefaultTokens), 1,
                                               std::max<int64_t>(1, context_ / 4));
    int64_t room = 0;
    do {
      const std::string prompt = Rendered();
      thinking = EndsInThink(prompt);
      request.tokens = engine_.Encode(prompt, false);
      room = context_ - std::ssize(request.tokens);
    } while (room < wanted && LeaveOutOldest());
    if (room < 1) {
      Fail("the message makes a prompt of {} tokens, the context has room for {} and an answer",
           request.tokens.size(), context_ - 1);
    }
    request.max_tokens =
        static_cast<int>(max_tokens_ ? std::min<int64_t>(*max_tokens_, room) : room);
    request.sampling = sampling_;
    request.seed = seed_ + static_cast<uint64_t>(messages_.size()) + (system_.empty() ? 0 : 1);
    request.progress = true;
    options_.decode.Apply(request);
    return request;
  }

  const char* WhatCut() const {
    if (!max_tokens_ || std::ssize(last_.tokens) < *max_tokens_) return "the context is full";
    return max_tokens_set_ ? "/set max_tokens" : "-n";
  }

  std::string Answer() {
    bool thinking = false;
    const Request request = MakeRequest(thinking);
    AnswerPrinter printer(thinking);
    ForgetChatInterrupt();
    const QuietInterruptKey quiet;
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
      NoteCut(last_.tokens.size(), WhatCut());
    return printer.content();
  }

  const ChatOptions& options_;
  Engine engine_;
  const int64_t context_;  // tokens that a conversation may have: the model's, or what memory holds
  SamplingParams sampling_;
  std::optional<int> max_tokens_;  // of an answer; none: what the context has room for
  bool max_tokens_set_ = false;    // here, by /set
  uint64_t seed_;
  std::string system_;                           // before the conversation; empty: none
  OrderedJson messages_ = OrderedJson::array();  // of the user and the model, in turn
  size_t left_out_ = 0;  // messages at the beginning that the model does not see any more
  bool told_ = false;    // that some are left out
  Choice last_;
};

// A line that begins with a slash. False: it ends the conversation.
bool RunCommand(const std::string& line, Conversation& conversation) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, space);
  const auto after = [](const std::string& text, size_t at) {
    at = text.find_first_not_of(' ', at);
    return at == std::string::npos ? std::string()
                                   : text.substr(at, text.find_last_not_of(' ') - at + 1);
  };
  std::string rest = after(line, space);
  if (name == "/quit" || name == "/exit" || name == "/bye") return false;
  if (name == "/help" || name == "/?") {
    fmt::print("{}", Wrapped(kHelp));
  } else if (name == "/clear") {
    conversation.Clear();
  } else if (name == "/stats") {
    conversation.Stats();
  } else if (name == "/set") {
    if (rest.starts_with("parameter ")) rest = after(rest, 10);  // as others have it
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string what = rest.substr(0, end), value = after(rest, end);
    if (what.empty())
      conversation.ShowSettings();
    else if (what == "system")
      conversation.SetSystem(value);
    else
      conversation.Set(what, value);
  } else if (name == "/system") {
    conversation.SetSystem(rest);
  } else if (name == "/save" || name == "/load") {
    if (rest.empty()) Fail("{} needs a file", name);
    if (name == "/save")
      conversation.Save(rest);
    else
      conversation.Load(rest);
  } else {
    fmt::print("unknown command {}\n{}", Printable(name), Wrapped(kHelp));
  }
  return true;
}

void RunChat(const ChatOptions& options) {
  Conversation conversation(options);
  LineInput input(options.no_history ? "" : DefaultHistoryFile());
  CatchChatInterrupt();
  if (input.terminal())
    fmt::print("{}\n",
               Wrapped(fmt::format(
                   "Talk to {}{}; /help lists commands, Ctrl-D leaves.", options.model.model,
                   options.model.model == kDemoModel
                       ? ", the demo model, which knows children's stories and short word problems "
                         "(loopspec chat MODEL talks to another)"
                       : "")));
  while (const auto line = input.Next()) {
    if (line->empty()) continue;
    if ((*line)[0] != '/' || line->find('\n') != std::string::npos) {
      conversation.Say(*line, input.terminal());
    } else {
      try {
        if (!RunCommand(*line, conversation)) break;
      } catch (const Error& error) {
        if (!input.terminal()) throw;
        Complain(error);
      }
    }
    std::fflush(stdout);
  }
}

}  // namespace

void AddChatCommand(Command app) {
  auto options = std::make_shared<ChatOptions>();
  const Command command = app.AddCommand("chat", "Talk with a model at the terminal").Alias("run");
  command.AddOption("--system", options->system, "A system message before the conversation");
  command
      .AddOption("--max-tokens,-n", options->max_tokens,
                 "Maximum tokens to generate per answer; default: what the context has room for")
      .Range(1, 1 << 30)
      .Alias("--n-predict");
  command
      .AddOption("--ctx-size,-c", options->context,
                 "Maximum tokens of the conversation that the model sees; default: its context")
      .Range(2, 1 << 30);
  command.AddFlag("--no-history", options->no_history,
                  "Do not keep what is typed for the next run");
  command
      .AddOption("--template-arg", options->template_args,
                 "A template variable, key=value (enable_thinking=false)")
      .OneValueEach();
  command.AddOption("--seed", options->seed, "Seed of sampling: same seed, same text")
      .ShowDefault();
  options->model.AddTo(command, true, kDemoModel);
  options->decode.AddTo(command);
  options->sampling.AddTo(command);
  command.SetAction([options] { RunChat(*options); });
}

}  // namespace loopspec::tools
