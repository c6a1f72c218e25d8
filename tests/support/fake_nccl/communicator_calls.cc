// Communicators: made, asked, ended.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>

#include "tests/support/fake_nccl/calls_internal.h"
#include "tests/support/fake_nccl/communicator.h"
#include "tests/support/fake_nccl/multiprocessors.h"
#include "tests/support/fake_nccl/operation.h"

using namespace bascule::fake_nccl;

namespace {

std::atomic<int> registrations = 0;

// What NCCL takes by itself where nobody says how much it may.
constexpr int kCtasByItself = 32;

// The one that the calling thread uses. False: CUDA does not tell.
bool FindDevice(DeviceOfRank* device) {
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device->ordinal) != cudaSuccess) return false;
  if (cudaGetDeviceProperties(&properties, device->ordinal) != cudaSuccess) return false;
  device->number = properties.uuid.bytes[15];
  device->multiprocessors = properties.multiProcessorCount;
  return true;
}

[[noreturn]] void NeverComeBack() {
  while (true) pause();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  FAKE_NCCL_CALL();
  const char* const set = std::getenv("BASCULE_FAKE_NCCL_VERSION");
  *version = set == nullptr ? NCCL_VERSION_CODE : std::atoi(set);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return "nothing more is known"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  FAKE_NCCL_CALL();
  return MakeBoard(id) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  FAKE_NCCL_CALL();
  // A call that waits for peers is a mistake here.
  if (config == nullptr || config->blocking != 0 || size > kMaxRanks || rank < 0 || rank >= size) {
    return ncclInvalidArgument;
  }
  DeviceOfRank device;
  if (!FindDevice(&device)) return ncclUnhandledCudaError;
  const int ctas = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? kCtasByItself : config->maxCTAs;
  if (ctas <= 0 || ctas > device.multiprocessors) return ncclInvalidArgument;
  auto communicator = std::make_shared<Communicator>(id, rank, size, device, ctas);
  communicator->Join(lost);
  if (breaks != ncclSuccess) communicator->Break(breaks);
  *handle = Keep(std::move(communicator));
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  FAKE_NCCL_CALL();
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (breaks != ncclSuccess) communicator->Break(breaks);
  *state = communicator->State();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  FAKE_NCCL_CALL();
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr || !communicator->IsUsable()) return ncclInvalidArgument;
  communicator->Finalize();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  FAKE_NCCL_CALL();
  if (lost) NeverComeBack();
  return Forget(handle) == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  FAKE_NCCL_CALL();
  if (lost) NeverComeBack();
  const std::shared_ptr<Communicator> communicator = Forget(handle);
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->Abort();
  registrations -= communicator->TakeRegistrations();
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* memory, std::size_t bytes, void** registration) {
  FAKE_NCCL_CALL();
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr || !communicator->IsUsable() || bytes == 0) return ncclInvalidArgument;
  communicator->NoteRegistered(+1);
  ++registrations;
  *registration = memory;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void*) {
  FAKE_NCCL_CALL();
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->NoteRegistered(-1);
  --registrations;
  return ncclSuccess;
}

void bascule_fake_nccl_census(bascule::FakeNcclCensus* census) {
  *census = {.communicators = CountCommunicators(),
             .registrations = registrations,
             .boards = CountBoards(),
             .ctas = Multiprocessors::Get().CountTaken(),
             .waiting = Multiprocessors::Get().CountWaiting(),
             .broadcasts = Sent::Get().broadcasts,
             .bytes_sent = Sent::Get().bytes};
}

void bascule_fake_nccl_seed(std::uint64_t seed) { SetSeed(seed); }

void bascule_fake_nccl_fail(const char* function, int nth, int error) {
  bascule::fake_cuda::Faults::Get().Add(function, nth, error);
}

}  // extern "C"
