#include "bridge/transport/cuda_ipc/route.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

namespace bascule {
namespace {

// How long an end that goes waits for its own work on the device.
constexpr Duration kSettlePatience = std::chrono::seconds(5);

bool PeerHasHungUp(int fd) {
  pollfd socket{fd, POLLRDHUP, 0};
  return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// Waits for the other end's work. A peer that goes waits for its own work first: a mark that has not passed then never
// will.
class MarkWait {
 public:
  MarkWait(int fd, Clock& clock) : fd_(fd), clock_(clock) {}
  void Cancel() { cancelled_ = true; }

  // Cancelled "cancelled"; DeadlineExceeded "deadline"; Unavailable "peer_lost"; errors of the device
  Status Await(DeviceEvent& mark, Deadline deadline) {
    constexpr Duration kLongest = std::chrono::microseconds(200);
    for (Duration step = std::chrono::microseconds(10);; step = std::min(2 * step, kLongest)) {
      if (cancelled_) return Status::Cancelled("cancelled");
      const bool hung_up = PeerHasHungUp(fd_);
      ASSIGN_OR_RETURN(const bool passed, mark.Passed());
      if (passed) return OkStatus();
      if (hung_up) return Status::Unavailable("peer_lost", "it went before its work on the device was done");
      if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline");
      clock_.SleepUntil(std::min(clock_.Now() + step, deadline.point()), {});
    }
  }

 private:
  const int fd_;
  Clock& clock_;
  std::atomic<bool> cancelled_ = false;
};

// Work that is not done keeps what it works on.
void SettleOrKeep(const std::shared_ptr<DeviceEnd>& working, const std::shared_ptr<DeviceEnd>& memory, Clock& clock) {
  const Status settled = working->Settle(Deadline::After(clock, kSettlePatience), clock);
  if (settled.ok()) return;
  KeepForEver(working, settled);
  if (memory != working) KeepForEver(memory, settled);
}

class CudaIpcSender final : public BucketSender {
 public:
  CudaIpcSender(std::unique_ptr<ShmSender> host, std::shared_ptr<DeviceEnd> own, std::shared_ptr<DeviceEnd> peer,
                std::shared_ptr<RetiredEnds> retired, Clock& clock)
      : host_(std::move(host)),
        own_(std::move(own)),
        peer_(std::move(peer)),
        retired_(std::move(retired)),
        clock_(clock),
        wait_(host_->fd(), clock) {}

  ~CudaIpcSender() override {
    SettleOrKeep(own_, own_, clock_);
    const bool is_apart = !peer_->is_own();
    peer_.reset();
    // Where no further descriptor can be had, nothing tells when the peer is done.
    if (UniqueFd socket(is_apart ? dup(host_->fd()) : -1); socket.valid()) {
      retired_->Take(std::move(socket), std::move(own_));
    } else if (is_apart) {
      KeepForEver(std::move(own_), Status::ResourceExhausted("descriptors"));
    }
  }

  std::int64_t frame_bytes() const override { return host_->frame_bytes(); }
  std::int32_t credits() const override { return host_->credits(); }
  bool wants_checksum() const override { return false; }
  // While a frame comes back the next to acquire may be that one.
  bool HasCredit() const override { return !returning_ && host_->HasCredit(); }
  std::span<std::byte> Acquire() override { return host_->Acquire(); }
  Status Send(std::size_t bytes) override { return host_->Send(bytes); }

  bool HasDevicePayload() const override { return true; }
  std::span<std::byte> AcquireDevicePayload() override {
    (void)host_->Acquire();
    return own_->frame(host_->acquired());
  }
  // The payload lies where the receiver reads it.
  Status SendFilledOn(std::size_t bytes, std::size_t /*payload_bytes*/, DeviceStream& filled_on) override {
    RETURN_IF_ERROR(filled_on.Record(own_->mark(host_->acquired())));
    return host_->Send(bytes);
  }

  Result<std::uint32_t> PutBy(DeviceStream& filling) override {
    RETURN_IF_ERROR(filling.Record(own_->mark(host_->acquired())));
    return host_->PutBy(filling);
  }
  void TakeUp(std::uint32_t number) override { host_->TakeUp(number); }

  Result<BucketAck> NextAck(Deadline deadline) override {
    if (!returning_) {
      ASSIGN_OR_RETURN(returning_, host_->NextAck(deadline));
    }
    RETURN_IF_ERROR(wait_.Await(peer_->mark(host_->returned()), deadline));
    return *std::exchange(returning_, std::nullopt);
  }

  void Cancel() override {
    wait_.Cancel();
    host_->Cancel();
  }

 private:
  const std::unique_ptr<ShmSender> host_;
  std::shared_ptr<DeviceEnd> own_;
  std::shared_ptr<DeviceEnd> peer_;
  const std::shared_ptr<RetiredEnds> retired_;
  Clock& clock_;
  MarkWait wait_;
  std::optional<BucketAck> returning_;  // acknowledged, and perhaps still read
};

class CudaIpcReceiver final : public BucketReceiver {
 public:
  CudaIpcReceiver(std::unique_ptr<ShmReceiver> host, std::shared_ptr<DeviceEnd> own, std::shared_ptr<DeviceEnd> peer,
                  Clock& clock)
      : host_(std::move(host)),
        own_(std::move(own)),
        peer_(std::move(peer)),
        clock_(clock),
        wait_(host_->fd(), clock) {}

  // The socket goes last: then the sender may free what was open here.
  ~CudaIpcReceiver() override { SettleOrKeep(own_, peer_, clock_); }

  const RouteHello& hello() const override { return host_->hello(); }

  Result<ReceivedFrame> Receive(Deadline deadline) override {
    if (!arriving_) {
      ASSIGN_OR_RETURN(arriving_, host_->Receive(deadline));
    }
    RETURN_IF_ERROR(wait_.Await(peer_->mark(arriving_->handle), deadline));
    arriving_->device_payload = peer_->frame(arriving_->handle);
    return *std::exchange(arriving_, std::nullopt);
  }

  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override {
    return host_->Acknowledge(frame, ack);
  }

  Status AcknowledgeReadOn(const ReceivedFrame& frame, const BucketAck& ack, DeviceStream& read_on) override {
    RETURN_IF_ERROR(read_on.Record(own_->mark(frame.handle)));
    return host_->Acknowledge(frame, ack);
  }

  void Cancel() override {
    wait_.Cancel();
    host_->Cancel();
  }

 private:
  const std::unique_ptr<ShmReceiver> host_;
  const std::shared_ptr<DeviceEnd> own_;
  const std::shared_ptr<DeviceEnd> peer_;
  Clock& clock_;
  MarkWait wait_;
  std::optional<ReceivedFrame> arriving_;  // announced, and perhaps still being filled
};

}  // namespace

std::unique_ptr<BucketSender> MakeCudaIpcSender(std::unique_ptr<ShmSender> host, std::shared_ptr<DeviceEnd> own,
                                                std::shared_ptr<DeviceEnd> peer, std::shared_ptr<RetiredEnds> retired,
                                                Clock& clock) {
  return std::make_unique<CudaIpcSender>(std::move(host), std::move(own), std::move(peer), std::move(retired), clock);
}

std::unique_ptr<BucketReceiver> MakeCudaIpcReceiver(std::unique_ptr<ShmReceiver> host, std::shared_ptr<DeviceEnd> own,
                                                    std::shared_ptr<DeviceEnd> peer, Clock& clock) {
  return std::make_unique<CudaIpcReceiver>(std::move(host), std::move(own), std::move(peer), clock);
}

}  // namespace bascule
