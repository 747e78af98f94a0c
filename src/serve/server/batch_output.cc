#include "serve/server/batch_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace loopspec::serve {
namespace {

// A killed process may take a moment to let go of its file.
constexpr int kLockTries = 50;
constexpr std::chrono::milliseconds kLockWait{100};

// False, and errno says why, when not all of it could be written.
bool WriteAll(int file, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = write(file, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

// False when another process has the file. A file system without locks lets everybody in.
bool Lock(int file) {
  for (int i = 0; i < kLockTries; ++i) {
    if (flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    std::this_thread::sleep_for(kLockWait);
  }
  return false;
}

// Whether the path still leads to the open file: who held it before may have replaced it.
bool IsAt(int file, const std::string& path) {
  struct stat open_one {
  }, named{};
  return fstat(file, &open_one) == 0 && stat(path.c_str(), &named) == 0 &&
         open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

}  // namespace

BatchOutput::BatchOutput(const std::string& path)
    : path_(path), name_(path == "-" ? "standard output" : path) {
  if (path == "-") {
    file_ = STDOUT_FILENO;
    return;
  }
  Open();
  if (is_file_) ReadLines();
}

BatchOutput::~BatchOutput() {
  if (path_ == "-") return;
  if (fresh_ && size_ == 0) unlink(path_.c_str());  // nothing came of it
  close(file_);
}

void BatchOutput::Open() {
  fresh_ = access(path_.c_str(), F_OK) != 0;
  for (int i = 0; i < kLockTries; ++i) {
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0) Fail("{} cannot be written: {}", path_, std::strerror(errno));
    struct stat info {};
    if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) return;
    is_file_ = true;
    const bool locked = Lock(file_);
    if (locked && IsAt(file_, path_)) return;
    close(file_);
    if (!locked) Fail("{} is being written by another process", path_);
  }
  Fail("{} is replaced again and again by other processes", path_);
}

void BatchOutput::ReadLines() {
  std::ifstream in(path_, std::ios::binary);
  std::string text;
  for (int number = 1; std::getline(in, text); ++number) {
    if (in.eof()) {  // without a line break: the run ended while it was written
      if (ftruncate(file_, size_) != 0)
        Fail("{} cannot be written: {}", path_, std::strerror(errno));
      return;
    }
    const std::string where = fmt::format("{}, line {}", path_, number);
    const Json json = ParseJson(text, where);
    const auto id = json.is_object() ? FindString(json, "custom_id", where) : std::nullopt;
    if (!id) Fail("{}: no answer of a batch: is this the right file?", where);
    lines_.push_back({*id, size_, static_cast<int64_t>(text.size()) + 1});
    size_ += lines_.back().size;
    answered_.insert(*id);
  }
  if (in.bad()) Fail("{} cannot be read", path_);
}

void BatchOutput::Add(const std::string& id, const std::string& line) {
  const std::string text = line + "\n";
  if (!WriteAll(file_, text.data(), text.size()))
    Fail("{} cannot be written: {}", name_, std::strerror(errno));
  if (!is_file_) return;
  lines_.push_back({id, size_, static_cast<int64_t>(text.size())});
  size_ += lines_.back().size;
  answered_.insert(id);
}

void BatchOutput::Sort(const std::vector<std::string>& ids) {
  if (!is_file_) return;
  std::map<std::string, size_t> rank;  // 0: not one of them
  for (const std::string& id : ids) rank.emplace(id, rank.size() + 1);
  const auto rank_of = [&](const Line* line) {
    const auto found = rank.find(line->id);
    return found == rank.end() ? 0 : found->second;
  };
  const auto before = [&](const Line* a, const Line* b) { return rank_of(a) < rank_of(b); };
  std::vector<const Line*> order;
  for (const Line& line : lines_) order.push_back(&line);
  if (std::is_sorted(order.begin(), order.end(), before)) return;
  std::stable_sort(order.begin(), order.end(), before);
  std::error_code error;
  const std::string target = std::filesystem::canonical(path_, error).string();  // behind a link
  const std::string temporary = target + ".partial";
  errno = 0;
  try {
    if (error) throw Error(error.message());
    WriteSorted(order, temporary);
    if (std::rename(temporary.c_str(), target.c_str()) != 0) throw Error(std::strerror(errno));
  } catch (const Error& failure) {
    unlink(temporary.c_str());
    Fail("{} holds every answer, but cannot be put in order: {}", path_, failure.what());
  }
}

void BatchOutput::WriteSorted(const std::vector<const Line*>& order, const std::string& temporary) {
  struct File {
    int descriptor;
    ~File() { close(descriptor); }
  };
  struct stat info {};
  const File out{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (out.descriptor < 0 || fstat(file_, &info) != 0 ||
      fchmod(out.descriptor, info.st_mode & 07777) != 0)
    throw Error(std::strerror(errno));
  std::ifstream in(path_, std::ios::binary);
  std::string text;
  for (const Line* line : order) {
    text.resize(static_cast<size_t>(line->size));
    in.seekg(line->begin);
    if (!in.read(text.data(), line->size)) throw Error("it cannot be read");
    if (!WriteAll(out.descriptor, text.data(), text.size())) throw Error(std::strerror(errno));
  }
  if (fsync(out.descriptor) != 0) throw Error(std::strerror(errno));
}

}  // namespace loopspec::serve
