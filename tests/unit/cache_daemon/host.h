// One host in one process: receivers, a cache daemon over one of them, publishers that bring versions.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/cache_daemon/cache_daemon.h"
#include "engine_side/cache_daemon/cache_follower.h"
#include "engine_side/weight_receiver.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine_side/scripted_publisher.h"

namespace bascule {

// A replica that decodes nothing. `address` is its own.
class Replica {
 public:
  Replica(LoopbackControl& control, LoopbackNetwork& network, std::string address, WeightReceiverOptions options);

  WeightReceiver& receiver() { return *receiver_; }
  std::optional<WeightVersion> live() const { return receiver_->status().live; }
  std::uint64_t number() const { return live() ? live()->number : 0; }
  // Has a publisher bring version `number`.
  void Publish(std::uint64_t number, const std::string& run = "run");
  // What the replica says to the offer of a version.
  Status TryOffer(std::uint64_t number);
  // Waits until version `number` is live and the replica is ready.
  void AwaitNumber(std::uint64_t number);
  // A byte of what is live, in the memory where it lies.
  const std::byte* Memory() const { return receiver_->AcquireLive().Tensor(1, 0).data(); }

 private:
  LoopbackControl& control_;
  LoopbackDialer dialer_;
  const std::string address_;
  IdleHooks hooks_;
  std::unique_ptr<LoopbackListener> transport_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> server_;
};

// Memory that can be frozen, as long as there is any.
class ScarceMemory final : public DeviceMemory {
 public:
  Result<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t size) override;
  std::string_view name() const override { return "host"; }
  std::atomic<bool> scarce = false;
};

class HostTest : public ::testing::Test {
 protected:
  static constexpr auto kPatience = std::chrono::seconds(60);
  static Deadline Soon() { return Deadline::After(Clock::Real(), kPatience); }
  static ArtifactFingerprint Fingerprint(const std::string& architecture = "TestModel layers=1") {
    return {.architecture = architecture, .tensor = 2, .dtype = "BF16,F32", .quantization = "none"};
  }

  std::unique_ptr<Replica> MakeReplica(WeightReceiverOptions options = {});
  void StartDaemon(int keep = 2, const std::function<void(Replica&)>& before_it_listens = {});
  void StopDaemon() {
    daemon_.reset();
    cache_.reset();
  }
  std::unique_ptr<CacheFollower> Follower(Replica& engine, CacheFollowerOptions options = {});
  // An engine that has attached.
  struct Engine {
    std::unique_ptr<Replica> replica;
    std::unique_ptr<CacheFollower> follower;  // goes first
    Result<WeightVersion> attached = Status::Internal("unset");
  };
  Engine Attached(CacheFollowerOptions options = {});

  TempDirectory directory_;
  const std::string socket_ = directory_.File("cache.sock");
  LoopbackControl control_;
  LoopbackNetwork network_;
  int replicas_ = 0;
  ScarceMemory memory_;             // the daemon's
  std::unique_ptr<Replica> cache_;  // the daemon's receiver
  std::unique_ptr<CacheDaemon> daemon_;
};

}  // namespace bascule
