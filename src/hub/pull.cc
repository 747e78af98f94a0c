#include "hub/pull.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "hub/blob.h"
#include "hub/http.h"
#include "hub/listing.h"
#include "hub/settings.h"

namespace loopspec::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kListingAttempts = 4;
constexpr auto kProgressEvery = std::chrono::milliseconds(100);

// Everything but letters, digits and a few signs as %XX.
std::string Quoted(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' || (keep_slashes && c == '/');
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string Gigabytes(int64_t bytes) {
  if (bytes < 1'000'000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) * 1e-9);
}

// Folders are made by whoever comes first.
void MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error && !fs::is_directory(folder))
    Fail("cannot make the folder {}: {}", folder.string(), error.message());
}

// A small file, in place at once or not at all. `scratch`: a name beside it on the same disk.
void WriteAtOnce(const fs::path& path, const fs::path& scratch, const std::string& text) {
  std::ofstream(scratch, std::ios::binary) << text;
  if (rename(scratch.c_str(), path.c_str()) != 0)
    Fail("cannot write {}: {}", path.string(), std::strerror(errno));
}

class Puller {
 public:
  Puller(const PullOptions& options, const Settings& settings)
      : options_(options),
        settings_(settings),
        name_(options.name.repository),
        revision_(options.name.revision.empty() ? "main" : options.name.revision),
        cache_(CacheFolder()),
        repository_(RepositoryFolder(cache_, name_)),
        http_(settings, options.user_agent, [this] { return Stopped(); }) {}

  PullResult Run() {
    listing_ = GetListing();
    if (Stopped()) return Ended(PullResult::Status::kCancelled);
    const std::vector<RemoteFile> describing = DescribingFiles(listing_, name_);
    MakeFolder(repository_ / "blobs");
    for (const RemoteFile& file : describing) Want(file);
    const RemoteFile& config = *listing_.Find("config.json");
    if (!FetchOne(config)) return Ended(PullResult::Status::kCancelled);
    if (options_.check_config)
      options_.check_config(ReadFile(Blob(config)), "config.json of " + name_);
    std::string index;
    if (const RemoteFile* file = listing_.Find(kIndexFile);
        file != nullptr && listing_.Find("model.safetensors") == nullptr) {
      if (!FetchOne(*file)) return Ended(PullResult::Status::kCancelled);
      index = ReadFile(Blob(*file));
    }
    for (const RemoteFile& file : WeightFiles(listing_, index, name_)) Want(file);
    if (options_.verify) DropUnsound();
    const int64_t missing = Missing();
    CheckSpace(missing);
    if (missing > 0 && options_.confirm && !options_.confirm(missing))
      return Ended(PullResult::Status::kDeclined);
    if (!FetchAll()) return Ended(PullResult::Status::kCancelled);
    CheckManifest();
    Publish();
    return Ended(PullResult::Status::kComplete);
  }

 private:
  // A file that is wanted, and how far it is.
  struct Job {
    RemoteFile file;
    BlobProgress progress;
  };

  bool Stopped() const {
    return stop_.load(std::memory_order_relaxed) || (options_.cancelled && options_.cancelled());
  }
  fs::path Blob(const RemoteFile& file) const { return repository_ / "blobs" / file.etag; }
  fs::path Snapshot() const { return repository_ / "snapshots" / listing_.commit; }
  std::string FullName() const {
    return options_.name.revision.empty() ? name_ : name_ + "@" + revision_;
  }

