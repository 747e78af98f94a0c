// loopspec chat at a pseudo terminal, as a person has it: letters of all languages, pastes,
// messages of several lines, history, Ctrl-C, thinking.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kPatience = 120;  // seconds
constexpr const char* kUp = "\033[A";
constexpr const char* kGreeting = "Grüße an Tom, 你好 и мама 🙂!";

// A child at a terminal of 200 columns, so that no line of a test is wrapped unless it is meant to.
class TerminalChat {
 public:
  TerminalChat(const std::string& home, std::vector<std::string> more,
               std::vector<std::string> settings = {"LC_ALL=C.UTF-8"}, int columns = 200) {
    winsize size{};
    size.ws_row = 50;
    size.ws_col = static_cast<unsigned short>(columns);
    std::vector<std::string> words = {Binary(), "chat", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    settings.insert(settings.end(), {"HOME=" + home, "TERM=xterm", "PATH=/usr/bin:/bin"});
    child_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ == 0) {
      std::vector<char*> argv, envp;
      for (std::string& word : words) argv.push_back(word.data());
      for (std::string& setting : settings) envp.push_back(setting.data());
      argv.push_back(nullptr);
      envp.push_back(nullptr);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
  }
  ~TerminalChat() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    if (terminal_ >= 0) close(terminal_);
  }
  bool started() const { return child_ > 0; }

