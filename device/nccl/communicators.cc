#include <cstdlib>
#include <cstring>

#include "device/communicator.h"
#include "device/nccl/collective.h"
#include "device/nccl/communicator.h"
#include "device/nccl/library.h"

namespace bascule {
namespace {

class NcclCommunicators final : public Communicators {
 public:
  explicit NcclCommunicators(const NcclLibrary& nccl) : nccl_(nccl) {}

  std::string version() const override { return NcclVersionText(nccl_.version); }

  Result<CommunicatorId> NewId() override {
    // NCCL would take its peers' address from there, and not from the id.
    if (const char* const set = std::getenv("NCCL_COMM_ID"); set != nullptr) {
      return Status::FailedPrecondition("nccl_comm_id", fmt::format("unset NCCL_COMM_ID, which is '{}'", set));
    }
    ncclUniqueId unique{};
    RETURN_IF_ERROR(nccl_.ToStatus(nccl_.get_unique_id(&unique), "ncclGetUniqueId", nullptr));
    CommunicatorId id;
    std::memcpy(id.bytes.data(), &unique, sizeof unique);
    return id;
  }

  Result<std::unique_ptr<Communicator>> Join(Device& device, const CommunicatorId& id, int rank, int size) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> joining,
                     NcclCommunicator::Join(nccl_, device, id, rank, size, kMoveCtas));
    return joining;
  }

  Result<std::unique_ptr<DeviceCollective>> MakeCollective(std::span<Device* const> devices, Deadline deadline,
                                                           Clock& clock) override {
    ASSIGN_OR_RETURN(const CommunicatorId id, NewId());
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceCollective> made, NcclCollective::Make(nccl_, id, devices, deadline, clock));
    return made;
  }

 private:
  const NcclLibrary& nccl_;
};

}  // namespace
}  // namespace bascule

extern "C" bascule::Communicators* bascule_cuda_communicators(bascule::Status* why) {
  const bascule::Result<const bascule::NcclLibrary*> nccl = bascule::LoadNccl();
  if (!nccl.ok()) {
    *why = nccl.status();
    return nullptr;
  }
  // Never destroyed, as the library it stands for.
  static auto* const communicators = new bascule::NcclCommunicators(**nccl);
  return communicators;
}
