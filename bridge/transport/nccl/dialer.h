// Opens routes to engines whose weights lie on another device, on this host or another. The carrier is any transport
// that reaches them; payload goes from device to device.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "bridge/transport/avoided_endpoints.h"
#include "bridge/transport/transport.h"
#include "device/communicator.h"

namespace bascule {

class NcclDialer final : public TransportDialer {
 public:
  // Frames lie on `device`. All outlive this and its routes.
  NcclDialer(Device& device, Communicators& communicators, TransportDialer& carrier, Clock& clock = Clock::Real())
      : device_(device),
        communicators_(communicators),
        carrier_(carrier),
        clock_(clock),
        avoided_(std::make_shared<AvoidedEndpoints>(clock)) {}

  TransportKind kind() const override { return TransportKind::kNccl; }
  Device* device() const override { return &device_; }
  // The address names other devices, this version of NCCL, and a carrier that can be reached.
  bool CanReach(const TransportEndpoint& endpoint) const override;
  // As the carrier's Dial. FailedPrecondition "same_device" | "nccl_version"; ResourceExhausted "device_memory"; errors
  // of the device
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;
  bool CanCast() const override { return true; }
  Result<std::unique_ptr<BucketCast>> Cast(std::span<BucketSender* const> routes) override;
  void NoteFailure(const TransportEndpoint& endpoint, const Status& why) override;
  // For a minute after NCCL failed there.
  bool Avoids(const TransportEndpoint& endpoint) const override { return avoided_->Contains(endpoint.address); }

 private:
  Status CheckFits(const TransportEndpoint& endpoint) const;

  Device& device_;
  Communicators& communicators_;
  TransportDialer& carrier_;
  Clock& clock_;
  const std::shared_ptr<AvoidedEndpoints> avoided_;
};

}  // namespace bascule
