// Publishes the trainer's masters as versions, and checks of each that what the engine has live is what was sent.
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
#include "examples/03_rl_loop/rollouts.h"
#include "tools/grpc/version_status_client.h"
#include "trainer_side/weight_publisher.h"

namespace bascule::rl_loop {

struct PublishedVersion {
  WeightVersion version;  // with the digest that the trainer ranks computed; the engine reported the same one
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
  // `sampler` is borrowed: it counts what the engine decodes meanwhile.
  //
  // As WeightPublisher::Create, VersionStatusClient::Connect
  static Result<std::unique_ptr<VersionPublisher>> Create(const std::string& engine, std::string run,
                                                          TensorSource source, const RolloutSampler& sampler);

  // As WeightPublisher::Publish. The outcome is that of the only replica:
  //
  // DataLoss "digest_differs"  the engine's live version is not the one that was sent
  Result<Publication> Publish(std::uint64_t number);
  // Reads the engine's live memory and digests it: is it `version`, byte for byte?
  //
  // DataLoss "digest_differs"
  Status CheckLiveMemory(const WeightVersion& version);

 private:
  explicit VersionPublisher(const RolloutSampler& sampler) : sampler_(sampler) {}
  Result<PublishedVersion> AwaitOutcome(PublishHandle& handle, std::uint64_t tokens_before, std::stop_token stop);
  Status CheckStatus(const WeightVersion& version, std::stop_token stop);

  const RolloutSampler& sampler_;
  GrpcControlDialer control_;
  ShmDialer shm_;
  GrpcDialer grpc_;
  std::unique_ptr<VersionStatusClient> status_;
  std::unique_ptr<WeightPublisher> publisher_;
};

}  // namespace bascule::rl_loop
