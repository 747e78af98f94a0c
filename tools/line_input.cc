#include "tools/line_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string_view>

#include "base/environment.h"
#include "base/json.h"
#include "tools/progress.h"

namespace loopspec::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlock = "\"\"\"";
constexpr std::string_view kPasteEnd = "\033[201~";
constexpr size_t kKept = 1000;  // messages of the history

std::atomic<bool> chat_interrupted{false};
void OnChatInterrupt(int) {
  chat_interrupted.store(true, std::memory_order_relaxed);
}

// Characters of the terminal are UTF-8, also where nobody has set a locale.
void UseUtf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

// One byte from the terminal; -1 after Ctrl-C and at the end.
int ReadByte() {
  unsigned char byte = 0;
  while (!ChatInterrupted()) {
    // With a limit: a signal may come between the look at the flag and the wait.
    pollfd wait = {STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&wait, 1, 200);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t count = read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    return count == 1 ? byte : -1;
  }
  return -1;
}

// A character for the editor: 1, 0 at the end, -1 after Ctrl-C.
int ReadCharacter(EditLine*, wchar_t* character) {
  std::mbstate_t state{};
  while (true) {
    const int byte = ReadByte();
    if (byte < 0) return ChatInterrupted() ? -1 : 0;
    const char as_char = static_cast<char>(byte);
    const size_t used = std::mbrtowc(character, &as_char, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // its first bytes
    if (used == static_cast<size_t>(-1)) {          // no UTF-8: leave it out
      state = std::mbstate_t{};
      continue;
    }
    return 1;
  }
}

// What stands between the terminal's marks of a paste goes into the line, with its line breaks.
unsigned char InsertPaste(EditLine* editor, int) {
  std::string text;
  while (!text.ends_with(kPasteEnd)) {
    const int byte = ReadByte();
    if (byte < 0) return CC_EOF;
    text += static_cast<char>(byte);
  }
  text.resize(text.size() - kPasteEnd.size());
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    const char c = text[i] == '\r' ? '\n' : text[i];
    // Keys that a paste cannot press: escapes would be drawn, not obeyed.
    if (static_cast<unsigned char>(c) >= ' ' || c == '\n' || c == '\t') clean += c;
  }
  return !clean.empty() && el_insertstr(editor, clean.c_str()) == 0 ? CC_REFRESH : CC_NORM;
}

}  // namespace

