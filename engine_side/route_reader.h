// One route's thread on the receiving side: waits for its sender, then hands frame after frame to a sink and sends the
// sink's verdict back. It lives as long as its connection; sessions come and go above it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>

#include "base/clock.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/transport/transport.h"
#include "engine_side/staging_throttle.h"

namespace bascule {

// Thread-safety: thread-safe; it outlives its readers.
class BucketSink {
 public:
  virtual ~BucketSink() = default;
  virtual BucketAck OnBucket(int route, const ReceivedFrame& frame) = 0;
  // After OnBucket. As BucketReceiver::Acknowledge, once nothing reads the frame.
  virtual Status GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) {
    return receiver.Acknowledge(frame, ack);
  }
  // Is a version live, so that there is somebody to give way to?
  virtual bool IsLive() const = 0;
  // Nothing more comes on this route.
  virtual void OnRouteLost(int route, const Status& why) = 0;
};

// Thread-safety: confined to its owner.
class RouteReader {
 public:
  // Everything is borrowed. `index` is the route's in the plan.
  //
  // ResourceExhausted "thread_limit"
  static Result<std::unique_ptr<RouteReader>> Start(TransportListener& listener, std::uint64_t connection, int index,
                                                    Route route, BucketSink& sink, Clock& clock,
                                                    const StagingThreads& manners);
  // Also wakes a reader whose sender has called; one that still waits for that ends with TransportListener::Forget.
  void RequestStop() { thread_.RequestStop(); }

 private:
  RouteReader(TransportListener& listener, std::uint64_t connection, int index, Route route, BucketSink& sink,
              Clock& clock, const StagingThreads& manners);
  void Run(std::stop_token stop);
  Status ReadUntilLost(std::stop_token stop);
  Status TakeFrame(BucketReceiver& receiver, const ReceivedFrame& frame, std::stop_token stop);

  TransportListener& listener_;
  const std::uint64_t connection_;
  const int index_;
  const Route route_;
  BucketSink& sink_;
  Clock& clock_;
  StagingThrottle* const throttle_;
  int nice_;       // of the thread once a version is live; 0: it has it
  Worker thread_;  // last: joined first
};

}  // namespace bascule
