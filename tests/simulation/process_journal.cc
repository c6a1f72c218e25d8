#include "tests/simulation/process_journal.h"

namespace bascule::simulation {
namespace {

Status Killed() { return Status::Unavailable("journal_failed", "the process is killed"); }

std::shared_ptr<CommitJournal> Open(const std::string& path, Clock& clock) {
  while (true) {
    Result<std::unique_ptr<CommitJournal>> opened = OpenCommitJournal(path);
    if (opened.ok()) return *std::move(opened);
    CHECK(opened.status().reason() == "journal_in_use");
    clock.SleepUntil(clock.Now() + std::chrono::milliseconds(1), {});
  }
}

}  // namespace

ProcessJournal::ProcessJournal(const std::string& path, FleetPromises& promises, Clock& clock)
    : promises_(promises), file_(Open(path, clock)) {}

std::optional<CommitDecision> ProcessJournal::last() const {
  const std::shared_ptr<CommitJournal> file = file_;
  return file == nullptr ? std::nullopt : file->last();
}

Status ProcessJournal::Decide(const WeightVersion& version, const std::vector<std::string>& replicas) {
  const std::shared_ptr<CommitJournal> file = file_;
  if (file == nullptr) return Killed();
  RETURN_IF_ERROR(file->Decide(version, replicas));
  promises_.Decided(version, replicas);
  return OkStatus();
}

Status ProcessJournal::NoteLive(const std::string& address) {
  const std::shared_ptr<CommitJournal> file = file_;
  return file == nullptr ? Killed() : file->NoteLive(address);
}

Status ProcessJournal::NoteTakenBack(bool taken_back) {
  const std::shared_ptr<CommitJournal> file = file_;
  return file == nullptr ? Killed() : file->NoteTakenBack(taken_back);
}

}  // namespace bascule::simulation
