// What publisher and receiver say to each other, as plain types: the session runs without gRPC. docs/protocol.md has
// the table; bridge/session/grpc/ turns these into protobuf at the edge. The processes of one trainer talk over
// channels of the same kind: group_messages.h.
//
// A *connection* is one control channel: Hello and HelloReply once, then any number of sessions, one after another.
// Durations travel as time left, never as points in time.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "bridge/plan/planner.h"
#include "bridge/session/flip_report.h"
#include "bridge/session/group_messages.h"
#include "bridge/transport/transport.h"

namespace bascule {

inline constexpr std::uint32_t kWireVersion = 1;

// Publisher -> receiver, first on a connection.
struct Hello {
  std::uint32_t wire_version = kWireVersion;
  InstanceId publisher;
  std::string model;  // see ManifestOffer::model: two models are told apart before any tensor is missed
  Layout sender_layout;
  PlanOptions plan_options;
};

// Receiver -> publisher, the answer.
struct HelloReply {
  std::uint32_t wire_version = kWireVersion;
  InstanceId engine;
  std::string model;  // see ManifestOffer::model
  Layout engine_layout;
  WeightVersion live;                // run is empty while nothing is live
  WeightVersion kept;                // what a rollback would go back to; run is empty where there is none
  std::uint64_t highest_number = 0;  // committed in the live run; where nothing is live, in the last one
  std::vector<TransportEndpoint> endpoints;
  std::uint64_t connection = 0;  // names the routes of this connection
  std::int32_t max_credits = 0;  // per route
};

// Publisher -> receiver: may this version come? The plan was made by both; its digests must agree.
struct Offer {
  SessionId session;
  std::uint64_t term = 0;  // of the publisher; a takeover raises it
  bool take_over = false;  // replace another publisher's session
  bool first = false;      // an engine's own start: only where nothing is live yet
  ManifestOffer manifest;
  Hash256 plan_digest;
  TransportKind transport = TransportKind::kLoopback;  // of all routes of this connection
  std::int64_t frame_bytes = 0;
  std::int32_t credits = 0;
  Duration time_left{};
};

// Receiver -> publisher: shadow memory is reserved, send. Routes that are not open yet are dialled now.
struct Accept {
  SessionId session;
  // To an offer with a base: its digests, all of them, in the order of ManifestOffer::tensors. What the scope leaves
  // out has been carried over by now.
  std::vector<TensorDigest> base = {};
};

// Publisher -> receiver: every bucket has been acknowledged; these are the digests, of a partial version those of the
// base where nothing was sent.
struct Seal {
  SessionId session;
  ManifestSeal manifest;
};

// Receiver -> publisher: planned buckets that did not arrive. They may be sent, once; then Seal again.
struct Missing {
  SessionId session;
  std::vector<std::uint32_t> buckets;
};

// Receiver -> publisher: the proof is complete on every rank; the version waits for Flip.
struct Ready {
  SessionId session;
  double stage_ms = 0;   // Accept to the last bucket, each digested as it lands
  double verify_ms = 0;  // Seal to Ready: what the proof takes beyond that
};

// Publisher -> receiver: the decision.
struct Flip {
  SessionId session;
  std::uint64_t at_step = 0;  // 0: the next safe point
};

// Receiver -> publisher: the version is live.
struct Committed {
  SessionId session;
  FlipReport report;
};

// Either way, at any time before Committed: the session is over, `why` says so in three ways. It is also the answer to
// an Offer that is refused, and, with session zero, to a Hello or a RollBack that is. Aborts of sessions that are over
// are ignored.
struct Abort {
  SessionId session;
  Status why;
};

// Publisher -> receiver, between sessions: the fleet has committed this version. A replica where it is not live is out
// of rotation (not ready) until it is, or a newer one. Not answered.
struct Require {
  WeightVersion version;
};

// Publisher -> receiver, between sessions: back to the kept version at the next safe point, an operation of the replica
// with its own row in the history. Refused with Abort of session zero, and then nothing changes.
struct RollBack {
  WeightVersion from;               // what must be live
  std::optional<std::uint64_t> to;  // number of what must be kept; none: whatever is
  Status why;                       // for the history, e.g. what the gate said of a canary
  Duration time_left{};
  bool refused = false;  // by a gate: no rollback may go to `from`, so it is not kept
};

// Receiver -> publisher: the kept version is live.
struct RolledBack {
  FlipReport report;
};

using SessionMessage =
    std::variant<Hello, HelloReply, Offer, Accept, Seal, Missing, Ready, Flip, Committed, Abort, GroupJoin,
                 GroupWelcome, GroupEnter, GroupLayout, GroupPlan, GroupPlanned, GroupSend, GroupFetch, GroupSent,
                 GroupPacked, GroupOutcome, Require, RollBack, RolledBack, GroupAgain>;
std::string_view MessageName(const SessionMessage& message);  // "Offer"

}  // namespace bascule
