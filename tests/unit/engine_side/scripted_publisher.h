// A publisher's end of the protocol, one step at a time and written by hand, so that a test can say what a real one
// would never say. Two sender ranks, two engine ranks, and tensors that meet every kind of map row:
//
//   tensor  shape     sender ranks hold       engine ranks hold
//   a       [64, 64]  columns 0-31, 32-63     rows 0-31, 32-63
//   b       [5]       both all of it          both all of it
//   n       [8]       rank 0, as fp32         rank 0, as bf16
//   v       [66, 16]  rows 0-32, 33-65        rows 0-35; 36-65 and six rows of padding
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/plan/planner.h"
#include "bridge/session/control.h"
#include "bridge/session/messages.h"
#include "bridge/transport/transport.h"

namespace bascule {

Layout EngineLayoutForTest();
Layout SenderLayoutForTest();

// Element `index` of logical tensor `tensor` (0..3 as above) in version `number`: exact in bf16.
float ElementForTest(std::uint64_t number, int tensor, std::int64_t index);

class ScriptedPublisher {
 public:
  ScriptedPublisher(std::unique_ptr<ControlChannel> channel, TransportDialer& dialer, Clock& clock,
                    InstanceId id = InstanceId::Mint());

  InstanceId id() const { return id_; }
  const Plan& plan() const { return plan_; }
  ControlChannel& channel() { return *channel_; }
  const HelloReply& reply() const { return reply_; }

  // Hello and its answer; the plan.
  void Greet(std::int64_t bucket_bytes = 4096) { Greet(PlanOptions{.bucket_bytes = bucket_bytes, .ignore = {}}); }
  void Greet(const PlanOptions& options);
  Offer MakeOffer(std::uint64_t number, const std::string& run = "run") const;
  // With the plan's scope.
  Offer MakePartialOffer(std::uint64_t number, const WeightVersion& base) const;
  void Send(const SessionMessage& message);
  // The next message, which is a T; the test fails otherwise.
  template <typename T>
  T Expect();
  SessionMessage Next();

  void OpenRoutes();
  // The frame of a bucket of version `number`.
  std::vector<std::byte> Frame(SessionId session, std::uint64_t number, std::uint32_t bucket,
                               std::uint32_t attempt = 0) const;
  BucketAck SendFrame(int route, std::span<const std::byte> frame);
  BucketVerdict SendBucket(SessionId session, std::uint64_t number, std::uint32_t bucket, std::uint32_t attempt = 0);
  void SendAllBuckets(const Offer& offer);
  // Of a partial version: what the plan carries over is of version `base`.
  ManifestSeal SealOf(std::uint64_t number, std::optional<std::uint64_t> base = std::nullopt) const;
  ManifestSeal SealOf(const Offer& offer) const;
  WeightVersion VersionOf(const Offer& offer) const;

  // Steps of a good session: offer to Accept, then all buckets, then seal to Ready, then flip to Committed.
  void BeginSession(const Offer& offer);
  void StageAndSeal(const Offer& offer);
  FlipReport FlipNow(const Offer& offer);
  // All of them.
  FlipReport Publish(const Offer& offer);

  void CloseRoutes() { routes_.clear(); }
  void Vanish();  // closes the control channel

 private:
  std::unique_ptr<ControlChannel> channel_;
  TransportDialer& dialer_;
  Clock& clock_;
  const InstanceId id_;
  const Layout layout_ = SenderLayoutForTest();
  HelloReply reply_;
  Plan plan_;
  std::int64_t frame_bytes_ = 0;
  std::vector<std::unique_ptr<BucketSender>> routes_;
};

template <typename T>
T ScriptedPublisher::Expect() {
  SessionMessage message = Next();
  if (!std::holds_alternative<T>(message)) {
    const Abort* abort = std::get_if<Abort>(&message);
    ADD_FAILURE() << "got " << MessageName(message) << (abort != nullptr ? ": " + abort->why.ToString() : "");
    return T{};
  }
  return std::get<T>(std::move(message));
}

}  // namespace bascule
