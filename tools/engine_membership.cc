#include "tools/engine_membership.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/net_address.h"
#include "engine_side/grpc/fleet_client.h"

namespace bascule {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(200);  // between looks whether somebody wants this to end

// A publisher did, or is at it.
bool CameFirst(const Status& status) {
  return status.reason() == "already_live" || status.reason() == "publisher_busy" || status.reason() == "fenced";
}

}  // namespace

EngineMembership::EngineMembership(MembershipOptions options, ReceivingProcess& process, ClientSecurity security)
    : options_(std::move(options)),
      process_(process),
      security_(std::move(security)),
      address_(options_.advertise.empty() ? process.address() : options_.advertise) {
  if (options_.join.empty()) return;
  link_ = MakeGrpcFleetLink(options_.join, security_);
  member_ = std::make_unique<FleetMember>(FleetMemberOptions{.address = address_}, process_.receiver(), *link_);
}

std::string_view FirstSourceName(FirstSource source) {
  switch (source) {
    case FirstSource::kDisk:
      return "disk";
    case FirstSource::kPeer:
      return "peer";
    case FirstSource::kDaemon:
      return "daemon";
    case FirstSource::kFleet:
      return "fleet";
    case FirstSource::kPublisher:
      return "publisher";
  }
  return "unknown";
}

Status EngineMembership::Begin(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop) {
  if (!options_.join.empty() || !options_.from_peer.empty()) RETURN_IF_ERROR(CheckAddress());
  bool brought = false;
  if (!options_.from_daemon.empty()) {
    ASSIGN_OR_RETURN(brought, AttachToDaemon(deadline, stop));
  }
  if (!options_.from_peer.empty()) {
    const PeerRequest whatever{.to = address_, .first = true, .version = std::nullopt};
    const auto fetch = [&] { return Fetch({options_.from_peer}, whatever, deadline, stop); };
    RETURN_IF_ERROR(BringFirst(fetch, FirstSource::kPeer, deadline, stop));
    brought = true;
  }
  if (!options_.join.empty()) return Join(load, deadline, stop);
  return brought ? OkStatus() : BringFirst(load, FirstSource::kDisk, deadline, stop);
}

Result<bool> EngineMembership::AttachToDaemon(Deadline deadline, const std::stop_token& stop) {
  CacheFollowerOptions options{.socket = options_.from_daemon, .fingerprint = process_.fingerprint()};
  options.check = options_.check_daemon;
  options.number = options_.daemon_version;
  options.follow = options_.follow_daemon && options_.join.empty();
  follower_ = std::make_unique<CacheFollower>(std::move(options), process_.receiver());
  const Status attached = follower_->Attach(deadline, stop).status();
  if (attached.reason() == "daemon_absent") {
    LogWarn("daemon_absent", "socket={} what=\"no daemon: the first version is loaded\"", options_.from_daemon);
    return false;
  }
  RETURN_IF_ERROR(attached);
  first_source_ = FirstSource::kDaemon;
  return true;
}

Status EngineMembership::CheckAddress() const {
  ASSIGN_OR_RETURN(const NetAddress address, NetAddress::Parse(address_));
  for (const std::string& peer : {options_.join, options_.from_peer}) {
    if (peer.empty()) continue;
    ASSIGN_OR_RETURN(const NetAddress other, NetAddress::Parse(peer));
    const bool here = other.is_loopback() || other.is_unix();
    if (!address.is_wildcard() && (here || !(address.is_loopback() || address.is_unix()))) continue;
    return Status::InvalidArgument(
        "bad_address", fmt::format("{} cannot dial {}: --advertise an address of this host", peer, address_));
  }
  return OkStatus();
}

Status EngineMembership::Join(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const FleetWelcome welcome, member_->Join(deadline, stop));
  const bool nothing_live = !process_.receiver().status().live;
  if (nothing_live && welcome.required) first_source_ = FirstSource::kFleet;
  if (!welcome.required && nothing_live) RETURN_IF_ERROR(BringFirst(load, FirstSource::kDisk, deadline, stop));
  return AwaitReady(deadline, stop);
}

Status EngineMembership::Fetch(const std::vector<std::string>& holders, const PeerRequest& request, Deadline deadline,
                               const std::stop_token& stop) {
  Status status;
  for (const std::string& holder : holders) {
    status = FetchFromPeer(holder, request, deadline, stop, security_).status();
    if (status.ok() || stop.stop_requested()) return status;
  }
  return status;
}

Status EngineMembership::BringFirst(const std::function<Status()>& bring, FirstSource source, Deadline deadline,
                                    const std::stop_token& stop) {
  WeightReceiver& receiver = process_.receiver();
  Clock& clock = Clock::Real();
  while (true) {
    ASSIGN_OR_RETURN(const StatusChanges now, receiver.ChangesSince(0, deadline));
    if (receiver.status().live) {
      first_source_ = FirstSource::kPublisher;
      return OkStatus();
    }
    const Status brought = bring();
    if (brought.ok()) {
      first_source_ = source;
      return brought;
    }
    if (!CameFirst(brought) || deadline.Passed(clock) || stop.stop_requested()) return brought;
    static_cast<void>(receiver.WaitForChange(now.mark, std::min(deadline, Deadline::After(clock, kLook))));
  }
}

Status EngineMembership::AwaitReady(Deadline deadline, const std::stop_token& stop) {
  WeightReceiver& receiver = process_.receiver();
  Clock& clock = Clock::Real();
  std::uint64_t seen = 0;
  std::optional<WeightVersion> fetched;
  while (!receiver.status().Ready()) {
    if (stop.stop_requested()) return Status::Cancelled("cancelled", "stopped while it was brought its first version");
    if (deadline.Passed(clock)) return Status::DeadlineExceeded("deadline", "no version of the fleet came in time");
    // A publisher may come to lack the bytes of what it was going to send.
    const FleetWelcome now = member_->welcome();
    if (now.required && now.required != fetched && !now.publisher_sends && !now.holders.empty()) {
      const PeerRequest request{.to = address_, .first = false, .version = now.required};
      const Status done = Fetch(now.holders, request, deadline, stop);
      // The holder has gone on: the publisher will hear of it, and say who has the version now.
      const bool gone_on = done.reason() == "version_not_live";
      if (!gone_on) fetched = now.required;
      if (!gone_on && !CameFirst(done) && !receiver.status().Ready()) RETURN_IF_ERROR(done);
    }
    if (const auto mark = receiver.WaitForChange(seen, Deadline::After(clock, kLook)); mark.ok()) seen = *mark;
  }
  return OkStatus();
}

}  // namespace bascule
