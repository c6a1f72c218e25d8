// Takes routes from senders on other devices, over another transport's listener, the carrier, which may take routes of
// its own as well.
//
// It sees devices and NCCL only through device/, so it is built everywhere, and works where a backend gives it both.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/transport.h"
#include "device/communicator.h"

namespace bascule {

class NcclListener final : public TransportListener {
 public:
  // Payload arrives on `device`. All outlive this and its routes.
  NcclListener(Device& device, Communicators& communicators, TransportListener& carrier, Clock& clock = Clock::Real())
      : device_(device), communicators_(communicators), carrier_(carrier), clock_(clock) {}

  TransportEndpoint endpoint() const override {
    return {TransportKind::kNccl,
            ToAddress({device_.description().uuid, communicators_.version(), carrier_.endpoint()})};
  }
  void Expect(std::uint64_t connection) override { carrier_.Expect(connection); }
  void Forget(std::uint64_t connection) override { carrier_.Forget(connection); }
  // InvalidArgument "bad_route"; ResourceExhausted "device_memory"; errors of the device
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override;

 private:
  Device& device_;
  Communicators& communicators_;
  TransportListener& carrier_;
  Clock& clock_;
};

}  // namespace bascule
