#include "tests/unit/cache_daemon/host.h"

#include <utility>

#include "engine_side/cache_daemon/frozen_memory.h"

namespace bascule {

Replica::Replica(LoopbackControl& control, LoopbackNetwork& network, std::string address, WeightReceiverOptions options)
    : control_(control), dialer_(network), address_(std::move(address)) {
  transport_ = *LoopbackListener::Create(network, address_);
  options.model = "TestModel layers=1";
  options.layout = EngineLayoutForTest();
  options.listeners = {transport_.get()};
  receiver_ = *WeightReceiver::Create(std::move(options), hooks_);
  server_ = *control_.Listen(address_, [this](ControlChannel& channel) { (void)receiver_->Serve(channel); });
}

void Replica::Publish(std::uint64_t number, const std::string& run) {
  ScriptedPublisher publisher(*control_.Dial(address_, Deadline::After(Clock::Real(), std::chrono::seconds(60))),
                              dialer_, Clock::Real());
  publisher.Greet();
  Offer offer = publisher.MakeOffer(number, run);
  offer.manifest.new_run = live().has_value() && live()->run != run;
  publisher.Publish(offer);
}

Status Replica::TryOffer(std::uint64_t number) {
  ScriptedPublisher publisher(*control_.Dial(address_, Deadline::After(Clock::Real(), std::chrono::seconds(60))),
                              dialer_, Clock::Real());
  publisher.Greet();
  publisher.Send(publisher.MakeOffer(number));
  const SessionMessage answer = publisher.Next();
  const Abort* const abort = std::get_if<Abort>(&answer);
  return abort != nullptr ? abort->why : OkStatus();
}

void Replica::AwaitNumber(std::uint64_t wanted) {
  std::uint64_t mark = 0;
  while (number() != wanted || !receiver_->status().Ready()) {
    const auto changed = receiver_->WaitForChange(mark, Deadline::After(Clock::Real(), std::chrono::seconds(60)));
    ASSERT_TRUE(changed.ok()) << changed.status().ToString() << "; live is " << number() << ", want " << wanted;
    mark = *changed;
  }
}

Result<std::unique_ptr<DeviceBuffer>> ScarceMemory::Allocate(std::size_t size) {
  if (scarce) return Status::ResourceExhausted("device_memory", fmt::format("bytes={}", size));
  return FreezableMemory().Allocate(size);
}

std::unique_ptr<Replica> HostTest::MakeReplica(WeightReceiverOptions options) {
  return std::make_unique<Replica>(control_, network_, fmt::format("replica-{}", ++replicas_), std::move(options));
}

void HostTest::StartDaemon(int keep, const std::function<void(Replica&)>& before_it_listens) {
  WeightReceiverOptions options;
  options.memory = {.from = &memory_, .when_reserved = true};
  cache_ = MakeReplica(std::move(options));
  if (before_it_listens) before_it_listens(*cache_);
  auto daemon = CacheDaemon::Create({.socket = socket_, .keep = keep, .model = {.fingerprint = Fingerprint()}},
                                    cache_->receiver());
  ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
  daemon_ = *std::move(daemon);
}

std::unique_ptr<CacheFollower> HostTest::Follower(Replica& engine, CacheFollowerOptions options) {
  if (options.socket.empty()) options.socket = socket_;
  options.first_retry = std::chrono::milliseconds(1);
  options.retry_cap = std::chrono::milliseconds(20);
  if (options.fingerprint == ArtifactFingerprint{}) options.fingerprint = Fingerprint();
  return std::make_unique<CacheFollower>(std::move(options), engine.receiver());
}

HostTest::Engine HostTest::Attached(CacheFollowerOptions options) {
  Engine engine;
  WeightReceiverOptions receiver;
  receiver.memory.when_reserved = true;
  engine.replica = MakeReplica(std::move(receiver));
  engine.follower = Follower(*engine.replica, std::move(options));
  engine.attached = engine.follower->Attach(Soon(), {});
  return engine;
}

}  // namespace bascule
