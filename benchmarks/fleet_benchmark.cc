// The control plane alone: one publisher and a fleet of engines of one rank, in one process over loopback, with a model
// so small that its bytes cost nothing.
#include <cstdio>
#include <deque>
#include <utility>

#include "benchmarks/bench_model.h"
#include "benchmarks/measure.h"
#include "benchmarks/peer_process.h"
#include "benchmarks/sync_benchmarks.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/loopback/network.h"
#include "engine_side/weight_receiver.h"
#include "model/engine_layout.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {
namespace {

constexpr std::int64_t kModelBytes = 100'000;
constexpr int kSlots = 2;
constexpr Duration kPatience = std::chrono::minutes(10);

struct LoopbackNetworks {
  LoopbackControl control;
  LoopbackNetwork frames;
};

class SimulatedEngine {
 public:
  static Result<std::unique_ptr<SimulatedEngine>> Create(const ModelConfig& config, const std::string& address,
                                                         LoopbackNetworks& networks) {
    auto engine = std::unique_ptr<SimulatedEngine>(new SimulatedEngine());
    ASSIGN_OR_RETURN(EngineLayout layout, MakeEngineLayout(config, DType::kBf16));
    ASSIGN_OR_RETURN(engine->listener_, LoopbackListener::Create(networks.frames, address));
    ASSIGN_OR_RETURN(engine->receiver_, WeightReceiver::Create({.model = config.Description(),
                                                                .layout = std::move(layout.layout),
                                                                .slot_count = kSlots,
                                                                .listeners = {engine->listener_.get()}},
                                                               engine->hooks_));
    ASSIGN_OR_RETURN(engine->serving_,
                     networks.control.Listen(address, [receiver = engine->receiver_.get()](ControlChannel& channel) {
                       static_cast<void>(receiver->Serve(channel));
                     }));
    return engine;
  }

 private:
  SimulatedEngine() = default;

  IdleHooks hooks_;
  std::unique_ptr<LoopbackListener> listener_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<ControlHost::Listener> serving_;  // last: its handlers end before the receiver
};

class SimulatedFleet {
 public:
  static Result<std::unique_ptr<SimulatedFleet>> Create(int replicas) {
    auto fleet = std::unique_ptr<SimulatedFleet>(new SimulatedFleet());
    const ModelConfig config = ModelOfAbout(kModelBytes);
    const std::vector<TensorSpec> tensors = LogicalTensors(config, DType::kBf16);
    ASSIGN_OR_RETURN(fleet->weights_, RandomBf16Weights(tensors));
    WeightPublisherOptions options{.control = &fleet->networks_.control,
                                   .transports = {&fleet->dialer_},
                                   .run = "benchmark",
                                   .model = config.Description(),
                                   .policy = PublishPolicy::kAll,
                                   .credits = 1,
                                   .connect_timeout = kPatience,
                                   .deadline = kPatience};
    for (int i = 0; i < replicas; ++i) {
      options.replicas.push_back(fmt::format("engine-{}", i));
      ASSIGN_OR_RETURN(auto engine, SimulatedEngine::Create(config, options.replicas.back(), fleet->networks_));
      fleet->engines_.push_back(std::move(engine));
    }
    TensorSource source(/*trainer_ranks=*/1);
    const std::byte* at = fleet->weights_->bytes().data();
    for (const TensorSpec& tensor : tensors) {
      RETURN_IF_ERROR(source.Add(0, {.tensor = tensor, .box = Box::Whole(tensor.shape), .data = at}));
      at += tensor.Bytes();
    }
    ASSIGN_OR_RETURN(fleet->publisher_, WeightPublisher::Create(std::move(options), std::move(source)));
    return fleet;
  }

  // Seconds until every replica had the next version live, and the publisher knew.
  Result<double> Publish() {
    Result<PublishReport> report = Status::Internal("not_published", "");
    const double seconds = SecondsOf([&] {
      const auto handle = publisher_->Publish({});
      report = handle.ok() ? (*handle)->WaitCommitted(Deadline::After(Clock::Real(), kPatience)) : handle.status();
    });
    RETURN_IF_ERROR(report.status());
    for (const ReplicaReport& replica : report->replicas) RETURN_IF_ERROR(replica.status);
    return seconds;
  }
  double slot_kilobytes() const { return static_cast<double>(weights_->bytes().size()) * kSlots / 1e3; }

 private:
  SimulatedFleet() : dialer_(networks_.frames) {}

  LoopbackNetworks networks_;
  LoopbackDialer dialer_;
  std::unique_ptr<DeviceBuffer> weights_;
  std::deque<std::unique_ptr<SimulatedEngine>> engines_;
  std::unique_ptr<WeightPublisher> publisher_;  // last: its connections go first
};

// The first publish of a fleet, which connects and plans; a later one; and what a rank takes.
struct FleetCost {
  double first_ms = 0;
  double commit_ms = 0;
  double rank_kilobytes = 0;
  double slot_kilobytes = 0;
};

Result<FleetCost> MeasureFleet(int replicas, int rounds) {
  const double before_mb = ProcessMemory("VmRSS:");
  ASSIGN_OR_RETURN(const auto fleet, SimulatedFleet::Create(replicas));
  ASSIGN_OR_RETURN(const double first, fleet->Publish());
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    ASSIGN_OR_RETURN(const double one, fleet->Publish());
    seconds.push_back(one);
  }
  return FleetCost{.first_ms = first * 1e3,
                   .commit_ms = QuantileOf(std::move(seconds), 0.5) * 1e3,
                   .rank_kilobytes = (ProcessMemory("VmRSS:") - before_mb) * 1e3 / replicas,
                   .slot_kilobytes = fleet->slot_kilobytes()};
}

// In a process of its own, so that no fleet finds the memory of the one before.
Result<FleetCost> MeasureFleetApart(int replicas, int rounds) {
  ASSIGN_OR_RETURN(const auto process, PeerProcess::Start([&](PeerLink& link) -> Status {
                     ASSIGN_OR_RETURN(const FleetCost cost, MeasureFleet(replicas, rounds));
                     return link.Send(fmt::format("{} {} {} {}", cost.first_ms, cost.commit_ms, cost.rank_kilobytes,
                                                  cost.slot_kilobytes));
                   }));
  ASSIGN_OR_RETURN(const std::string answer, process->link().Receive(Deadline::After(Clock::Real(), kPatience)));
  FleetCost cost;
  if (std::sscanf(answer.c_str(), "%lf %lf %lf %lf", &cost.first_ms, &cost.commit_ms, &cost.rank_kilobytes,
                  &cost.slot_kilobytes) != 4) {
    return Status::Internal("bad_answer", answer);
  }
  return cost;
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunFleetBenchmark(const BenchmarkScale& scale) {
  std::vector<BenchmarkRow> rows;
  FleetCost one;
  for (int replicas = 1; replicas <= scale.replicas; replicas *= 10) {
    ASSIGN_OR_RETURN(const FleetCost cost, MeasureFleetApart(replicas, scale.rounds));
    if (replicas == 1) one = cost;
    rows.push_back({fmt::format("fleet_connect_{}", replicas), cost.first_ms, "ms", one.first_ms * replicas,
                    "as many fleets of one replica, one after another"});
    rows.push_back({fmt::format("fleet_commit_{}", replicas), cost.commit_ms, "ms", one.commit_ms * replicas,
                    "as many publishes to one replica, one after another"});
    rows.push_back({fmt::format("fleet_rank_memory_{}", replicas), cost.rank_kilobytes, "kB", cost.slot_kilobytes,
                    "the two slots of a rank"});
  }
  return rows;
}

}  // namespace bascule
