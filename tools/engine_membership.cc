#include "tools/engine_membership.h"

#include <utility>
#include <vector>

#include "base/net_address.h"
#include "engine_side/grpc/fleet_client.h"

namespace bascule {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(200);  // between looks whether somebody wants this to end

}  // namespace

EngineMembership::EngineMembership(MembershipOptions options, EngineProcess& engine, ClientSecurity security)
    : options_(std::move(options)),
      engine_(engine),
      security_(std::move(security)),
      address_(options_.advertise.empty() ? engine.address() : options_.advertise) {
  if (options_.join.empty()) return;
  link_ = MakeGrpcFleetLink(options_.join, security_);
  member_ = std::make_unique<FleetMember>(FleetMemberOptions{.address = address_}, engine_.receiver(), *link_);
}

Status EngineMembership::Begin(const std::function<Status()>& load, Deadline deadline, const std::stop_token& stop) {
  if (options_.join.empty() && options_.from_peer.empty()) return load();
  RETURN_IF_ERROR(CheckAddress());
  if (!options_.from_peer.empty()) RETURN_IF_ERROR(Fetch({options_.from_peer}, deadline, stop));
  return options_.join.empty() ? OkStatus() : Join(load, deadline, stop);
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
  const bool nothing_live = !engine_.receiver().status().live;
  if (!welcome.required && nothing_live) RETURN_IF_ERROR(load());
  if (welcome.required && !welcome.publisher_sends && !welcome.holders.empty()) {
    RETURN_IF_ERROR(Fetch(welcome.holders, deadline, stop));
  }
  return AwaitReady(deadline, stop);
}

Status EngineMembership::Fetch(const std::vector<std::string>& holders, Deadline deadline,
                               const std::stop_token& stop) {
  Status status;
  for (const std::string& holder : holders) {
    status = FetchFromPeer(holder, address_, deadline, stop, security_).status();
    if (status.ok() || stop.stop_requested()) return status;
  }
  return status;
}

Status EngineMembership::AwaitReady(Deadline deadline, const std::stop_token& stop) {
  WeightReceiver& receiver = engine_.receiver();
  Clock& clock = Clock::Real();
  std::uint64_t seen = 0;
  while (!receiver.status().Ready()) {
    if (stop.stop_requested()) return Status::Cancelled("cancelled", "stopped while it was brought its first version");
    if (deadline.Passed(clock)) return Status::DeadlineExceeded("deadline", "no version of the fleet came in time");
    if (const auto mark = receiver.WaitForChange(seen, Deadline::After(clock, kLook)); mark.ok()) seen = *mark;
  }
  return OkStatus();
}

}  // namespace bascule
