// A publisher's connection to one replica: control channel, plan and routes, made once and used by session after
// session. A connection whose session failed is closed; the next Open makes another.
//
// Thread-safety: confined to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/send/cast_set.h"
#include "bridge/send/control_inbox.h"
#include "bridge/send/plan_cache.h"
#include "bridge/send/send_pacer.h"
#include "bridge/send/send_phase.h"
#include "bridge/send/sender_team.h"
#include "bridge/send/weight_source.h"
#include "bridge/session/control.h"
#include "bridge/session/messages.h"
#include "bridge/transport/transport.h"

namespace bascule {

struct ConnectionOptions {
  std::string address;
  ControlDialer* control = nullptr;          // borrowed
  std::vector<TransportDialer*> transports;  // borrowed; best first, the first that both sides can use is taken
  // Likewise; for where one of `transports` has failed a short while ago, and no other of them can be used.
  std::vector<TransportDialer*> fallbacks;
  InstanceId publisher;
  std::string model;  // see ManifestOffer::model
  PlanOptions plan;
  std::int32_t credits = 4;    // per route; the engine may grant fewer
  SendPacer* pacer = nullptr;  // borrowed; null: as fast as it goes
  SenderTeam* team = nullptr;  // borrowed; null: all sending ranks are in this process
  Duration connect_timeout = std::chrono::seconds(5);
  Clock* clock = &Clock::Real();
};

class ReplicaConnection {
 public:
  // `plans` is borrowed.
  ReplicaConnection(ConnectionOptions options, PlanCache& plans);

  // Connect, Hello and plan; nothing to do while an earlier connection stands. Waits at most connect_timeout.
  //
  // Unavailable "peer_unreachable" | "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // FailedPrecondition "wire_version"      the engine speaks another
  // Unimplemented "transport_unavailable"  there is none that both sides can use
  // InvalidArgument "bad_options"          a frame would be larger than transports take
  // InvalidArgument "unexpected_message"   the engine answers with what has no place here
  // what MakePlan says, what the engine said when it refused, and what SenderTeam::Agree says
  Status Open(const Layout& sender, Deadline deadline, std::stop_token stop);
  bool is_open() const { return inbox_ != nullptr; }
  void Close();

  // Dials the routes of the plan whose sending rank `source` holds, unless that has been done. Waits at most
  // connect_timeout for each: nothing interrupts a dial.
  Status OpenRoutes(const WeightSource& source, Deadline deadline);

  // While open:
  ControlInbox& inbox() { return *inbox_; }
  const Plan& plan() const { return *plan_; }
  TransportKind transport() const { return dialer_->kind(); }
  std::int64_t frame_bytes() const { return frame_bytes_; }
  std::int32_t credits() const { return credits_; }
  // One per route of the plan; null where another process sends.
  std::span<const std::unique_ptr<BucketSender>> routes() const { return routes_; }
  const CastSet& casts() const { return casts_; }
  // What the team has to know of a session on this connection; null without a team.
  std::unique_ptr<TeamSession> BeginTeamSession(SessionId session, Deadline deadline);

  // What the engine has live and the highest number committed in that run, as far as this publisher knows.
  const WeightVersion& live() const { return live_; }
  std::uint64_t highest_number() const { return highest_number_; }
  // What a rollback would go back to; without a run where there is none.
  const WeightVersion& kept() const { return kept_; }
  // The process that answered: another after a restart at the same address.
  InstanceId engine() const { return engine_; }
  void NoteCommitted(const WeightVersion& version);
  void NoteRolledBack(const WeightVersion& live, bool keeps) {
    kept_ = keeps ? std::exchange(live_, live) : WeightVersion{};
    live_ = live;
  }

  const ConnectionOptions& options() const { return options_; }
  SendPhase phase() const { return phase_; }
  void Enter(SendPhase phase) { phase_ = phase; }
  // `why`, with peer and phase before its message.
  Status Failure(const Status& why) const;

  // The session ended so, and its source is not to blame: the transport may be.
  void NoteFailure(const Status& why);
  // It was, and there is another that both sides can use, which the next Open takes.
  bool HasOtherWay() const;

 private:
  Status Connect(const Layout& sender, Deadline deadline, std::stop_token stop);
  Result<HelloReply> ExchangeHello(const Layout& sender, Deadline deadline, std::stop_token stop);
  // The same plan everywhere, and a transport that the team can use too.
  Status AgreeWithTeam(const HelloReply& reply, Deadline deadline, const std::stop_token& stop);
  Status ChooseTransport(std::vector<TransportEndpoint> endpoints);
  struct Way {
    TransportDialer* dialer = nullptr;
    TransportEndpoint endpoint;
  };
  // The best that has not failed a short while ago; the best at all.
  std::optional<Way> FindWay() const;
  std::optional<Way> FindAmong(const std::vector<TransportDialer*>& dialers, bool also_avoided) const;

  const ConnectionOptions options_;
  PlanCache& plans_;
  SendPhase phase_ = SendPhase::kConnect;
  std::shared_ptr<const Plan> plan_;  // shared with the cache and with connections to equal replicas
  InstanceId engine_;
  WeightVersion live_;
  WeightVersion kept_;
  std::uint64_t highest_number_ = 0;
  std::uint64_t connection_ = 0;
  std::vector<TransportEndpoint> offered_;  // by the engine
  TransportDialer* dialer_ = nullptr;
  TransportEndpoint endpoint_;
  std::int64_t frame_bytes_ = 0;
  std::int32_t credits_ = 0;
  std::vector<std::unique_ptr<BucketSender>> routes_;
  CastSet casts_;  // of these
  std::unique_ptr<ControlInbox> inbox_;
};

// What went wrong when another message came than the phase waits for: the peer's own reason if it is an Abort.
Status Unexpected(const SessionMessage& message);

}  // namespace bascule
