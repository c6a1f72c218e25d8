// Stage: send (plan -> [send] -> transport)
//
// One session: one version from one source to one replica, from Offer to Committed. Whoever holds the version can be
// the source: a trainer, its snapshot, a checkpoint (an engine loads its own over loopback), a peer.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/send/cancellation.h"
#include "bridge/send/flip_decider.h"
#include "bridge/send/replica_connection.h"
#include "bridge/send/send_phase.h"
#include "bridge/send/session_sending.h"
#include "bridge/send/weight_source.h"
#include "bridge/session/messages.h"

namespace bascule {

// What is offered. Fields as in ManifestOffer and Offer.
struct VersionOffer {
  std::string run;
  std::uint64_t number = 0;
  bool new_run = false;
  std::map<std::string, std::string> labels;
  std::vector<QuantizationFamily> families;
  std::uint64_t term = 1;
  bool take_over = false;
  bool first = false;
  std::optional<WeightVersion> base = {};  // see ManifestOffer; where the connection's plan has a scope
  // Digests of tensors in the wire types, by name, where they are on record: an artifact's manifest. The engine then
  // proves its memory against the record, not against what the source happens to hold now.
  std::map<std::string, TensorDigest> recorded;
};

struct SendReport {
  Status status;  // OK: committed. Its message names the replica and the phase, and has the engine's own text if it
                  // ended the session.
  SendPhase phase = SendPhase::kConnect;  // the last one entered
  TransportKind transport = TransportKind::kLoopback;
  WeightVersion version;        // digest: zero until everything was sent
  std::int64_t bytes = 0;       // payload of the plan
  std::int64_t wire_bytes = 0;  // frames sent, resends included
  double stage_ms = 0;
  double verify_ms = 0;
  bool decided = false;  // the replica was ready and is to flip: a failure after that may have come too late
  FlipReport flip;
};

class PublishSession {
 public:
  // Borrows `connection`, which is open, and `source`, which has the layout that the connection said Hello with (a
  // snapshot: in the wire types). `on_sealed` is called once the engine has verified every byte: nothing of the source
  // is read any more, nor after Run. `decider` is borrowed; null: flip when ready. What it has decided is carried out
  // even when `stop` is requested then.
  PublishSession(ReplicaConnection& connection, const WeightSource& source, VersionOffer offer, Deadline deadline,
                 StopSignal stop, std::function<void()> on_sealed, FlipDecider* decider = nullptr);

  // A session that fails tells the engine why and closes the connection.
  SendReport Run();

 private:
  Status RunPhases();
  Status OfferVersion();
  ManifestOffer Manifest() const;
  Status TakeBase(const std::vector<TensorDigest>& digests);
  Status OpenRoutes();
  Status SendVersion();
  Status SendBuckets(SessionSending& sending);
  Status SealAndVerify(SessionSending& sending);
  Status AwaitDecision();
  Status FlipNow();

  // Waits until `sending` is through; whatever the engine says meanwhile ends it.
  Status Await(SessionSending& sending);
  Status SendSeal(const SessionSending& sending);
  // The next message for this session, or nothing once `done`: see ControlInbox::Next.
  Result<std::optional<SessionMessage>> NextEvent(Deadline deadline, const std::function<bool()>& done = {});
  Result<SessionMessage> NextMessage(Deadline deadline);
  // The next message, if it is a T of this session.
  template <typename T>
  Result<T> Expect();
  // `failure` of a route, or what the engine has to say about it, or that the engine is gone.
  Status Explained(const Status& failure);
  // An engine that loses a route knows its sending rank, but not what became of that: the team may.
  Status NamingTheLostRank(const Status& failure, const SessionSending& sending);
  void EndFailed(const Status& why);

  ReplicaConnection& connection_;
  Clock& clock_;
  const VersionOffer offer_;
  const Deadline deadline_;
  StopSignal stop_;
  const std::function<void()> on_sealed_;
  FlipDecider* const decider_;
  const SessionId session_ = SessionId::Mint();
  const BucketPacker packer_;
  std::vector<std::size_t> by_name_;  // plan tensors in the order of the manifest
  std::vector<TensorDigest> base_;    // per plan tensor; empty without a base
  bool engine_ended_ = false;         // by an Abort
  bool source_failed_ = false;
  SendReport report_;
};

// Opens a connection, sends one version over it and closes it: how an engine loads its own checkpoint.
SendReport PublishOnce(const WeightSource& source, ConnectionOptions connection, VersionOffer offer, Deadline deadline,
                       StopSignal stop = {});

}  // namespace bascule
