// A device some of whose events say that they have passed when nobody knows: how a test makes the mistake of a wait
// that is missing.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "tests/support/device_work/device_work.h"

namespace bascule {

// Thread-safety: as Device, but for making streams and events, which is confined to one thread.
class HastyDevice final : public Device {
 public:
  // Of the events made from now on, those with numbers in [first, last) pass at once.
  HastyDevice(Device& device, int first, int last) : device_(device), first_(first), last_(last) {}

  // Waits for all that is enqueued on streams made here.
  Status DrainAll() {
    for (DeviceStream* const stream : streams_) RETURN_IF_ERROR(Drain(device_, *stream));
    return OkStatus();
  }

  const DeviceDescription& description() const override { return device_.description(); }
  DeviceMemory& memory() override { return device_.memory(); }
  DeviceMemory& pinned_memory() override { return device_.pinned_memory(); }
  Result<std::unique_ptr<DeviceStream>> MakeStream(StreamPriority priority) override {
    ASSIGN_OR_RETURN(auto stream, device_.MakeStream(priority));
    streams_.push_back(stream.get());
    return std::unique_ptr<DeviceStream>(std::make_unique<Stream>(std::move(stream)));
  }
  Result<std::unique_ptr<DeviceEvent>> MakeEvent() override {
    ASSIGN_OR_RETURN(auto event, device_.MakeEvent());
    const int number = made_++;
    return std::unique_ptr<DeviceEvent>(std::make_unique<Event>(std::move(event), number >= first_ && number < last_));
  }
  Result<SharedEvent> MakeSharedEvent() override { return device_.MakeSharedEvent(); }
  Result<std::unique_ptr<DeviceEvent>> OpenEvent(const EventHandle& handle) override {
    return device_.OpenEvent(handle);
  }
  std::unique_ptr<DeviceEvent> Borrow(void* native_event) override { return device_.Borrow(native_event); }
  Status CheckReachable(std::span<const std::byte> memory) override { return device_.CheckReachable(memory); }
  Result<ExportedMemory> Export(std::span<const std::byte> memory) override { return device_.Export(memory); }
  Result<std::unique_ptr<DeviceBuffer>> OpenMemory(const MemoryHandle& handle, std::int64_t bytes) override {
    return device_.OpenMemory(handle, bytes);
  }

 private:
  class Event final : public DeviceEvent {
   public:
    Event(std::unique_ptr<DeviceEvent> event, bool is_hasty) : event_(std::move(event)), is_hasty_(is_hasty) {}
    Result<bool> Passed() override { return is_hasty_ ? true : event_->Passed(); }
    DeviceEvent& event() { return *event_; }

   private:
    const std::unique_ptr<DeviceEvent> event_;
    const bool is_hasty_;
  };
  class Stream final : public DeviceStream {
   public:
    explicit Stream(std::unique_ptr<DeviceStream> stream) : stream_(std::move(stream)) {}
    StreamHandle handle() const override { return stream_->handle(); }
    Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override { return stream_->Copy(to, from); }
    Status Fill(std::span<std::byte> target, std::byte value) override { return stream_->Fill(target, value); }
    Status Record(DeviceEvent& event) override { return stream_->Record(static_cast<Event&>(event).event()); }
    Status WaitFor(DeviceEvent& event) override { return stream_->WaitFor(static_cast<Event&>(event).event()); }
    Status BeginCapture() override { return stream_->BeginCapture(); }
    Result<std::unique_ptr<DeviceGraph>> EndCapture() override { return stream_->EndCapture(); }
    Status Launch(DeviceGraph& graph) override { return stream_->Launch(graph); }

   private:
    const std::unique_ptr<DeviceStream> stream_;
  };

  Device& device_;
  const int first_;
  const int last_;
  int made_ = 0;
  std::vector<DeviceStream*> streams_;
};

}  // namespace bascule
