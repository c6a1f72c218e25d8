#include "trainer_side/commit_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "trainer_side/decision_text_internal.h"

namespace bascule {
namespace {

constexpr std::size_t kMaxJournalBytes = std::size_t{16} << 20;
constexpr mode_t kMode = 0644;

Status Failed(const std::string& what, const std::string& path) {
  return Status::Unavailable("journal_failed", fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

Result<UniqueFd> Open(const std::string& path, int flags) {
  UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, kMode));
  if (!file.valid()) return Failed("open", path);
  return file;
}

// Durable when it returns.
Status Write(const UniqueFd& file, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("write", path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return fsync(file.get()) == 0 ? OkStatus() : Failed("sync", path);
}

Result<std::string> ReadAll(const UniqueFd& file, const std::string& path) {
  std::string text;
  std::array<char, 4096> block;
  while (true) {
    const ssize_t got = read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path);
    if (got == 0) break;
    text.append(block.data(), static_cast<std::size_t>(got));
    if (text.size() > kMaxJournalBytes) return Status::DataLoss("bad_journal", fmt::format("{} is too large", path));
  }
  return text;
}

std::string DirectoryOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

class FileJournal final : public CommitJournal {
 public:
  FileJournal(std::string path, UniqueFd lock, std::optional<CommitDecision> last)
      : path_(std::move(path)), lock_(std::move(lock)), last_(std::move(last)) {}

  std::optional<CommitDecision> last() const override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return last_;
  }

  Status Decide(const WeightVersion& version, const std::vector<std::string>& replicas) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    CommitDecision decision{.version = version, .replicas = replicas, .live = {}};
    RETURN_IF_ERROR(Replace(DecisionText(decision)));
    last_ = std::move(decision);
    return OkStatus();
  }

  Status NoteLive(const std::string& address) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!last_ || !last_->live.insert(address).second) return OkStatus();
    return Replace(DecisionText(*last_));
  }

  Status NoteTakenBack(bool taken_back) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!last_ || std::exchange(last_->taken_back, taken_back) == taken_back) return OkStatus();
    return Replace(DecisionText(*last_));
  }

 private:
  // Either text is there after a crash, whole.
  Status Replace(const std::string& text) REQUIRES(mu_) {
    const std::string draft = path_ + ".new";
    {
      ASSIGN_OR_RETURN(const UniqueFd file, Open(draft, O_WRONLY | O_CREAT | O_TRUNC));
      RETURN_IF_ERROR(Write(file, text, draft));
    }
    if (std::rename(draft.c_str(), path_.c_str()) != 0) return Failed("rename", draft);
    ASSIGN_OR_RETURN(const UniqueFd directory, Open(DirectoryOf(path_), O_RDONLY | O_DIRECTORY));
    return fsync(directory.get()) == 0 ? OkStatus() : Failed("sync the directory of", path_);
  }

  const std::string path_;
  const UniqueFd lock_;
  mutable Mutex mu_;  // Held while the file is written: one writer.
  std::optional<CommitDecision> last_ GUARDED_BY(mu_);
};

}  // namespace

Result<std::unique_ptr<CommitJournal>> OpenCommitJournal(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd lock, Open(path + ".lock", O_RDWR | O_CREAT));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed("lock", path);
    return Status::FailedPrecondition("journal_in_use", fmt::format("another publisher has {} open", path));
  }
  std::optional<CommitDecision> last;
  if (access(path.c_str(), F_OK) == 0) {
    ASSIGN_OR_RETURN(const UniqueFd file, Open(path, O_RDONLY));
    ASSIGN_OR_RETURN(const std::string text, ReadAll(file, path));
    const Result<CommitDecision> parsed = ParseDecision(text);
    if (!parsed.ok()) return parsed.status().WithContext(path);
    last = *parsed;
  }
  return std::unique_ptr<CommitJournal>(std::make_unique<FileJournal>(path, std::move(lock), std::move(last)));
}

}  // namespace bascule
