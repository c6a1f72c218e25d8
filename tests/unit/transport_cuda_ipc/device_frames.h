// Frames whose second part is filled and read by streams of the device, for tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "bridge/transport/transport.h"
#include "device/device.h"

namespace bascule {

inline constexpr RouteHello kHello{.connection = 1, .route = {0, 0}, .frame_bytes = 40'000, .credits = 2};

inline Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// How a test makes the mistakes that events are there against.
enum class Mistake { kNone, kSentBeforeItIsFilled, kGivenBackWhileItIsRead };

// Every byte of frame `number`'s second part.
inline std::byte ByteOf(int number) { return static_cast<std::byte>(number + 1); }

// Fills the second part on a stream of its own, and sends.
class FrameSource {
 public:
  FrameSource(Device& device, BucketSender& sender)
      : sender_(sender), stream_(device.MakeStream(StreamPriority::kNormal).value()) {}

  Status Send(int number, Mistake mistake = Mistake::kNone) {
    while (!sender_.HasCredit()) RETURN_IF_ERROR(sender_.NextAck(Soon()).status());
    sender_.Acquire()[0] = ByteOf(number);
    RETURN_IF_ERROR(stream_->Fill(sender_.AcquireDevicePayload(), ByteOf(number)));
    return mistake == Mistake::kSentBeforeItIsFilled ? sender_.Send(1)
                                                     : sender_.SendFilledOn(1, kHello.frame_bytes, *stream_);
  }
  DeviceStream& stream() { return *stream_; }

 private:
  BucketSender& sender_;
  std::unique_ptr<DeviceStream> stream_;
};

// Copies the second parts to the host on a stream of its own, and gives each frame back at once, before it is read.
class FrameSink {
 public:
  FrameSink(Device& device, BucketReceiver& receiver)
      : device_(device), receiver_(receiver), stream_(device.MakeStream(StreamPriority::kLow).value()) {}

  Status Take(Mistake mistake = Mistake::kNone) {
    ASSIGN_OR_RETURN(const ReceivedFrame frame, receiver_.Receive(Soon()));
    ASSIGN_OR_RETURN(auto copy, device_.pinned_memory().Allocate(frame.device_payload.size()));
    RETURN_IF_ERROR(stream_->Copy(copy->bytes(), frame.device_payload));
    copies_.push_back(std::move(copy));
    firsts_.push_back(frame.bytes[0]);
    return mistake == Mistake::kGivenBackWhileItIsRead ? receiver_.Acknowledge(frame, BucketAck{})
                                                       : receiver_.AcknowledgeReadOn(frame, BucketAck{}, *stream_);
  }
  // How many of the frames taken are not wholly what was sent as frame 0, 1, 2... Call when the stream has been
  // drained.
  int CountWrong() const {
    int wrong = 0;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      bool right = firsts_[i] == ByteOf(static_cast<int>(i));
      for (const std::byte byte : copies_[i]->bytes()) right = right && byte == firsts_[i];
      wrong += right ? 0 : 1;
    }
    return wrong;
  }
  DeviceStream& stream() { return *stream_; }

 private:
  Device& device_;
  BucketReceiver& receiver_;
  std::unique_ptr<DeviceStream> stream_;
  std::vector<std::unique_ptr<DeviceBuffer>> copies_;
  std::vector<std::byte> firsts_;
};

}  // namespace bascule
