#include "device/nccl/collective.h"

#include <utility>

namespace bascule {
namespace {

// How long NCCL may take to enqueue a sum, by the real clock: it takes microseconds, the first one up to a second.
constexpr Duration kPatience = std::chrono::seconds(10);
constexpr Duration kClosing = std::chrono::seconds(1);

Status CheckApart(std::span<Device* const> devices) {
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const DeviceUuid& uuid = devices[r]->description().uuid;
    for (std::size_t other = 0; other < r; ++other) {
      if (devices[other]->description().uuid != uuid) continue;
      return Status::FailedPrecondition(
          "same_device", fmt::format("ranks {} and {} are on {}: NCCL takes no two on one", other, r, uuid.ToString()));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<NcclCollective>> NcclCollective::Make(const NcclLibrary& nccl, const CommunicatorId& id,
                                                             std::span<Device* const> devices, Deadline deadline,
                                                             Clock& clock) {
  RETURN_IF_ERROR(CheckApart(devices));
  std::unique_ptr<NcclCollective> collective(new NcclCollective(nccl));
  const int size = static_cast<int>(devices.size());
  for (int rank = 0; rank < size; ++rank) {
    Device& device = *devices[static_cast<std::size_t>(rank)];
    ASSIGN_OR_RETURN(auto joining, NcclCommunicator::Join(nccl, device, id, rank, size, kSumCtas));
    collective->ranks_.push_back(std::move(joining));
  }
  RETURN_IF_ERROR(collective->AwaitAll(deadline, clock));
  return collective;
}

// A sum that stands does not end by itself, so it is not waited for long.
NcclCollective::~NcclCollective() {
  const Deadline deadline = Deadline::After(Clock::Real(), kClosing);
  for (const auto& rank : ranks_) static_cast<void>(rank->Close(deadline, Clock::Real()));
}

Status NcclCollective::AwaitAll(Deadline deadline, Clock& clock) {
  for (const auto& rank : ranks_) RETURN_IF_ERROR(AwaitSettled(*rank, deadline, clock));
  return OkStatus();
}

Status NcclCollective::AllReduceSum(std::span<const CollectivePart> parts, std::int64_t count) {
  CHECK(parts.size() == ranks_.size());
  RETURN_IF_ERROR(nccl_.ToStatus(nccl_.group_start(), "ncclGroupStart", nullptr));
  Status added;
  for (std::size_t r = 0; r < parts.size() && added.ok(); ++r) {
    added = ranks_[r]->AddSumToGroup(parts[r].data, count, *parts[r].stream);
  }
  const Status ended = nccl_.ToStatus(nccl_.group_end(), "ncclGroupEnd", nullptr);  // in any case
  RETURN_IF_ERROR(added);
  RETURN_IF_ERROR(ended);
  // Only then do the sums lie in the streams, for what is enqueued next, and for a capture, which may end.
  return AwaitAll(Deadline::After(Clock::Real(), kPatience), Clock::Real());
}

}  // namespace bascule