  Listing GetListing() {
    const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true",
                                        settings_.endpoint, name_, Quoted(revision_, false));
    for (int attempt = 1;; ++attempt) {
      const Answer answer = http_.Get(url);
      if (Stopped()) return {};
      if (answer.ok()) return ParseListing(answer.body, name_);
      if (!MayRecover(answer) || attempt == kListingAttempts)
        Fail("{}", Explain(answer, FullName(), !settings_.token.empty()));
      WaitToRetry(
          answer, attempt, FullName(), [this] { return Stopped(); },
          [this](const std::string& sentence) { Tell(sentence); });
    }
  }

  void Tell(const std::string& sentence) {
    const std::lock_guard held(telling_);
    if (options_.notice) options_.notice(sentence);
  }

  void Want(const RemoteFile& file) { jobs_.emplace_back().file = file; }

  Job& JobOf(const RemoteFile& file) {
    return *std::find_if(jobs_.begin(), jobs_.end(),
                         [&](const Job& job) { return job.file.path == file.path; });
  }

  bool Fetch(Http& http, Job& job) {
    BlobRequest request;
    request.file = job.file;
    request.url = fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, name_, listing_.commit,
                              Quoted(job.file.path, true));
    request.what = fmt::format("{} of {}", job.file.path, name_);
    request.blob = Blob(job.file);
    request.lock = LocksFolder(cache_, name_) / (job.file.etag + ".lock");
    request.has_token = !settings_.token.empty();
    request.cancelled = [this] { return Stopped(); };
    request.notice = [this](const std::string& sentence) { Tell(sentence); };
    return FetchBlob(http, request, job.progress);
  }
  bool FetchOne(const RemoteFile& file) { return Fetch(http_, JobOf(file)); }

  int64_t Missing() const {
    int64_t bytes = 0;
    std::set<std::string> counted;  // two files of the same bytes are one blob
    for (const Job& job : jobs_) {
      if (!counted.insert(job.file.etag).second || BlobIsThere(Blob(job.file), job.file.size))
        continue;
      bytes += job.file.size - PartialBytes(Blob(job.file), job.file.size);
    }
    return bytes;
  }

  void CheckSpace(int64_t missing) const {
    struct statvfs disk {};
    if (missing == 0 || statvfs(repository_.c_str(), &disk) != 0) return;
    const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
    if (static_cast<double>(missing) > free)
      Fail("{} needs {} more in {}, where {} are free", FullName(), Gigabytes(missing),
           cache_.string(), Gigabytes(static_cast<int64_t>(free)));
  }

  // Takes away blobs whose bytes are not what their names say.
  void DropUnsound() {
    for (const Job& job : jobs_) {
      if (Stopped()) return;
      const fs::path blob = Blob(job.file);
      if (BlobIsThere(blob, job.file.size) && !BlobIsSound(blob, job.file)) unlink(blob.c_str());
    }
  }

  // Several at a time, the largest first. False when cancelled; throws the first failure.
  bool FetchAll() {
    std::vector<Job*> order;
    for (Job& job : jobs_) order.push_back(&job);
    std::stable_sort(order.begin(), order.end(),
                     [](const Job* a, const Job* b) { return a->file.size > b->file.size; });
    const int threads = std::clamp(options_.jobs, 1, static_cast<int>(order.size()));
    std::atomic<size_t> next{0};
    std::atomic<int> running{threads};
    std::mutex mutex;
    std::exception_ptr failure;
    std::vector<std::thread> team;
    for (int i = 0; i < threads; ++i) {
      team.emplace_back([&] {
        try {
          Http http(settings_, options_.user_agent, [this] { return Stopped(); });
          for (size_t at = next++; at < order.size() && !Stopped(); at = next++)
            Fetch(http, *order[at]);
        } catch (...) {
          const std::lock_guard held(mutex);
          if (!failure) failure = std::current_exception();
          stop_ = true;  // the others end too; what they have stays
        }
        --running;
      });
    }
    while (running > 0) {
      ShowProgress();
      std::this_thread::sleep_for(kProgressEvery);
    }
    for (std::thread& thread : team) thread.join();
    if (failure) std::rethrow_exception(failure);
    if (Stopped()) return false;
    ShowProgress();
    return true;
  }

  void ShowProgress() const {
    if (!options_.progress) return;
    int64_t done = 0, total = 0;
    for (const Job& job : jobs_) {
      done += job.progress.done;
      total += job.file.size;
    }
    options_.progress(done, total);
  }

  // The release's own manifest, where it has one, must say the same of every file as the Hub.
  void CheckManifest() const {
    const RemoteFile* manifest = listing_.Find(kManifestFile);
    if (manifest == nullptr) return;
    const std::string what = fmt::format("{} of {}", kManifestFile, name_);
    for (const RemoteFile& said : ParseManifest(ReadFile(Blob(*manifest)), what)) {
      for (const Job& job : jobs_) {
        if (job.file.path != said.path) continue;
        const bool same =
            job.file.size == said.size &&
            (job.file.lfs ? job.file.etag == said.etag : BlobIsSound(Blob(job.file), said));
        if (!same)
          Fail("{}: {} is said to have {} bytes and sha256 {}, the repository's file has others",
               what, said.path, said.size, said.etag);
      }
    }
  }

  // Links and the reference, once all blobs are there. config.json is linked last: a snapshot that
  // has it is complete.
  void Publish() {
    MakeFolder(Snapshot());
    for (const Job& job : jobs_) {
      if (job.file.path != "config.json") Link(job.file);
    }
    Link(*listing_.Find("config.json"));
    const fs::path scratch =
        repository_ / "blobs" / fmt::format("reference-{}.incomplete", getpid());
    if (revision_ != listing_.commit) {
      const fs::path reference = repository_ / "refs" / revision_;
      std::error_code error;
      if (!fs::is_regular_file(reference, error) || ReadFile(reference, 4096) != listing_.commit) {
        MakeFolder(reference.parent_path());
        WriteAtOnce(reference, scratch, listing_.commit);
      }
    }
    // For programs that make backups (https://bford.info/cachedir/).
    std::error_code error;
    if (const fs::path tag = cache_ / "CACHEDIR.TAG"; !fs::exists(tag, error))
      WriteAtOnce(tag, scratch,
                  "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of the Hugging Face "
                  "Hub.\n");
  }

  void Link(const RemoteFile& file) const {
    const fs::path link = Snapshot() / file.path;
    fs::path target = "../../blobs/" + file.etag;
    for (const char c : file.path) {
      if (c == '/') target = ".." / target;
    }
    std::error_code error;
    if (fs::read_symlink(link, error) == target) return;
    MakeFolder(link.parent_path());
    if (symlink(target.c_str(), link.c_str()) == 0) return;
    // Another program's, or a copy where a file system has no links: it is good if it has the size.
    if (errno == EEXIST &&
        (fs::read_symlink(link, error) == target || BlobIsThere(link, file.size)))
      return;
    fs::remove(link, error);
    if (symlink(target.c_str(), link.c_str()) != 0 && fs::read_symlink(link, error) != target)
      Fail("cannot make the link {}: {}", link.string(), std::strerror(errno));
  }

  PullResult Ended(PullResult::Status status) const {
    PullResult result;
    result.status = status;
    result.folder = Snapshot();
    result.commit = listing_.commit;
    result.files = static_cast<int>(jobs_.size());
    for (const Job& job : jobs_) {
      result.bytes += job.file.size;
      result.received += job.progress.received;
    }
    return result;
  }

  const PullOptions& options_;
  const Settings& settings_;
  const std::string name_, revision_;
  const fs::path cache_, repository_;
  std::atomic<bool> stop_{false};
  std::mutex telling_;
  Http http_;  // of the caller's thread
  Listing listing_;
  std::deque<Job> jobs_;
};

}  // namespace

