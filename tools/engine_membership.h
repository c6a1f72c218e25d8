// How a new engine, or a new cache daemon, gets its first version, and its place in a fleet.
//
// Thread-safety: confined to its owner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "engine_side/cache_daemon/cache_follower.h"
#include "engine_side/fleet_member.h"
#include "tools/receiving_process.h"

namespace bascule {

struct MembershipOptions {
  std::string join;                             // address of the publisher; empty: no fleet
  std::string advertise;                        // where others reach this engine; empty: where it listens
  std::string from_peer;                        // address of an engine that brings the first version; empty: none
  std::string from_daemon;                      // socket of the cache daemon of this host; empty: none
  bool check_daemon = true;                     // digest what the daemon lends; else its record is believed
  bool follow_daemon = true;                    // outside a fleet
  std::optional<std::uint64_t> daemon_version;  // that version of the daemon's, and no later one
};

// Where the first version has come from.
enum class FirstSource { kDisk, kPeer, kDaemon, kFleet, kPublisher };
std::string_view FirstSourceName(FirstSource source);  // "disk"

class EngineMembership {
 public:
  // `process` is borrowed.
  EngineMembership(MembershipOptions options, ReceivingProcess& process, ClientSecurity security);

  // Joins, and waits until the engine is ready: with what the fleet has committed or, where that is nothing yet, with
  // what `load` brings. A peer or a daemon that is named is asked first, and that it cannot is an error: no silent slow
  // start. Only where the daemon's socket does not exist `load` takes its place. Where a publisher has been quicker,
  // what it has made live is the first version: nothing is loaded over it. Outside a fleet the daemon is followed from
  // then on; in a fleet the publisher brings what comes.
  //
  // InvalidArgument "bad_address"  others cannot reach the address that this engine has: --advertise another
  // as FleetMember::Join, FetchFromPeer, CacheFollower::Attach and `load`; DeadlineExceeded "deadline"; Cancelled
  // "cancelled"
  Status Begin(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop);
  FirstSource first_source() const { return first_source_; }

 private:
  Status CheckAddress() const;
  // False: there is no daemon.
  Result<bool> AttachToDaemon(Deadline deadline, const std::stop_token& stop);
  Status Join(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop);
  // From the first of those that have it.
  Status Fetch(const std::vector<std::string>& holders, const PeerRequest& request, Deadline deadline,
               const std::stop_token& stop);
  // Has `bring` make a version live, unless somebody else does.
  Status BringFirst(const std::function<Status()>& bring, FirstSource source, Deadline deadline,
                    const std::stop_token& stop);
  Status AwaitReady(Deadline deadline, const std::stop_token& stop);

  const MembershipOptions options_;
  ReceivingProcess& process_;
  const ClientSecurity security_;
  const std::string address_;
  FirstSource first_source_ = FirstSource::kDisk;
  std::unique_ptr<CacheFollower> follower_;  // null without a daemon
  std::unique_ptr<FleetLink> link_;          // null without a fleet
  std::unique_ptr<FleetMember> member_;      // null without a fleet
};

}  // namespace bascule
