// One rank of a communicator of the fake.
//
// Thread-safety: thread-safe.
#pragma once

#include <nccl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "tests/support/fake_nccl/board.h"

namespace bascule::fake_nccl {

struct DeviceOfRank {
  int ordinal = 0;  // what this process calls it
  int number = 0;   // of all devices
  int multiprocessors = 0;
};

class Communicator {
 public:
  Communicator(const ncclUniqueId& id, int rank, int size, const DeviceOfRank& device, int ctas)
      : id_(id), rank_(rank), size_(size), device_(device), ctas_(ctas) {}
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const DeviceOfRank& device() const { return device_; }
  int ctas() const { return ctas_; }  // of each of its kernels

  // Comes to the board. `lost`: it does not, and neither does anybody else.
  void Join(bool lost) EXCLUDES(mu_);
  // See ncclCommGetAsyncError.
  ncclResult_t State() EXCLUDES(mu_);
  // Whether State has said that all is well since the last call that took a while.
  bool IsUsable() EXCLUDES(mu_);
  // Runs `enqueue`: now, or when some calls of State, which say that it is in progress, have been made. False: later.
  bool EnqueueNowOrLater(std::function<void()> enqueue) EXCLUDES(mu_);
  void Break(ncclResult_t error) EXCLUDES(mu_);
  // Nothing of it runs any more: what is in streams ends without having done anything.
  void Abort() EXCLUDES(mu_);
  bool aborted() EXCLUDES(mu_);
  void Finalize() EXCLUDES(mu_);
  void NoteRegistered(int count) EXCLUDES(mu_);
  int TakeRegistrations() EXCLUDES(mu_);

 private:
  friend class Operation;
  ncclResult_t CurrentState() EXCLUDES(mu_);
  const ncclUniqueId id_;
  const int rank_;
  const int size_;
  const DeviceOfRank device_;
  const int ctas_;
  Mutex mu_;
  std::shared_ptr<Board> board_ GUARDED_BY(mu_);
  bool joined_ GUARDED_BY(mu_) = false;
  bool lost_ GUARDED_BY(mu_) = false;
  bool aborted_ GUARDED_BY(mu_) = false;
  bool finalizing_ GUARDED_BY(mu_) = false;
  int busy_for_ GUARDED_BY(mu_) = 0;  // calls of State
  std::function<void()> later_ GUARDED_BY(mu_);
  int under_way_ GUARDED_BY(mu_) = 0;  // operations that are not done
  int registrations_ GUARDED_BY(mu_) = 0;
  ncclResult_t error_ GUARDED_BY(mu_) = ncclSuccess;
  std::array<std::uint64_t, kMaxRanks> sent_ GUARDED_BY(mu_){};  // messages, by peer
  std::array<std::uint64_t, kMaxRanks> received_ GUARDED_BY(mu_){};
};

// The communicators of this process, by their handles.
std::shared_ptr<Communicator> Find(ncclComm_t handle);
ncclComm_t Keep(std::shared_ptr<Communicator> communicator);
// Null: there is none of this handle.
std::shared_ptr<Communicator> Forget(ncclComm_t handle);
int CountCommunicators();

// A number below `below`, drawn from the seed.
std::uint64_t Draw(std::uint64_t below);
void SetSeed(std::uint64_t seed);

}  // namespace bascule::fake_nccl