QuietInterruptKey::QuietInterruptKey() {
  termios settings{};
  if (tcgetattr(STDIN_FILENO, &settings) != 0 || (settings.c_lflag & ECHOCTL) == 0) return;
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHOCTL | ECHO);
  changed_ = tcsetattr(STDIN_FILENO, TCSANOW, &settings) == 0;
}
QuietInterruptKey::~QuietInterruptKey() {
  termios settings{};
  if (!changed_ || tcgetattr(STDIN_FILENO, &settings) != 0) return;
  settings.c_lflag |= ECHOCTL | ECHO;
  tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

void CatchChatInterrupt() {
  struct sigaction action {};
  action.sa_handler = OnChatInterrupt;  // without SA_RESTART: reading comes back
  sigaction(SIGINT, &action, nullptr);
}
bool ChatInterrupted() {
  return chat_interrupted.load(std::memory_order_relaxed);
}
void ForgetChatInterrupt() {
  chat_interrupted = false;
}

std::string DefaultHistoryFile() {
  const std::filesystem::path state = UserFolder("XDG_STATE_HOME", ".local/state");
  return state.empty() ? "" : (state / "loopspec/chat_history").string();
}

// The editor and its history. The file has a JSON string per line: messages may have several.
struct LineInput::Terminal {
  explicit Terminal(std::string file) : history_file(std::move(file)) {
    UseUtf8();
    editor = el_init("loopspec", stdin, stdout, stderr);
    past = history_init();
    HistEvent event;
    history(past, &event, H_SETSIZE, static_cast<int>(kKept));
    history(past, &event, H_SETUNIQUE, 1);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(
        editor, EL_PROMPT, +[](EditLine* self) {  // +: a pointer for the list of arguments
          Terminal* terminal = nullptr;
          el_get(self, EL_CLIENTDATA, &terminal);
          return terminal->prompt.data();
        });
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, history, past);
    el_set(editor, EL_GETCFN, ReadCharacter);
    // Wide: of a narrow name it would keep copies that it never frees.
    el_wset(editor, EL_ADDFN, L"paste", L"Insert what the terminal pastes", InsertPaste);
    el_set(editor, EL_BIND, "\033[200~", "paste", nullptr);
    el_source(editor, nullptr);  // ~/.editrc
    Load();
  }
  ~Terminal() {
    history_end(past);
    el_end(editor);
  }

  void Load() {
    if (history_file.empty()) return;
    std::deque<std::string> messages;
    size_t lines = 0;
    {
      std::ifstream in(history_file, std::ios::binary);
      for (std::string line; std::getline(in, line); ++lines) {
        const Json message = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (message.is_string()) messages.push_back(message.get<std::string>());
        if (messages.size() > kKept) messages.pop_front();
      }
    }
    HistEvent event;
    for (const std::string& message : messages) history(past, &event, H_ENTER, message.c_str());
    if (lines <= 2 * kKept) return;
    std::error_code ignored;
    fs::remove(history_file, ignored);
    for (const std::string& message : messages) Append(message);
  }
  // History is a convenience: where it cannot be kept, nothing is said.
  void Append(const std::string& message) const {
    std::error_code ignored;
    fs::create_directories(fs::path(history_file).parent_path(), ignored);
    const int file =
        open(history_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0) return;
    const std::string line =
        Json(message).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (write(file, line.data(), line.size()) < 0) errno = 0;
    close(file);
  }
  void Remember(const std::string& message) const {
    HistEvent event;
    history(past, &event, H_ENTER, message.c_str());
    if (!history_file.empty()) Append(message);
  }

  EditLine* editor = nullptr;
  History* past = nullptr;
  const std::string history_file;
  std::string prompt;
};

LineInput::LineInput(const std::string& history_file) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0)
    terminal_ = std::make_unique<Terminal>(history_file);
}
LineInput::~LineInput() = default;

bool LineInput::terminal() const {
  return terminal_ != nullptr;
}

LineInput::End LineInput::ReadLine(const char* prompt, std::string& line) {
  if (!terminal_) {
    if (!std::getline(std::cin, line)) return End::kInput;
    if (line.ends_with('\r')) line.pop_back();  // lines of a file from Windows
    return End::kLine;
  }
  ForgetChatInterrupt();
  terminal_->prompt = prompt;
  std::fflush(stdout);
  const bool pastes = CanErase(STDOUT_FILENO);
  if (pastes) fmt::print("\033[?2004h");  // mark what is pasted
  std::fflush(stdout);
  int count = 0;
  el_resize(terminal_->editor);
  const char* text = el_gets(terminal_->editor, &count);
  if (pastes) fmt::print("\033[?2004l");
  if (ChatInterrupted() || text == nullptr || count <= 0) {
    fmt::print("\n");
    return ChatInterrupted() ? End::kInterrupt : End::kInput;
  }
  line.assign(text, static_cast<size_t>(count));
  if (line.ends_with('\n')) line.pop_back();
  return End::kLine;
}

std::optional<std::string> LineInput::Next() {
  std::string message, line;
  End end = ReadLine("> ", message);
  if (end == End::kInput) return std::nullopt;
  if (end == End::kInterrupt) return "";
  if (message.starts_with(kBlock)) {
    message.erase(0, kBlock.size());
    while (!message.ends_with(kBlock) && (end = ReadLine("... ", line)) == End::kLine)
      message += "\n" + line;
    if (message.ends_with(kBlock)) message.resize(message.size() - kBlock.size());
    if (message.starts_with('\n')) message.erase(0, 1);
    if (message.ends_with('\n')) message.pop_back();
  } else {
    while (message.ends_with('\\')) {
      message.back() = '\n';
      if ((end = ReadLine("... ", line)) != End::kLine) break;
      message += line;
    }
  }
  if (end == End::kInterrupt) return "";
  if (terminal_ && !message.empty()) terminal_->Remember(message);
  return message;
}

}  // namespace loopspec::tools
