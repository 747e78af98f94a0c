// What a person says in a conversation: lines from a terminal with editing and history, or from a
// pipe as they are.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace loopspec::tools {

// A message is a line. A line that ends with a backslash goes on in the next; """ begins a message
// of several lines, which ends with """; what is pasted at a terminal is one message, whatever line
// breaks it has.
class LineInput {
 public:
  // Where entered messages are kept between runs, unless empty.
  explicit LineInput(const std::string& history_file);
  ~LineInput();

  bool terminal() const;
  // Nothing at the end of input; an empty message when Ctrl-C dropped it.
  std::optional<std::string> Next();

 private:
  struct Terminal;
  enum class End { kLine, kInterrupt, kInput };
  End ReadLine(const char* prompt, std::string& line);

  std::unique_ptr<Terminal> terminal_;  // else a pipe
};

// $XDG_STATE_HOME/loopspec/chat_history, or under ~/.local/state; empty without a home.
std::string DefaultHistoryFile();

// While it lives, the terminal does not write ^C for Ctrl-C into the text.
class QuietInterruptKey {
 public:
  QuietInterruptKey();
  ~QuietInterruptKey();
  QuietInterruptKey(const QuietInterruptKey&) = delete;
  QuietInterruptKey& operator=(const QuietInterruptKey&) = delete;

 private:
  bool changed_ = false;
};

// Ctrl-C: sets a flag that ReadLine and the answer's loop look at.
void CatchChatInterrupt();
bool ChatInterrupted();
void ForgetChatInterrupt();

}  // namespace loopspec::tools
