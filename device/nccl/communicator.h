// One rank of an NCCL communicator. It is made with `blocking = 0`: calls return at once and NCCL goes on with a thread
// of its own.
//
// Thread-safety: thread-safe. The lock is held while NCCL is called, which does not wait for peers; what may wait
// (ncclCommAbort, ncclCommDestroy) runs without it.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "device/communicator.h"
#include "device/nccl/cta_budget.h"
#include "device/nccl/library.h"

namespace bascule {

class NcclCommunicator final : public Communicator {
 public:
  // With kernels of `ctas` CTAs at most, the same at all ranks. As Communicators::Join.
  static Result<std::unique_ptr<NcclCommunicator>> Join(const NcclLibrary& nccl, Device& device,
                                                        const CommunicatorId& id, int rank, int size, int ctas);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<bool> Settled() override EXCLUDES(mu_);
  Status Register(std::span<std::byte> memory) override EXCLUDES(mu_);
  Status Move(std::span<const Transfer> transfers, DeviceStream& stream) override EXCLUDES(mu_);
  Status Broadcast(std::span<std::byte> memory, int root, DeviceStream& stream) override EXCLUDES(mu_);
  // Into the calling thread's group: the first `count` floats become their sum over the ranks.
  Status AddSumToGroup(float* data, std::int64_t count, DeviceStream& stream) EXCLUDES(mu_);
  Status Close(Deadline deadline, Clock& clock) override EXCLUDES(mu_);
  Status Abort(Deadline deadline, Clock& clock) override EXCLUDES(mu_);

 private:
  NcclCommunicator(const NcclLibrary& nccl, const DeviceDescription& device, int rank, int size, CtaShare share)
      : nccl_(nccl), device_(device), rank_(rank), size_(size), share_(std::move(share)) {}

  Result<bool> AskSettled() REQUIRES(mu_);
  Status CheckUsable() REQUIRES(mu_);
  // What a call answered; the first error is this communicator's last word.
  Status Note(ncclResult_t result, std::string_view call) REQUIRES(mu_);
  Status BeginToFinish() EXCLUDES(mu_);
  // From now on nobody uses it but the caller. Null: it is gone already.
  ncclComm_t Take(std::string_view why) EXCLUDES(mu_);
  // `end` destroys or aborts what was taken. Where it comes back, no kernel of its runs any more.
  Result<ncclResult_t> End(decltype(NcclLibrary::comm_abort) end, ncclComm_t taken, Deadline deadline, Clock& clock)
      EXCLUDES(mu_);

  const NcclLibrary& nccl_;
  const DeviceDescription& device_;
  const int rank_;
  const int size_;
  Mutex mu_;
  ncclComm_t communicator_ GUARDED_BY(mu_) = nullptr;
  std::vector<void*> registered_ GUARDED_BY(mu_);
  Status failed_ GUARDED_BY(mu_);
  CtaShare share_ GUARDED_BY(mu_);
};

}  // namespace bascule
