#include "tests/support/fake_nccl/communicator.h"

#include <cstdlib>
#include <map>
#include <random>
#include <utility>

namespace bascule::fake_nccl {
namespace {

std::uint64_t SeedOfEnvironment() {
  const char* const seed = std::getenv("BASCULE_FAKE_CUDA_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

// Never destroyed: operations may be in streams when the program ends.
struct All {
  Mutex mu;
  std::map<std::uintptr_t, std::shared_ptr<Communicator>> communicators GUARDED_BY(mu);
  std::uintptr_t next GUARDED_BY(mu) = 0x10;
  std::mt19937_64 random GUARDED_BY(mu){SeedOfEnvironment()};
  static All& Get() {
    static auto* const all = new All;
    return *all;
  }
};

}  // namespace

Communicator::~Communicator() { ReleaseBoard(id_); }

void Communicator::Join(bool lost) {
  const MutexLock lock(mu_);
  busy_for_ = static_cast<int>(Draw(6));
  lost_ = lost;
  if (lost) return;
  board_ = OpenBoard(id_);
  int first = 0;
  if (board_ == nullptr) {
    error_ = ncclSystemError;  // nobody listens where the id says
  } else if (!board_->size.compare_exchange_strong(first, size_) && first != size_) {
    error_ = ncclInvalidUsage;
  } else if (board_->device_of.at(static_cast<std::size_t>(rank_)).exchange(device_.number + 1) != 0) {
    error_ = ncclInvalidUsage;
  }
}

ncclResult_t Communicator::State() {
  std::function<void()> due;
  {
    const MutexLock lock(mu_);
    if (busy_for_ > 0) --busy_for_;
    if (busy_for_ == 0) due = std::exchange(later_, nullptr);
  }
  if (due != nullptr) due();  // without the lock, which streams take
  return CurrentState();
}

ncclResult_t Communicator::CurrentState() {
  const MutexLock lock(mu_);
  if (aborted_) return ncclInvalidArgument;
  if (busy_for_ > 0) return ncclInProgress;
  if (error_ != ncclSuccess) return error_;
  if (!joined_) {
    if (lost_ || board_->CountPresent() < size_) return ncclInProgress;
    ReleaseBoard(id_);
    // As NCCL 2.28 does.
    if (board_->TwoShareADevice()) error_ = ncclInvalidUsage;
    joined_ = true;
  }
  return finalizing_ && under_way_ > 0 ? ncclInProgress : error_;
}

bool Communicator::IsUsable() {
  const MutexLock lock(mu_);
  return joined_ && busy_for_ == 0 && error_ == ncclSuccess && !aborted_ && !finalizing_;
}

bool Communicator::EnqueueNowOrLater(std::function<void()> enqueue) {
  const std::uint64_t draw = Draw(8);
  {
    const MutexLock lock(mu_);
    ++under_way_;
    busy_for_ = draw < 4 ? static_cast<int>(draw) : 0;
    if (busy_for_ > 0) later_ = std::move(enqueue);
    if (busy_for_ > 0) return false;
  }
  enqueue();
  return true;
}

void Communicator::Break(ncclResult_t error) {
  const MutexLock lock(mu_);
  error_ = error;
}

void Communicator::Abort() {
  const MutexLock lock(mu_);
  aborted_ = true;
  later_ = nullptr;
}

bool Communicator::aborted() {
  const MutexLock lock(mu_);
  return aborted_;
}

void Communicator::Finalize() {
  const MutexLock lock(mu_);
  finalizing_ = true;
}

void Communicator::NoteRegistered(int count) {
  const MutexLock lock(mu_);
  registrations_ += count;
}

int Communicator::TakeRegistrations() {
  const MutexLock lock(mu_);
  return std::exchange(registrations_, 0);
}

std::shared_ptr<Communicator> Find(ncclComm_t handle) {
  All& all = All::Get();
  const MutexLock lock(all.mu);
  const auto found = all.communicators.find(reinterpret_cast<std::uintptr_t>(handle));
  return found == all.communicators.end() ? nullptr : found->second;
}

ncclComm_t Keep(std::shared_ptr<Communicator> communicator) {
  All& all = All::Get();
  const MutexLock lock(all.mu);
  all.next += 0x10;
  all.communicators.emplace(all.next, std::move(communicator));
  return reinterpret_cast<ncclComm_t>(all.next);
}

std::shared_ptr<Communicator> Forget(ncclComm_t handle) {
  All& all = All::Get();
  const MutexLock lock(all.mu);
  auto found = all.communicators.extract(reinterpret_cast<std::uintptr_t>(handle));
  return found.empty() ? nullptr : std::move(found.mapped());
}

int CountCommunicators() {
  All& all = All::Get();
  const MutexLock lock(all.mu);
  return static_cast<int>(all.communicators.size());
}

std::uint64_t Draw(std::uint64_t below) {
  All& all = All::Get();
  const MutexLock lock(all.mu);
  return all.random() % below;
}

void SetSeed(std::uint64_t seed) {
  All& all = All::Get();
  const MutexLock lock(all.mu);
  all.random.seed(seed);
}

}  // namespace bascule::fake_nccl
