// Where a batch's answers go: a file that holds every answer from the moment it is finished, or a
// stream that is read as it comes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace loopspec::serve {

// An answer is appended with its line break in one piece as soon as it is there, in any order, so
// that a process that is killed loses no finished answer. Sort() replaces the file as a whole, so
// that it holds all answers whenever the process ends.
class BatchOutput {
 public:
  // Opens the file, or standard output for "-". One process at a time has a file. A line that an
  // earlier run could not finish is taken away. Throws Error when the file holds anything but
  // answers, cannot be written, or is another run's.
  explicit BatchOutput(const std::string& path);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  // Whether it can be put in order when all is done. Else it is a pipe or a terminal, whose reader
  // gets lines in the order in which they are added.
  bool is_file() const { return is_file_; }
  // Ids that have an answer in the file.
  const std::set<std::string>& answered() const { return answered_; }

  // `line` is the answer to the request `id`. Throws Error.
  void Add(const std::string& id, const std::string& line);
  // Puts the answers in the order of these ids; what else the file holds stays before them. Throws
  // Error, and leaves the file as it was, when there is no room.
  void Sort(const std::vector<std::string>& ids);

 private:
  struct Line {
    std::string id;
    int64_t begin = 0, size = 0;  // bytes in the file, with the line break
  };

  void Open();
  void ReadLines();
  void WriteSorted(const std::vector<const Line*>& order, const std::string& temporary);

  const std::string path_;
  std::string name_;  // in messages
  int file_ = -1;
  bool is_file_ = false;
  bool fresh_ = false;  // it was not there before
  int64_t size_ = 0;
  std::vector<Line> lines_;
  std::set<std::string> answered_;
};

}  // namespace loopspec::serve
