// A process with given descriptors and limits, and nothing else of ours.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace loopspec::measure {

struct ChildPlan {
  std::vector<std::string> arguments;    // the first is the program's path
  std::vector<std::string> environment;  // all of it
  std::vector<int> descriptors;          // become 3, 4, ... of the child
  int output = -1;                       // becomes 1 and 2; else they lead nowhere
  std::string folder = "/";              // where it runs
  bool as_nobody = false;                // gives up root first
  int cpu_seconds = 0;                   // limits; 0 is none
  size_t memory_bytes = 0;               // of address space
  size_t file_bytes = 0;                 // of any file
  std::vector<std::string> joins;        // files of control groups that take its number
};

struct ChildEnding {
  bool killed = false;  // by us, since its time was over
  int status = 0;       // of exit, 128 and the signal where one ended it, as shells count
  double cpu_seconds = 0;
};

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // Throws Error when there is no process to be had. One whose program cannot be started ends with
  // status 127.
  explicit ChildProcess(ChildPlan plan);
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits for its end, kills it at the deadline.
  ChildEnding Finish(Clock::time_point deadline);

 private:
  pid_t child_ = -1;
};

// What comes out of a pipe until its other end is closed, `most` bytes are read or the time is
// over; the second says whether it was closed.
struct PipeText {
  std::string text;
  bool closed = false;
};
PipeText ReadPipe(int pipe, size_t most, ChildProcess::Clock::time_point deadline);

}  // namespace loopspec::measure