bool CanPull() {
  return true;
}

int VerifyFiles(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  if (!FileExists(path))
    Fail("{} has no {}, which says what its files should be", folder.string(), kManifestFile);
  const std::vector<RemoteFile> files = ParseManifest(ReadFile(path), path.string());
  for (const RemoteFile& file : files) {
    const fs::path at = folder / file.path;
    if (!FileExists(at)) Fail("{} is missing, expected {} bytes", at.string(), file.size);
    std::error_code error;
    if (const auto size = fs::file_size(at, error);
        error || size != static_cast<uintmax_t>(file.size))
      Fail("{} has {} bytes, expected {}", at.string(), size, file.size);
    if (!BlobIsSound(at, file))
      Fail("{}: its sha256 is not {}, which {} expects", at.string(), file.etag, kManifestFile);
  }
  return static_cast<int>(files.size());
}

PullResult Pull(const PullOptions& options) {
  CheckName(options.name);
  const Settings settings = ReadSettings();
  if (!settings.offline) return Puller(options, settings).Run();
  PullResult result;
  result.status = PullResult::Status::kOffline;
  result.folder =
      FindSnapshot(RepositoryFolder(CacheFolder(), options.name.repository), options.name.revision);
  if (result.folder.empty())
    Fail("{} is not in the cache {}, and HF_HUB_OFFLINE is set", options.name.repository,
         CacheFolder().string());
  result.commit = result.folder.filename().string();
  return result;
}

}  // namespace loopspec::hub
