#include "examples/03_rl_loop/version_publisher.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace bascule::rl_loop {
namespace {

constexpr Duration kPublishTimeout = std::chrono::seconds(60);
constexpr Duration kAnswerTimeout = std::chrono::seconds(10);

Deadline In(Duration time) { return Deadline::After(Clock::Real(), time); }

Status Differs(const WeightVersion& sent, const std::string& live) {
  return Status::DataLoss("digest_differs", fmt::format("sent {} with digest {}, the engine has {}", sent.ToString(),
                                                        sent.digest.ToHex(), live));
}

}  // namespace

Status Publication::AwaitPacked() { return handle_->WaitPacked(In(kPublishTimeout)); }

Result<std::unique_ptr<VersionPublisher>> VersionPublisher::Create(const std::string& engine, std::string run,
                                                                   TrainerGroup group, TensorSource source,
                                                                   const RolloutSampler& sampler,
                                                                   const ParityProbe& probe) {
  std::unique_ptr<VersionPublisher> made(new VersionPublisher(sampler, probe, /*leads=*/group.rank == 0));
  WeightPublisherOptions options;
  if (made->leads_) {
    ASSIGN_OR_RETURN(made->status_, VersionStatusClient::Connect(engine, In(kAnswerTimeout)));
    options.replicas = {engine};
  }
  options.group = std::move(group);
  options.group.host = &made->host_;
  options.control = &made->control_;
  options.transports = {&made->shm_, &made->grpc_};
  options.run = std::move(run);
  options.deadline = kPublishTimeout;
  ASSIGN_OR_RETURN(made->publisher_, WeightPublisher::Create(std::move(options), std::move(source)));
  return made;
}

Result<Publication> VersionPublisher::Publish(std::uint64_t number) {
  const std::uint64_t tokens_before = sampler_.tokens_received();
  ASSIGN_OR_RETURN(std::shared_ptr<PublishHandle> handle, publisher_->Publish({.number = number}));
  return Publication(handle, {"publication", [this, handle, tokens_before](std::stop_token stop) {
                                return AwaitOutcome(*handle, tokens_before, std::move(stop));
                              }});
}

Result<PublishedVersion> VersionPublisher::AwaitOutcome(PublishHandle& handle, std::uint64_t tokens_before,
                                                        std::stop_token stop) {
  const std::stop_callback cancel(stop, [this] { publisher_->Cancel(); });
  ASSIGN_OR_RETURN(const PublishReport report, handle.WaitCommitted(In(kPublishTimeout)));
  const std::uint64_t tokens_after = sampler_.tokens_received();
  const ReplicaReport& replica = report.replicas.front();
  RETURN_IF_ERROR(replica.status);
  PublishedVersion published = {.version = report.version,
                                .bytes = report.bytes,
                                .stage_ms = replica.stage_ms,
                                .verify_ms = replica.verify_ms,
                                .stall_us = replica.flip.flip_stall_us,
                                .recomputed = replica.flip.kv.recomputed,
                                .tokens_meanwhile = tokens_after - tokens_before};
  if (leads_) {
    RETURN_IF_ERROR(CheckStatus(report.version, stop));
    ASSIGN_OR_RETURN(published.probe, probe_.Ask(report.version.number, stop));
  }
  return published;
}

Status VersionPublisher::CheckStatus(const WeightVersion& version, std::stop_token stop) {
  ASSIGN_OR_RETURN(const Json status, status_->GetStatus(In(kAnswerTimeout), std::move(stop)));
  const Json& live = status["live"];
  const bool same = live.is_object() && live.value("version", std::uint64_t{0}) == version.number &&
                    live.value("run", "") == version.run && live.value("digest", "") == version.digest.ToHex();
  return same ? OkStatus() : Differs(version, live.dump());
}

Status VersionPublisher::CheckLiveMemory(const WeightVersion& version) {
  ASSIGN_OR_RETURN(const LiveDigests live, status_->DigestLive(In(kPublishTimeout), {}));
  if (!live.replica_differences.empty()) return Differs(version, live.replica_differences[0].what);
  const Hash256 digest = VersionDigestOf(live.tensors, live.digests);
  return digest == version.digest ? OkStatus() : Differs(version, "memory of digest " + digest.ToHex());
}

}  // namespace bascule::rl_loop
