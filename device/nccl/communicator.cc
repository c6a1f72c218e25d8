#include "device/nccl/communicator.h"

#include <cstring>
#include <utility>

#include "device/cuda/error.h"
#include "device/nccl/unbounded_call.h"

namespace bascule {
namespace {

// How long one that nobody closed or aborted is waited for.
constexpr Duration kPatience = std::chrono::seconds(5);

ncclConfig_t Config(int ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = ctas;
  // A cluster begins only where one part of the device has room for all of its CTAs: free ones elsewhere do not count.
  config.cgaClusterSize = 0;
  config.commName = "bascule";
  return config;
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Join(const NcclLibrary& nccl, Device& device,
                                                                 const CommunicatorId& id, int rank, int size,
                                                                 int ctas) {
  const DeviceDescription& description = device.description();
  ASSIGN_OR_RETURN(CtaShare share, CtaBudget::Get().Take(description, ctas));
  std::unique_ptr<NcclCommunicator> joining(new NcclCommunicator(nccl, description, rank, size, std::move(share)));
  ncclUniqueId unique{};
  static_assert(sizeof unique == sizeof id.bytes);
  std::memcpy(&unique, id.bytes.data(), sizeof unique);
  ncclConfig_t config = Config(ctas);
  USE_DEVICE(description);
  const MutexLock lock(joining->mu_);
  RETURN_IF_ERROR(
      joining->Note(nccl.comm_init_rank_config(&joining->communicator_, size, unique, rank, &config), "join"));
  return joining;
}

NcclCommunicator::~NcclCommunicator() {
  static_cast<void>(Abort(Deadline::After(Clock::Real(), kPatience), Clock::Real()));
}

Status NcclCommunicator::Note(ncclResult_t result, std::string_view call) {
  const Status status = nccl_.ToStatus(result, call, communicator_)
                            .WithContext(fmt::format("rank {} of {}, device {} {}", rank_, size_, device_.ordinal,
                                                     device_.uuid.ToString()));
  if (failed_.ok()) failed_ = status;
  return status;
}

Result<bool> NcclCommunicator::AskSettled() {
  RETURN_IF_ERROR(failed_);
  ncclResult_t state = ncclSuccess;
  RETURN_IF_ERROR(Note(nccl_.comm_get_async_error(communicator_, &state), "ncclCommGetAsyncError"));
  RETURN_IF_ERROR(Note(state, "asynchronously"));
  return state != ncclInProgress;
}

Result<bool> NcclCommunicator::Settled() {
  const MutexLock lock(mu_);
  return AskSettled();
}

Status NcclCommunicator::CheckUsable() {
  ASSIGN_OR_RETURN(const bool settled, AskSettled());
  if (settled) return OkStatus();
  return Status::FailedPrecondition("communicator_busy", fmt::format("rank {} of {}: await it first", rank_, size_));
}

Status NcclCommunicator::Register(std::span<std::byte> memory) {
  const MutexLock lock(mu_);
  RETURN_IF_ERROR(CheckUsable());
  USE_DEVICE(device_);
  void* handle = nullptr;
  RETURN_IF_ERROR(Note(nccl_.comm_register(communicator_, memory.data(), memory.size(), &handle), "ncclCommRegister"));
  registered_.push_back(handle);
  return OkStatus();
}

Status NcclCommunicator::Move(std::span<const Transfer> transfers, DeviceStream& stream) {
  const MutexLock lock(mu_);
  RETURN_IF_ERROR(CheckUsable());
  auto* const on = static_cast<cudaStream_t>(stream.handle().native);
  RETURN_IF_ERROR(Note(nccl_.group_start(), "ncclGroupStart"));
  Status status;
  for (const Transfer& transfer : transfers) {
    const auto [way, peer, memory] = transfer;
    status = way == Transfer::Way::kSend
                 ? Note(nccl_.send(memory.data(), memory.size(), ncclUint8, peer, communicator_, on), "ncclSend")
                 : Note(nccl_.recv(memory.data(), memory.size(), ncclUint8, peer, communicator_, on), "ncclRecv");
    if (!status.ok()) break;
  }
  const Status ended = Note(nccl_.group_end(), "ncclGroupEnd");  // in any case: groups are the thread's
  return status.ok() ? ended : status;
}

Status NcclCommunicator::Broadcast(std::span<std::byte> memory, int root, DeviceStream& stream) {
  const MutexLock lock(mu_);
  RETURN_IF_ERROR(CheckUsable());
  return Note(nccl_.broadcast(memory.data(), memory.data(), memory.size(), ncclUint8, root, communicator_,
                              static_cast<cudaStream_t>(stream.handle().native)),
              "ncclBroadcast");
}

Status NcclCommunicator::AddSumToGroup(float* data, std::int64_t count, DeviceStream& stream) {
  const MutexLock lock(mu_);
  RETURN_IF_ERROR(CheckUsable());
  return Note(nccl_.all_reduce(data, data, static_cast<std::size_t>(count), ncclFloat32, ncclSum, communicator_,
                               static_cast<cudaStream_t>(stream.handle().native)),
              "ncclAllReduce");
}

Status NcclCommunicator::BeginToFinish() {
  const MutexLock lock(mu_);
  RETURN_IF_ERROR(CheckUsable());
  for (void* const handle : std::exchange(registered_, {})) {
    RETURN_IF_ERROR(Note(nccl_.comm_deregister(communicator_, handle), "ncclCommDeregister"));
  }
  return Note(nccl_.comm_finalize(communicator_), "ncclCommFinalize");
}

ncclComm_t NcclCommunicator::Take(std::string_view why) {
  const MutexLock lock(mu_);
  if (failed_.ok()) failed_ = Status::FailedPrecondition(why, fmt::format("rank {} of {}", rank_, size_));
  return std::exchange(communicator_, nullptr);
}

Result<ncclResult_t> NcclCommunicator::End(decltype(NcclLibrary::comm_abort) end, ncclComm_t taken, Deadline deadline,
                                           Clock& clock) {
  const Result<ncclResult_t> result = RunUnbounded([end, taken] { return end(taken); }, deadline, clock);
  const MutexLock lock(mu_);
  if (!result.ok()) share_.KeepForEver();
  share_.GiveBack();
  return result;
}

Status NcclCommunicator::Close(Deadline deadline, Clock& clock) {
  Status finished = BeginToFinish();
  if (finished.ok()) finished = AwaitSettled(*this, deadline, clock);
  if (!finished.ok()) {
    RETURN_IF_ERROR(Abort(Deadline::After(clock, kPatience), clock));
    return finished;
  }
  ncclComm_t const closing = Take("communicator_closed");
  ASSIGN_OR_RETURN(const ncclResult_t result,
                   End(nccl_.comm_destroy, closing, Deadline::After(clock, kPatience), clock));
  return nccl_.ToStatus(result, "ncclCommDestroy", nullptr);
}

Status NcclCommunicator::Abort(Deadline deadline, Clock& clock) {
  ncclComm_t const aborting = Take("communicator_aborted");
  if (aborting == nullptr) return OkStatus();
  // What NCCL says of a communicator that is broken anyway tells nobody anything.
  return End(nccl_.comm_abort, aborting, deadline, clock).status();
}

}  // namespace bascule
