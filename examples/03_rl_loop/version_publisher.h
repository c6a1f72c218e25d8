// Publishes the masters of all trainer ranks as versions: every rank sends what it holds, rank 0 leads, and checks of
// each version that what the engine has live is what was sent.
//
// Thread-safety: confined to the training loop.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/shm/dialer.h"
#include "examples/03_rl_loop/background.h"
#include "examples/03_rl_loop/parity_probe.h"
#include "examples/03_rl_loop/rollouts.h"
#include "tools/grpc/version_status_client.h"
#include "trainer_side/weight_publisher.h"

namespace bascule::rl_loop {

struct PublishedVersion {
  WeightVersion version;  // with the digest that the trainer ranks computed; the engine reported the same one
  ProbeAnswer probe;      // the engine's, under this version; on rank 0
  double parity = 0;      // DeviationOf that from what the trainer expects
  std::int64_t bytes = 0;
  double stage_ms = 0;
  double verify_ms = 0;
  double stall_us = 0;           // 0: nothing was decoding
  std::uint64_t recomputed = 0;  // requests that were running at the flip
  // Came to the trainer between the call of Publish and the news of the commit.
  std::uint64_t tokens_meanwhile = 0;
};

// A version on its way.
class Publication {
 public:
  Publication(std::shared_ptr<PublishHandle> handle, Background<PublishedVersion> outcome)
      : handle_(std::move(handle)), outcome_(std::move(outcome)) {}

  // The masters may change again.
  Status AwaitPacked();
  Result<PublishedVersion> AwaitCommitted(const std::stop_token& stop) { return outcome_.Take(stop); }

 private:
  std::shared_ptr<PublishHandle> handle_;
  Background<PublishedVersion> outcome_;
};

class VersionPublisher {
 public:
  // `source` is what this rank of `group` holds. `sampler`, which counts what the engine decodes meanwhile, and `probe`
  // are borrowed.
  //
  // As WeightPublisher::Create, VersionStatusClient::Connect
  static Result<std::unique_ptr<VersionPublisher>> Create(const std::string& engine, std::string run,
                                                          TrainerGroup group, TensorSource source,
                                                          const RolloutSampler& sampler, const ParityProbe& probe);
  // Where the other ranks find rank 0.
  std::string leader() const { return publisher_->group_address(); }

  // As WeightPublisher::Publish, on every rank. The outcome is that of the only replica; on rank 0 also
  //
  // DataLoss "digest_differs"  the engine's live version is not the one that was sent
  // as ParityProbe::Ask
  Result<Publication> Publish(std::uint64_t number);
  // Reads the engine's live memory and digests it: is it `version`, byte for byte?
  //
  // DataLoss "digest_differs"
  Status CheckLiveMemory(const WeightVersion& version);

 private:
  VersionPublisher(const RolloutSampler& sampler, const ParityProbe& probe, bool leads)
      : sampler_(sampler), probe_(probe), leads_(leads) {}
  Result<PublishedVersion> AwaitOutcome(PublishHandle& handle, std::uint64_t tokens_before, std::stop_token stop);
  Status CheckStatus(const WeightVersion& version, std::stop_token stop);

  const RolloutSampler& sampler_;
  const ParityProbe& probe_;
  const bool leads_;
  GrpcControlDialer control_;
  GrpcControlHost host_;
  ShmDialer shm_;
  GrpcDialer grpc_;
  std::unique_ptr<VersionStatusClient> status_;  // of rank 0
  std::unique_ptr<WeightPublisher> publisher_;
};

}  // namespace bascule::rl_loop
