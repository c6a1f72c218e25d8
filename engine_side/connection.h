// One control channel from its Hello to its end, on the receiving side: the plan, the routes and their threads, and the
// sessions that follow one another on it.
//
// A connection whose route is lost takes no further offer ("route_lost"): its publisher connects again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/session/control.h"
#include "bridge/session/messages.h"
#include "engine_side/receive_session.h"
#include "engine_side/receiver_parts.h"
#include "engine_side/route_reader.h"

namespace bascule {

// Thread-safety: confined to the thread that serves it; buckets come on its routes' threads.
class Connection final : private BucketSink {
 public:
  // Both borrowed.
  Connection(ControlChannel& channel, ReceiverParts& parts);
  ~Connection() override;

  // Until the channel ends; says why.
  Status Serve();

 private:
  BucketAck OnBucket(int route, const ReceivedFrame& frame) override EXCLUDES(mu_);
  Status GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) override {
    return parts_.slots.work().GiveBack(receiver, frame, ack);
  }
  bool IsLive() const override { return parts_.slots.live().has_value(); }
  void OnRouteLost(int route, const Status& why) override EXCLUDES(mu_);

  Status Greet();
  Result<HelloReply> Answer(const Hello& hello);
  Deadline NextWake() const EXCLUDES(mu_);
  void OnTime() EXCLUDES(mu_);
  void OnMessage(const SessionMessage& message) EXCLUDES(mu_);
  void OnOffer(const Offer& offer) EXCLUDES(mu_);
  Status CheckModel(const std::string& model) const;
  Status CheckFamilies(const std::vector<QuantizationFamily>& offered) const;
  Status CheckOffered(const Offer& offer) const;
  Status CheckLimits(const Offer& offer) const;
  Status OpenRoutes(TransportKind kind) EXCLUDES(mu_);
  // The session a message is for; null, after an answer where one is due, when it is not the current one.
  std::shared_ptr<ReceiveSession> SessionOf(SessionId id) EXCLUDES(mu_);
  std::shared_ptr<ReceiveSession> current() const EXCLUDES(mu_);
  void Replace(std::shared_ptr<ReceiveSession> session) EXCLUDES(mu_);
  void Send(const SessionMessage& message);

  ControlChannel& channel_;
  ReceiverParts& parts_;
  const std::uint64_t id_;
  InstanceId publisher_;
  std::shared_ptr<const ReceivePlan> plan_;  // shared with the cache and the sessions
  TransportListener* listener_ = nullptr;    // of the routes, once they are open

  mutable Mutex mu_;
  // Shared: a newer session may be ending it while the connection goes on.
  std::shared_ptr<ReceiveSession> session_ GUARDED_BY(mu_);
  Status route_lost_ GUARDED_BY(mu_);
  std::vector<std::unique_ptr<RouteReader>> routes_;
};

}  // namespace bascule
