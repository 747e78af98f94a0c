#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace loopspec {
namespace {

std::string Reason() {
  return std::strerror(errno);
}

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Opens a regular file of at most `limit` bytes. What lies there is looked at before it is opened,
// since opening alone may wait (a pipe) or do something (a device), and again afterwards.
int OpenRegular(const std::filesystem::path& path, size_t limit, size_t& size) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT)
      throw FileMissing(fmt::format("cannot open {}: {}", path.string(), Reason()));
    Fail("cannot open {}: {}", path.string(), Reason());
  }
  if (!S_ISREG(info.st_mode)) {
    Fail("cannot read {}: it is {}, expected a regular file", path.string(), KindOf(info.st_mode));
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) Fail("cannot open {}: {}", path.string(), Reason());
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  size = static_cast<size_t>(info.st_size);
  if (!regular || size > limit) {
    close(fd);
    if (!regular) Fail("cannot read {}: not a regular file", path.string());
    Fail("cannot read {}: it has {} bytes, the limit is {}", path.string(), size, limit);
  }
  return fd;
}

// ---- Which addresses belong to which file, readable from a signal handler ----

// A node belongs to one live mapping, or waits for the next one (begin is 0). Nodes are never
// freed: the handler may walk the list at any moment.
struct MappedRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  char path[512] = {};
  MappedRange* next = nullptr;
};

std::atomic<MappedRange*> ranges{nullptr};
std::mutex ranges_mutex;  // among those that register, not for the handler

void Register(const std::byte* data, size_t size, const std::string& path) {
  const std::lock_guard lock(ranges_mutex);
  MappedRange* range = ranges.load();
  while (range != nullptr && range->begin.load() != 0) range = range->next;
  if (range == nullptr) {
    range = new MappedRange;
    range->next = ranges.load();
    ranges.store(range);
  }
  const std::string shown = Printable(path);
  const size_t length = std::min(shown.size(), sizeof(range->path) - 1);
  std::memcpy(range->path, shown.data(), length);
  range->path[length] = '\0';
  range->end.store(reinterpret_cast<uintptr_t>(data) + size);
  range->begin.store(reinterpret_cast<uintptr_t>(data));
}

void Unregister(const std::byte* data) {
  const std::lock_guard lock(ranges_mutex);
  for (MappedRange* range = ranges.load(); range != nullptr; range = range->next) {
    if (range->begin.load() == reinterpret_cast<uintptr_t>(data)) return range->begin.store(0);
  }
}

struct sigaction previous_action {};

void Say(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

// Only what may be called in a signal handler.
void OnBusError(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedRange* range = ranges.load(); range != nullptr; range = range->next) {
    const uintptr_t begin = range->begin.load();
    // The last page is mapped as a whole.
    if (begin == 0 || address < begin || address >= range->end.load() + 65536) continue;
    Say("loopspec: ");
    Say(range->path);
    Say(": the file was cut short or could not be read while it was in use\n");
    _exit(2);
  }
  // Not ours: the instruction runs again, under the handler that was there before.
  sigaction(SIGBUS, &previous_action, nullptr);
}

}  // namespace

void ReportMappedFileFaults() {
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &previous_action);
}

MappedFile::MappedFile(const std::filesystem::path& path, size_t limit) {
  const Descriptor file(OpenRegular(path, limit, size_));
  if (size_ == 0) return;
  void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) Fail("cannot map {}: {}", path.string(), Reason());
  data_ = static_cast<const std::byte*>(address);
  Register(data_, size_, path.string());
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  Unregister(data_);
  munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::Advise(size_t offset, size_t size, int advice) const {
  if (data_ == nullptr || offset >= size_) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = std::min(size_, offset + size);
  madvise(const_cast<std::byte*>(data_) + begin, end - begin,
          advice);  // a hint: failure is harmless
}

void MappedFile::WillNeed(size_t offset, size_t size) const {
  Advise(offset, size, MADV_WILLNEED);
}
void MappedFile::DontNeed(size_t offset, size_t size) const {
  Advise(offset, size, MADV_DONTNEED);
}

std::string ReadFile(const std::filesystem::path& path, size_t limit) {
  size_t size = 0;
  const Descriptor file(OpenRegular(path, limit, size));
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t count = read(file.get(), text.data() + done, size - done);
    if (count < 0) Fail("cannot read {}: {}", path.string(), Reason());
    if (count == 0) break;  // it has become shorter
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

bool FileExists(const std::filesystem::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) return true;
  const int why = errno;
  if (why == ENOENT && lstat(path.c_str(), &info) == 0) {
    std::error_code ignored;
    Fail("{} is a link to {}, where nothing is", path.string(),
         std::filesystem::read_symlink(path, ignored).string());
  }
  if (why != ENOENT && why != ENOTDIR && why != ENAMETOOLONG)
    Fail("cannot look at {}: {}", path.string(), std::strerror(why));
  return false;
}

}  // namespace loopspec
