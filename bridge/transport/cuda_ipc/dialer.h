// Opens routes to engines on the same host, run by the same user, that have ranks on the same device. Other ranks of
// theirs read its memory as peers do.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "bridge/transport/avoided_endpoints.h"
#include "bridge/transport/cuda_ipc/retired_ends.h"
#include "bridge/transport/transport.h"

namespace bascule {

class CudaIpcDialer final : public TransportDialer {
 public:
  // Frames lie on `device`, which outlives this and its routes.
  explicit CudaIpcDialer(Device& device, Clock& clock = Clock::Real())
      : device_(device), clock_(clock), retired_(std::make_shared<RetiredEnds>(clock)), avoided_(clock) {}

  TransportKind kind() const override { return TransportKind::kCudaIpc; }
  Device* device() const override { return &device_; }
  // The address names this device among others, by its UUID, and a socket file of this user.
  bool CanReach(const TransportEndpoint& endpoint) const override;
  // FailedPrecondition "no_peer_access"  the engine rank's device cannot read this one's memory, or the other way round
  // FailedPrecondition "other_device"    likewise, in one process
  // ResourceExhausted "device_memory"; errors of the device
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;
  void NoteFailure(const TransportEndpoint& endpoint, const Status& why) override;
  // For a minute after devices failed it there.
  bool Avoids(const TransportEndpoint& endpoint) const override { return avoided_.Contains(endpoint.address); }

 private:
  Device& device_;
  Clock& clock_;
  const std::shared_ptr<RetiredEnds> retired_;
  mutable AvoidedEndpoints avoided_;
};

}  // namespace bascule
