#include "engine_side/peer_sender.h"

#include <utility>

#include "bridge/send/decided_version.h"
#include "engine_side/live_source.h"

namespace bascule {
namespace {

// Who asks may know no digest.
bool IsSame(const WeightVersion& live, const WeightVersion& wanted) {
  return live.run == wanted.run && live.number == wanted.number &&
         (wanted.digest.IsZero() || live.digest == wanted.digest);
}

}  // namespace

SendReport SendLive(WeightReceiver& receiver, const std::vector<QuantizationFamily>& families,
                    ConnectionOptions connection, Deadline deadline, const StopSignal& stop,
                    const PeerRequest& wanted) {
  SendReport report;
  WeightLease lease = receiver.AcquireLive();
  if (lease.empty()) {
    report.status = Status::FailedPrecondition("nothing_live", "no version is live here");
    return report;
  }
  if (wanted.version && !IsSame(lease.version(), *wanted.version)) {
    report.status = Status::FailedPrecondition(
        "version_not_live", fmt::format("want={} live={}", wanted.version->ToString(), lease.version().ToString()));
    return report;
  }
  const LiveSource source(std::move(lease), receiver.layout());
  if (connection.publisher == InstanceId{}) connection.publisher = InstanceId::Mint();
  PlanCache plans;
  ReplicaConnection replica(std::move(connection), plans);
  if (const Status opened = replica.Open(source.layout(), deadline, stop.token()); !opened.ok()) {
    report.status = replica.Failure(stop.Explain(opened));
    report.phase = replica.phase();
    return report;
  }
  report.version = source.version();
  if (replica.live() == source.version()) return report;
  VersionOffer offer{.run = source.version().run, .number = source.version().number, .families = families};
  offer.new_run = replica.live().run != offer.run;
  offer.first = wanted.first || replica.live().run.empty();
  DecidedVersion same_bytes(source.version());
  return PublishSession(
             replica, source, std::move(offer), deadline, stop, [] {}, &same_bytes)
      .Run();
}

}  // namespace bascule
