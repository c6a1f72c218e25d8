// How a new engine process gets its first version, and its place in a fleet.
//
// Thread-safety: confined to its owner.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "engine_side/fleet_member.h"
#include "tools/engine_process.h"

namespace bascule {

struct MembershipOptions {
  std::string join;       // address of the publisher; empty: no fleet
  std::string advertise;  // where others reach this engine; empty: where it listens
  std::string from_peer;  // address of an engine that brings the first version; empty: none
};

class EngineMembership {
 public:
  // `engine` is borrowed.
  EngineMembership(MembershipOptions options, EngineProcess& engine, ClientSecurity security);

  // Joins, and waits until the engine is ready: with what the fleet has committed or, where that is nothing yet, with
  // what `load` brings. A peer that is named is asked first, and that it cannot is an error: no silent slow start.
  //
  // InvalidArgument "bad_address"  others cannot reach the address that this engine has: --advertise another
  // as FleetMember::Join, FetchFromPeer and `load`; DeadlineExceeded "deadline"; Cancelled "cancelled"
  Status Begin(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop);

 private:
  Status CheckAddress() const;
  Status Join(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop);
  // From the first of those that have it.
  Status Fetch(const std::vector<std::string>& holders, Deadline deadline, const std::stop_token& stop);
  Status AwaitReady(Deadline deadline, const std::stop_token& stop);

  const MembershipOptions options_;
  EngineProcess& engine_;
  const ClientSecurity security_;
  const std::string address_;
  std::unique_ptr<FleetLink> link_;      // null without a fleet
  std::unique_ptr<FleetMember> member_;  // null without a fleet
};

}  // namespace bascule
