#include "device/communicator.h"

#include <algorithm>

#include "device/backend.h"

namespace bascule {

Status AwaitSettled(Communicator& communicator, Deadline deadline, Clock& clock,
                    const std::function<Status()>& interrupted) {
  // A move is handed to the device in microseconds; joining takes a good part of a second.
  constexpr Duration kShortest = std::chrono::microseconds(10);
  constexpr Duration kLongest = std::chrono::milliseconds(2);
  for (Duration step = kShortest;; step = std::min(step * 2, kLongest)) {
    ASSIGN_OR_RETURN(const bool settled, communicator.Settled());
    if (settled) return OkStatus();
    if (interrupted) RETURN_IF_ERROR(interrupted());
    if (deadline.Passed(clock)) {
      return Status::DeadlineExceeded("nccl_deadline", fmt::format("rank {} of {} still waits for NCCL and its peers",
                                                                   communicator.rank(), communicator.size()));
    }
    clock.SleepUntil(std::min(clock.Now() + step, deadline.point()), {});
  }
}

Result<Communicators*> LoadCommunicators() {
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  const auto part = reinterpret_cast<decltype(&bascule_cuda_communicators)>(backend->Part("communicators"));
  if (part == nullptr) {
    return Status::Unavailable("no_nccl", "libbascule_cuda.so was built without NCCL: nccl.h was not found");
  }
  Status why;
  Communicators* const communicators = part(&why);
  if (communicators == nullptr) return why;
  return communicators;
}

}  // namespace bascule
