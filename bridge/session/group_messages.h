// What the processes of one trainer say to each other when each sends its own shards: a *member* (trainer rank 1 and
// up) dials the *leader* (trainer rank 0), which alone talks to the engines' control channels. They travel on the same
// kind of channel as the messages between publisher and receiver; docs/protocol.md, "Trainer groups", has their order.
//
// Beside these a group uses Missing (leader to member: send these again), and Abort: of a session, or, with session
// zero, of the membership.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/sha256.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "bridge/plan/planner.h"
#include "bridge/session/flip_report.h"
#include "bridge/transport/transport.h"

namespace bascule {

// Member -> leader, first on a channel: who I am and what I hold.
struct GroupJoin {
  std::uint32_t wire_version = 0;
  std::string group;  // the job's name: two jobs that meet at one address are told apart
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  InstanceId instance;
  Layout part;  // one rank: the member's own
};

// Leader -> member, the answer.
struct GroupWelcome {
  InstanceId leader;
  std::uint64_t round = 0;  // the publish that comes next; they are counted
};

// Member -> leader: my tensors hold the version of this round. Also the answer to GroupAgain.
struct GroupEnter {
  std::uint64_t round = 0;
  std::optional<std::uint64_t> number;  // of the version, where this rank was told one
  // Once the round is over it sends the version again when it is asked to; to GroupAgain: it still has the bytes.
  bool sends_again = false;
};

// Leader -> member, once for every change: the parts of all ranks, as engines get to see them.
struct GroupLayout {
  Layout layout;
};

// Leader -> member, once for every connection to a replica: make this plan.
struct GroupPlan {
  std::string replica;
  std::uint64_t connection = 0;
  Layout engine_layout;
  PlanOptions plan_options;
  Hash256 plan_digest;
  std::vector<TransportEndpoint> endpoints;
};

// Member -> leader: the plan agrees and I could use these of its endpoints, or why not.
struct GroupPlanned {
  std::uint64_t connection = 0;
  Status status;
  std::vector<TransportKind> transports;
};

// Leader -> member: the replica has accepted the session. Open your routes and send your buckets.
struct GroupSend {
  SessionId session;
  std::uint64_t connection = 0;
  TransportEndpoint endpoint;
  std::int64_t frame_bytes = 0;
  std::int32_t credits = 0;
  Duration time_left{};
  bool on_request = false;  // the leader gathers full tensors: open your routes, and send what GroupFetch names
  std::uint64_t round = 0;  // whose version is sent: who has gone on to another refuses
};

// Leader -> member, in a session that is on request: send those of these buckets that are yours. One of no buckets is
// the last, and answered by GroupSent once everything is acknowledged.
struct GroupFetch {
  SessionId session;
  std::uint32_t first_bucket = 0;
  std::uint32_t bucket_count = 0;
};

// Member -> leader: every bucket of mine that you asked for is acknowledged.
struct GroupSent {
  SessionId session;
  std::vector<TensorDigest> totals;  // per plan tensor: of my slices that count, in this session so far
  std::int64_t wire_bytes = 0;       // in this session so far
};

// Leader -> member, between rounds: a replica that came late is to get the version of the last round. Until
// GroupOutcome of that round comes once more, plans and sends are those of any round.
struct GroupAgain {
  std::uint64_t round = 0;
};

// Leader -> member: every replica has verified the version, or has failed; the tensors may change.
struct GroupPacked {
  std::uint64_t round = 0;
};

// What became of one replica in a round.
struct ReplicaOutcome {
  std::string address;
  Status status;  // OK: committed
  std::string phase;
  TransportKind transport = TransportKind::kLoopback;
  double stage_ms = 0;
  double verify_ms = 0;
  FlipReport flip;
};

// Leader -> member: the round is over.
struct GroupOutcome {
  std::uint64_t round = 0;
  WeightVersion version;
  std::int64_t bytes = 0;
  std::int64_t wire_bytes = 0;
  std::vector<ReplicaOutcome> replicas;
};

}  // namespace bascule
