// Sums over the devices of a process: one communicator, whose ranks are all here. One call hands the sums of all ranks
// to NCCL as one group, since one after another each would wait for the next.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <memory>
#include <vector>

#include "device/collective.h"
#include "device/nccl/communicator.h"

namespace bascule {

class NcclCollective final : public DeviceCollective {
 public:
  // See Communicators::MakeCollective. `id` is nobody else's.
  static Result<std::unique_ptr<NcclCollective>> Make(const NcclLibrary& nccl, const CommunicatorId& id,
                                                      std::span<Device* const> devices, Deadline deadline,
                                                      Clock& clock);
  ~NcclCollective() override;

  std::string_view name() const override { return "nccl"; }
  Status AllReduceSum(std::span<const CollectivePart> parts, std::int64_t count) override;

 private:
  explicit NcclCollective(const NcclLibrary& nccl) : nccl_(nccl) {}
  Status AwaitAll(Deadline deadline, Clock& clock);

  const NcclLibrary& nccl_;
  std::vector<std::unique_ptr<NcclCommunicator>> ranks_;
};

}  // namespace bascule
