// Streams and events of one device: work is enqueued and runs later, in the order of its stream; between streams, only
// events order it. There is no default stream, and nothing here waits for the device except AwaitEvent, which has a
// deadline.
//
// Memory that enqueued work reads or writes stays alive and untouched until an event recorded behind it has passed.
//
// Work that is done over and over can be captured once, as a graph, and launched as one piece.
//
// Thread-safety: a stream is thread-compatible, an event thread-safe, a graph thread-compatible.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/status.h"

namespace bascule {

// What kernels take: the device's own name for a stream (cudaStream_t). Borrowed from a DeviceStream.
struct StreamHandle {
  void* native = nullptr;
};

// A mark in a stream. Recording it again moves it; a wait means the mark as it was when the wait was enqueued.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // True when the work before the latest mark is done, or there was none. Does not wait.
  //
  // Errors of the device, see device.h: also of work enqueued long before
  virtual Result<bool> Passed() = 0;
};

// Captured work: what ran on which memory, with the numbers that it was enqueued with. Only the bytes in memory may
// differ from launch to launch. The memory outlives the graph, and a graph the end of its launches.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// What may wait for the other's work: staging runs behind decode.
enum class StreamPriority { kLow, kNormal, kHigh };

class DeviceStream {
 public:
  // Work that is under way goes on to its end.
  virtual ~DeviceStream() = default;
  virtual StreamHandle handle() const = 0;

  // Each of these enqueues and returns.
  //
  // Copies between memory of this device, of another one, and pinned host memory; `from` and `to` are as long.
  //
  // InvalidArgument "not_pinned"  host memory of another kind, which would make the copy wait
  virtual Status Copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  virtual Status Fill(std::span<std::byte> target, std::byte value) = 0;
  // Marks the work enqueued so far.
  virtual Status Record(DeviceEvent& event) = 0;
  // What is enqueued from now on runs after `event`'s latest mark, also one of another stream, device or process.
  virtual Status WaitFor(DeviceEvent& event) = 0;

  // From here until EndCapture what this thread enqueues on this stream is not run but noted down, and likewise on
  // every stream, of any device, that waits for an event recorded here, until this stream has waited for it in turn.
  // Meanwhile this thread allocates nothing and asks no event whether it has passed; other threads go on as ever.
  virtual Status BeginCapture() = 0;
  // Ends it in any case, also after an error.
  //
  // Internal "capture_broken"  something was done that cannot be captured, or a stream that joined was not waited for
  virtual Result<std::unique_ptr<DeviceGraph>> EndCapture() = 0;
  // Enqueues all of a graph that this stream, or another of its device, has captured. A graph runs once at a time:
  // launch it again on the same stream, or behind an event.
  virtual Status Launch(DeviceGraph& graph) = 0;
};

inline constexpr Duration kLongestNap = std::chrono::microseconds(500);

// Waits on the host until `event` has passed, looking at it again after naps of at most `longest_nap`: long ones do not
// cost a core.
//
// DeadlineExceeded "device_deadline"  the work before it is not done; errors of the device
Status AwaitEvent(DeviceEvent& event, Deadline deadline, Clock& clock, Duration longest_nap = kLongestNap);

}  // namespace bascule
