// Takes routes from senders on other devices, over another transport's listener, the carrier, which may take routes of
// its own as well.
//
// It sees devices and NCCL only through device/, so it is built everywhere, and works where a backend gives it both.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/transport.h"
#include "device/communicator.h"

namespace bascule {

class NcclListener final : public TransportListener {
 public:
  // Payload of engine rank r arrives on devices[r]. All outlive this and its routes.
  NcclListener(std::vector<Device*> devices, Communicators& communicators, TransportListener& carrier,
               Clock& clock = Clock::Real())
      : devices_(std::move(devices)), communicators_(communicators), carrier_(carrier), clock_(clock) {}

  TransportEndpoint endpoint() const override;
  void Expect(std::uint64_t connection) override { carrier_.Expect(connection); }
  void Forget(std::uint64_t connection) override { carrier_.Forget(connection); }
  // InvalidArgument "bad_route"; ResourceExhausted "device_memory"; errors of the device
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override;

 private:
  const std::vector<Device*> devices_;
  Communicators& communicators_;
  TransportListener& carrier_;
  Clock& clock_;
};

}  // namespace bascule