  // Reads until `word` has come after what was waited for before.
  bool Until(const std::string& word) {
    const auto end = Clock::now() + std::chrono::duration<double>(kPatience);
    while (seen_.find(word, mark_) == std::string::npos) {
      if (Clock::now() > end || !Read()) return false;
    }
    mark_ = seen_.find(word, mark_) + word.size();
    return true;
  }
  // As the editor shows it when it waits for keys.
  bool UntilPrompt() {
    if (!Until("> ")) return false;
    usleep(200'000);  // as a person would: between the prompt and the first key
    return true;
  }
  void Type(const std::string& keys) const {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Says something and expects this answer and the prompt after it.
  void Expect(const std::string& keys, const std::string& answer) {
    Type(keys);
    EXPECT_TRUE(Until(answer)) << "expected \"" << answer << "\" after \"" << keys << "\", found:\n"
                               << seen_;
    EXPECT_TRUE(UntilPrompt()) << seen_;
  }
  int Leave() {
    Type("/quit\r");
    const auto end = Clock::now() + std::chrono::duration<double>(kPatience);
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      if (Clock::now() > end) return -1;
      Read();
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  // False at the end of the child.
  bool Read() {
    pollfd wait = {terminal_, POLLIN, 0};
    if (poll(&wait, 1, 50) != 1) return true;
    char block[4096];
    const ssize_t count = read(terminal_, block, sizeof(block));
    if (count <= 0) return false;
    seen_.append(block, static_cast<size_t>(count));
    return true;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string seen_;
  size_t mark_ = 0;  // behind what was waited for
};

// The answer to a message that begins a conversation, as a terminal shows its line breaks.
std::string AnswerTo(const std::string& message) {
  const Json answer = Generate({"-m", OuroDemo(), "--chat", "-p", message, "-n", "16"});
  std::string out;
  for (const char c : answer.at("text").get<std::string>())
    out += c == '\n' ? "\r\n" : std::string(1, c);
  return out;
}

std::vector<std::string> Short() {
  return {"-m", OuroDemo(), "-n", "16"};
}

class ChatTerminal : public testing::Test {
 protected:
  Scratch home_;
};

TEST_F(ChatTerminal, TakesLettersOfAllLanguages) {
  const std::string answer = AnswerTo(kGreeting);
  ASSERT_NE(answer, AnswerTo("Gre an Tom,   !")) << "the test needs a message whose letters matter";
  // Also where nobody has set a locale.
  for (const std::string locale : {"LC_ALL=C.UTF-8", "LC_ALL=C", "LC_ALL=nowhere"}) {
    SCOPED_TRACE(locale);
    TerminalChat chat(home_.path().string(), Short(), {locale});
    if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
    ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
    chat.Expect(std::string(kGreeting) + "\r", answer);
    EXPECT_EQ(chat.Leave(), 0);
  }
}

TEST_F(ChatTerminal, TakesMessagesOfSeveralLines) {
  const std::string message = "Tom has 3 apples.\nHe eats one.\nHow many are left?";
  const std::string answer = AnswerTo(message);
  ASSERT_NE(answer, AnswerTo("How many are left?"));
  ASSERT_NE(answer, AnswerTo("Tom has 3 apples."));
  TerminalChat chat(home_.path().string(), Short());
  if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
  ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
  EXPECT_NE(chat.seen().find("\033[?2004h"), std::string::npos) << "pastes are asked for";
  // Terminals send line breaks of a paste as carriage returns, some as they are.
  for (const std::string line_break : {"\r", "\n"}) {
    std::string pasted = message;
    for (size_t at = 0; (at = pasted.find('\n', at)) != std::string::npos; at += line_break.size())
      pasted.replace(at, 1, line_break);
    chat.Expect("\033[200~" + pasted + "\033[201~\r", answer);
    chat.Expect("/clear\r", "/clear");
  }
  chat.Type("Tom has 3 apples.\\\r");
  EXPECT_TRUE(chat.Until("... ")) << chat.seen();
  chat.Type("He eats one.\\\r");
  EXPECT_TRUE(chat.Until("... ")) << chat.seen();
  chat.Expect("How many are left?\r", answer);
  chat.Expect("/clear\r", "/clear");
  chat.Type("\"\"\"\r");
  EXPECT_TRUE(chat.Until("... ")) << chat.seen();
  chat.Type("Tom has 3 apples.\r");
  EXPECT_TRUE(chat.Until("... ")) << chat.seen();
  chat.Type("He eats one.\r");
  EXPECT_TRUE(chat.Until("... ")) << chat.seen();
  chat.Expect("How many are left?\"\"\"\r", answer);
  EXPECT_EQ(chat.Leave(), 0);
}

TEST_F(ChatTerminal, KeepsItsHistoryBetweenRuns) {
  const std::string answer = AnswerTo(kGreeting), several = AnswerTo("One dog.\nTwo cats.");
  {
    TerminalChat chat(home_.path().string(), Short());
    if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
    ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
    chat.Expect("\033[200~One dog.\rTwo cats.\033[201~\r", several);
    chat.Expect("/clear\r", "/clear");
    chat.Expect(std::string(kGreeting) + "\r", answer);
    EXPECT_EQ(chat.Leave(), 0);
  }
  const fs::path file = home_.path() / ".local/state/loopspec/chat_history";
  EXPECT_EQ(Slurp(file), Json("One dog.\nTwo cats.").dump() + "\n\"/clear\"\n" +
                             Json(kGreeting).dump() + "\n\"/quit\"\n");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  {
    TerminalChat chat(home_.path().string(), Short());
    ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
    chat.Type(kUp);  // /quit
    EXPECT_TRUE(chat.Until("/quit")) << chat.seen();
    chat.Expect(std::string(kUp) + "\r", answer);
    chat.Expect("/clear\r", "/clear");
    chat.Expect(std::string(kUp) + kUp + kUp + kUp + kUp + kUp + "\r", several);
    EXPECT_EQ(chat.Leave(), 0);
  }
  const std::string before = Slurp(file);
  std::vector<std::string> arguments = Short();
  arguments.push_back("--no-history");
  TerminalChat chat(home_.path().string(), arguments);
  ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
  chat.Expect("secret\r", AnswerTo("secret"));
  EXPECT_EQ(chat.Leave(), 0);
  EXPECT_EQ(Slurp(file), before);
}

TEST_F(ChatTerminal, CtrlCDropsALineAndStopsAnAnswer) {
  // An answer without an end, and no -n: it must not stop after some fixed number of tokens.
  TerminalChat chat(home_.path().string(),
                    {"-m", OuroDemo(), "--logit-bias", "0=-100", "--logit-bias", "1=-100",
                     "--logit-bias", "2=-100", "--logit-bias", "3=-100"});
  if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
  ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
  chat.Type("half a line");
  EXPECT_TRUE(chat.Until("half a line")) << chat.seen();
  chat.Expect("\x03", "\r\n");
  chat.Type("half\\\r");
  EXPECT_TRUE(chat.Until("... ")) << chat.seen();
  chat.Expect("\x03", "\r\n");
  chat.Expect("/stats\r", "nothing said yet");
  chat.Type("Tell me a story about a dog.\r");
  EXPECT_TRUE(chat.Until("Once")) << chat.seen();
  chat.Expect("\x03", "\r\n");
  chat.Expect("/stats\r", "tokens/s");
  EXPECT_EQ(chat.seen().find("the text was cut"), std::string::npos) << chat.seen();
  EXPECT_EQ(chat.Leave(), 0);
}

// Ctrl-C is not written into the answer.
TEST_F(ChatTerminal, CtrlCLeavesNoMarkInTheText) {
  TerminalChat chat(home_.path().string(),
                    {"-m", OuroDemo(), "--logit-bias", "0=-100", "--logit-bias", "1=-100",
                     "--logit-bias", "2=-100", "--logit-bias", "3=-100"});
  if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
  ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
  chat.Type("Tell me a story about a dog.\r");
  EXPECT_TRUE(chat.Until("Once")) << chat.seen();
  chat.Expect("\x03", "\r\n");
  EXPECT_EQ(chat.seen().find("^C"), std::string::npos) << chat.seen();
  EXPECT_EQ(chat.Leave(), 0);
}

TEST_F(ChatTerminal, BreaksLinesBetweenWords) {
  constexpr int kColumns = 24;
  TerminalChat chat(home_.path().string(), {"-m", OuroDemo(), "-n", "60"}, {"LC_ALL=C.UTF-8"},
                    kColumns);
  if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
  ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
  const std::string message = "A dog.";
  const Json answer = Generate({"-m", OuroDemo(), "--chat", "-p", message, "-n", "60"});
  const std::string text = answer.at("text");
  chat.Type(message + "\r");
  const std::string end = text.substr(text.find_last_of(" \n") + 1);
  EXPECT_TRUE(chat.Until(end)) << chat.seen();
  EXPECT_TRUE(chat.UntilPrompt()) << chat.seen();
  // What was seen is the text with line breaks in place of some of its spaces.
  const std::string first = text.substr(0, text.find(' '));
  std::string shown = chat.seen().substr(chat.seen().rfind(first + " "));
  shown = shown.substr(0, shown.find(end) + end.size());
  std::string words;
  size_t column = 0;
  for (const char c : shown) {
    if (c == '\r') continue;
    column = c == '\n' ? 0 : column + 1;
    EXPECT_LE(column, static_cast<size_t>(kColumns)) << shown;
    if (c == ' ' || c == '\n') {
      if (!words.empty() && words.back() != ' ') words += ' ';
    } else {
      words += c;
    }
  }
  std::string expected;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    if (!space || (!expected.empty() && expected.back() != ' ')) expected += space ? ' ' : c;
  }
  EXPECT_EQ(words, expected) << shown;
  EXPECT_EQ(chat.Leave(), 0);
}

// What the program says itself is broken between words too, and names what cut an answer.
TEST_F(ChatTerminal, BreaksItsOwnSentencesBetweenWords) {
  constexpr size_t kColumns = 40;
  TerminalChat chat(home_.path().string(), {"-m", OuroDemo()}, {"LC_ALL=C.UTF-8"}, kColumns);
  if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
  ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
  chat.Expect("/help\r", "Ctrl-C");
  chat.Expect("/load /nowhere/at/all/there/is/none\r", "directory");
  chat.Expect("/set max_tokens 4\r", "max_tokens 4");
  chat.Expect("A dog.\r", "max_tokens)");
  EXPECT_EQ(chat.Leave(), 0);
  // The lines that people type are the editor's; each of the others ends where the program ends it.
  std::string line;
  for (const char c : chat.seen()) {
    if (c == '\r') continue;
    if (c != '\n') {
      line += c;
      continue;
    }
    if (line.find('\033') == std::string::npos && !line.starts_with("> ")) {
      EXPECT_LE(line.size(), kColumns) << line;
    }
    line.clear();
  }
}

// The demo model in another folder, with this template.
std::string WithTemplate(const Scratch& scratch, const std::string& text) {
  fs::create_directories(scratch.path() / "model");
  for (const auto& entry : fs::directory_iterator(OuroDemo()))
    fs::create_symlink(entry.path(), scratch.path() / "model" / entry.path().filename());
  scratch.Write("model/chat_template.jinja", text);
  return (scratch.path() / "model").string();
}

// The template leaves the answer inside <think>: it is dim to its end. What the model thought is
// not part of the conversation afterwards: the second prompt has an empty answer before it.
TEST_F(ChatTerminal, ShowsThinkingDim) {
  const Scratch scratch;
  const std::string model = WithTemplate(
      scratch,
      "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}<think>\n");
  const Json thought = Generate({"-m", model, "--chat", "-p", "A dog.", "-n", "12"});
  const std::string text = thought.at("text");
  const std::string shown = text.substr(text.find_first_not_of(" \n"));
  {
    TerminalChat chat(home_.path().string(), {"-m", model, "-n", "12"});
    if (!chat.started()) GTEST_SKIP() << "no pseudo terminal to be had";
    ASSERT_TRUE(chat.UntilPrompt()) << chat.seen();
    chat.Expect("A dog.\r", "\033[2m" + shown.substr(0, 8));
    EXPECT_EQ(chat.Leave(), 0);
  }
  TerminalChat plain(home_.path().string(), {"-m", model, "-n", "12"}, {"NO_COLOR=1"});
  ASSERT_TRUE(plain.UntilPrompt()) << plain.seen();
  plain.Expect("A dog.\r", shown.substr(0, 8));
  EXPECT_EQ(plain.seen().find("\033[2m"), std::string::npos) << plain.seen();
  EXPECT_EQ(plain.Leave(), 0);
}

// Answers of a chat through a pipe, a line each.
std::string Piped(const std::string& input, const std::vector<std::string>& more,
                  std::string* error = nullptr) {
  std::vector<std::string> arguments = {"chat", "-m", OuroDemo(), "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  RunOptions piped;
  piped.input = input;
  const RunResult result = Call(arguments, piped);
  EXPECT_EQ(result.code, 0) << result.err;
  if (error != nullptr) *error = result.err;
  return result.out;
}

TEST(ChatCommands, SetSamplingAndSystem) {
  const std::string message = "Tell me a story.\n";
  EXPECT_EQ(Piped("/set temperature 1.5\n/set top-k 40\n/set seed 5\n" + message, {"-n", "16"}),
            Piped(message, {"-n", "16", "--temperature", "1.5", "--top-k", "40", "--seed", "5"}));
  EXPECT_EQ(Piped("/set parameter max_tokens 7\n" + message, {}), Piped(message, {"-n", "7"}));
  EXPECT_EQ(Piped("/system You are a cat.\n" + message, {"-n", "16"}),
            Piped(message, {"-n", "16", "--system", "You are a cat."}));
  const std::string shown = Piped("/set temperature 0.5\n/set\n/bye\nnever said\n", {"-n", "3"});
  EXPECT_NE(shown.find("sampling: temperature 0.5"), std::string::npos) << shown;
  EXPECT_NE(shown.find("max_tokens: 3"), std::string::npos) << shown;
  RunOptions wrong;
  wrong.input = "/set temperature hot\n";
  ExpectRefusal({"chat", OuroDemo()}, {"/set temperature", "hot", "a number"}, wrong);
  wrong.input = "/set max_tokens 0x10\n";  // as an option would be
  ExpectRefusal({"chat", OuroDemo()}, {"/set max_tokens 0x10: not a whole number"}, wrong);
  wrong.input = "/set seed -1\n";
  ExpectRefusal({"chat", OuroDemo()}, {"/set seed -1: expected 0 to"}, wrong);
  wrong.input = "/set warmth 1\n";
  ExpectRefusal({"chat", OuroDemo()}, {"/set warmth: expected one of", "temperature"}, wrong);
  wrong.input = "/set top_p 2\n";
  ExpectRefusal({"chat", OuroDemo()}, {"/set top_p 2: expected above 0, at most 1"}, wrong);
}

TEST(ChatCommands, SaveAndLoad) {
  const Scratch scratch;
  const std::string file = scratch / "talk.json";
  const std::string whole = Piped("A dog.\nA cat.\n", {"-n", "12", "--system", "Be kind."});
  const std::string second = whole.substr(whole.find('\n') + 1);
  Piped("A dog.\n/save " + file + "\n", {"-n", "12", "--system", "Be kind."});
  const Json kept = Json::parse(Slurp(file));
  EXPECT_EQ(kept["messages"].size(), 3u);
  const std::string loaded = Piped("/load " + file + "\nA cat.\n", {"-n", "12"});
  EXPECT_TRUE(loaded.ends_with("\n" + second)) << loaded << "\nexpected at its end\n" << second;
  // What is said of the last message stays in its line.
  const std::string lines =
      scratch.Write("lines.json", R"([{"role": "user", "content": "One line.\nAnother one."}])");
  EXPECT_EQ(Piped("/load " + lines + "\n", {}), "1 messages; the last: One line. Another one.\n");
  RunOptions wrong;
  wrong.input = "/load " + scratch.Write("bad.json", "[{\"role\": 1}]") + "\n";
  ExpectRefusal({"chat", OuroDemo()}, {"bad.json", "role"}, wrong);
}

// A conversation that outgrows its context goes on without its oldest turns, and says so once.
TEST(ChatCommands, AFullContextLosesItsOldestTurns) {
  std::string input;
  for (int i = 0; i < 12; ++i) input += "Tell me a story about a dog.\n";
  std::string told;
  const std::string out = Piped(input, {"-n", "16", "-c", "100"}, &told);
  EXPECT_GE(std::count(out.begin(), out.end(), '\n'), 12);
  const std::string note = "its oldest turns are left out";
  ASSERT_NE(told.find(note), std::string::npos) << told;
  EXPECT_EQ(told.find(note), told.rfind(note)) << told;
}

TEST(ChatCommands, StatsAreSentences) {
  const std::string out = Piped("A dog.\n/stats\n", {"-n", "16"});
  for (const char* words : {"16 tokens at ", "were drafts that proved right (", " first, ",
                            "were computed in full", "tokens came out of every 4 loops"})
    EXPECT_NE(out.find(words), std::string::npos) << words << "\n" << out;
}

TEST(ChatPipe, TakesMessagesOfSeveralLines) {
  const std::string message = "Tom has 3 apples.\nHow many are left?";
  const std::vector<std::string> arguments = {"chat", "-m",        OuroDemo(), "-n",
                                              "16",   "--threads", "1"};
  const Json answer = Generate({"-m", OuroDemo(), "--chat", "-p", message, "-n", "16"});
  const std::string text = answer.at("text").get<std::string>() + "\n";
  RunOptions piped;
  piped.input =
      "Tom has 3 apples.\\\nHow many are left?\n/clear\n\"\"\"\nTom has 3 apples.\nHow many are "
      "left?\n\"\"\"\n";
  const RunResult result = Call(arguments, piped);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, text + text);
}

}  // namespace
}  // namespace loopspec::test
