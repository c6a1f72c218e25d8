// Opens routes to engines on the same host, run by the same user, whose weights lie on the same device.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "bridge/transport/cuda_ipc/retired_ends.h"
#include "bridge/transport/transport.h"

namespace bascule {

class CudaIpcDialer final : public TransportDialer {
 public:
  // Frames lie on `device`, which outlives this and its routes.
  explicit CudaIpcDialer(Device& device, Clock& clock = Clock::Real())
      : device_(device), clock_(clock), retired_(std::make_shared<RetiredEnds>(clock)) {}

  TransportKind kind() const override { return TransportKind::kCudaIpc; }
  Device* device() const override { return &device_; }
  // The address names this device, by its UUID, and a socket file of this user.
  bool CanReach(const TransportEndpoint& endpoint) const override;
  // FailedPrecondition "other_device"; ResourceExhausted "device_memory"; errors of the device
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;

 private:
  Device& device_;
  Clock& clock_;
  const std::shared_ptr<RetiredEnds> retired_;
};

}  // namespace bascule
