// The other process of cuda_ipc_process_test, and of cuda_ipc_gpu_test, which has no use for the lost ones:
//
//   cuda_ipc_peer send ENDPOINT FRAMES    a trainer that sends frames, waits for all acknowledgements and goes
//   cuda_ipc_peer lost_send ENDPOINT      one that announces a frame whose filling never ends
//   cuda_ipc_peer lost_read ENDPOINT      an engine that listens there and gives a frame back whose reading never ends
//
// Exits with 0 when all went well; the lost ones wait to be killed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "device/backend.h"
#include "tests/support/device_work/device_work.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/process_census.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {
namespace {

// The device that the address names, whatever its ordinal here.
Result<Device*> DeviceOf(const std::string& address) {
  ASSIGN_OR_RETURN(const CudaIpcAddress parsed, ParseCudaIpcAddress(address));
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  return backend->Open(parsed.devices.front());
}

Status Send(const TransportEndpoint& endpoint, int frames, bool lost) {
  ASSIGN_OR_RETURN(Device* const device, DeviceOf(endpoint.address));
  CudaIpcDialer dialer(*device);
  if (!dialer.CanReach(endpoint)) return Status::Unavailable("cannot_reach");
  ASSIGN_OR_RETURN(const auto sender, dialer.Dial(endpoint, kHello, Soon()));
  FrameSource source(*device, *sender);
  if (lost) FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  for (int number = 0; number < frames; ++number) RETURN_IF_ERROR(source.Send(number));
  while (lost) pause();
  return Drain(*device, source.stream());
}

Status GiveBackWhatIsReadForEver(const std::string& address) {
  ASSIGN_OR_RETURN(Device* const device, DeviceOf(address));
  ASSIGN_OR_RETURN(const CudaIpcAddress parsed, ParseCudaIpcAddress(address));
  ASSIGN_OR_RETURN(const auto listener, CudaIpcListener::Create(parsed.path, *device));
  listener->Expect(kHello.connection);
  ASSIGN_OR_RETURN(const auto receiver, listener->Accept(kHello.connection, kHello.route, Soon()));
  FrameSink sink(*device, *receiver);
  FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  RETURN_IF_ERROR(sink.Take());
  while (true) pause();
}

Status Run(std::string_view role, const std::string& address, int frames) {
  const TransportEndpoint endpoint{TransportKind::kCudaIpc, address};
  if (role == "lost_read") return GiveBackWhatIsReadForEver(address);
  return Send(endpoint, frames, role == "lost_send");
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bascule::Status status = bascule::Run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 1);
  if (!status.ok()) std::fprintf(stderr, "cuda_ipc_peer: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
