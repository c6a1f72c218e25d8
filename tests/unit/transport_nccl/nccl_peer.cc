// The other process of nccl_process_test, a trainer on device 0 that shm carries:
//
//   nccl_peer ENDPOINT FRAMES        sends frames, waits for all acknowledgements and goes
//   nccl_peer ENDPOINT lost          announces a frame that it never moves, and waits to be killed
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "bridge/transport/nccl/dialer.h"
#include "bridge/transport/shm/dialer.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {
namespace {

Status Run(const std::string& address, std::string_view frames) {
  ASSIGN_OR_RETURN(Communicators* const communicators, LoadCommunicators());
  ShmDialer carrier;
  NcclDialer dialer(FakeDevice(0), *communicators, carrier);
  ASSIGN_OR_RETURN(const auto sender, dialer.Dial({TransportKind::kNccl, address}, kHello, Soon()));
  FrameSource source(FakeDevice(0), *sender);
  if (frames == "lost") {
    FakeNccl::Fail("ncclSend", 1, FakeNccl::kLost);
    RETURN_IF_ERROR(source.Send(0));
    while (true) pause();
  }
  const int count = std::atoi(frames.data());
  for (int number = 0; number < count; ++number) RETURN_IF_ERROR(source.Send(number));
  for (int free = 0; free < kHello.credits; ++free) RETURN_IF_ERROR(sender->NextAck(Soon()).status());
  return OkStatus();
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bascule::Status status = bascule::Run(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "nccl_peer: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
