// A checkpoint from disk into an engine's slot, along the way that every version takes: plan, staging, verify, flip;
// and the start of an engine whose host has a cache daemon.
#include "benchmarks/bench_checkpoint.h"
#include "benchmarks/bench_model.h"
#include "benchmarks/load_benchmarks.h"
#include "benchmarks/measure.h"
#include "bridge/plan/planner.h"
#include "bridge/send/publish_session.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "checkpoint/checkpoint.h"
#include "engine_side/cache_daemon/cache_daemon.h"
#include "engine_side/cache_daemon/cache_follower.h"
#include "engine_side/cache_daemon/frozen_memory.h"
#include "engine_side/weight_receiver.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr Duration kLoadDeadline = std::chrono::minutes(2);

// An engine's memory and receiver, and nothing that decodes.
class LoadEngine {
 public:
  static Result<std::unique_ptr<LoadEngine>> Create(const ModelConfig& config, SlotMemory memory = {}) {
    std::unique_ptr<LoadEngine> engine(new LoadEngine());
    ASSIGN_OR_RETURN(EngineLayout layout, MakeEngineLayout(config, DType::kBf16));
    ASSIGN_OR_RETURN(engine->listener_, LoopbackListener::Create(engine->network_, "engine"));
    const TimePoint start = Clock::Real().Now();
    ASSIGN_OR_RETURN(engine->receiver_,
                     WeightReceiver::Create(
                         {.layout = std::move(layout.layout), .memory = memory, .listeners = {engine->listener_.get()}},
                         engine->hooks_));
    engine->prefault_seconds_ = std::chrono::duration<double>(Clock::Real().Now() - start).count();
    WeightReceiver& receiver = *engine->receiver_;
    ASSIGN_OR_RETURN(engine->serving_, engine->control_.Listen("engine", [&receiver](ControlChannel& channel) {
      static_cast<void>(receiver.Serve(channel));
    }));
    return engine;
  }

  // Opens and loads the checkpoint; gives the seconds.
  Result<double> Load(const std::string& path, ReadStrategy strategy) {
    const TimePoint start = Clock::Real().Now();
    ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path, {.strategy = strategy}));
    LoopbackDialer dialer(network_);
    ConnectionOptions connection;
    connection.address = "engine";
    connection.control = &control_;
    connection.transports = {&dialer};
    VersionOffer offer;
    offer.run = "benchmark";
    offer.number = ++version_;
    offer.new_run = version_ == 1;
    const SendReport report = PublishOnce(*checkpoint, std::move(connection), std::move(offer),
                                          Deadline::After(Clock::Real(), kLoadDeadline), {});
    RETURN_IF_ERROR(report.status);
    return std::chrono::duration<double>(Clock::Real().Now() - start).count();
  }

  WeightReceiver& receiver() { return *receiver_; }
  double prefault_seconds() const { return prefault_seconds_; }
  std::size_t memory_bytes() const {
    return static_cast<std::size_t>(2 * receiver_->status().slot_bytes.front());  // two slots
  }

 private:
  LoadEngine() = default;
  IdleHooks hooks_;
  LoopbackControl control_;
  LoopbackNetwork network_;
  std::unique_ptr<LoopbackListener> listener_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> serving_;
  double prefault_seconds_ = 0;
  std::uint64_t version_ = 0;
};

// What a load holds at its peak beyond what the engine holds before and after it.
Result<double> ExtraMemory(LoadEngine& engine, const std::string& path) {
  ForgetPeakMemory();
  const double before = ProcessMemory("VmRSS:");
  RETURN_IF_ERROR(engine.Load(path, ReadStrategy::kRead).status());
  return ProcessMemory("VmHWM:") - before;
}

// What 8 engine ranks read that load one after another, each only what it holds.
Result<double> BytesReadByEightRanks(const ModelConfig& config, const std::string& path) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path, {.strategy = ReadStrategy::kRead}));
  ASSIGN_OR_RETURN(const EngineLayout engine, MakeEngineLayout(config, DType::kBf16, {.tensor = 8}));
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(checkpoint->layout(), engine.layout, {}));
  const BucketPacker packer(plan, *checkpoint);
  for (std::int32_t rank = 0; rank < 8; ++rank) {
    std::vector<std::uint32_t> buckets;
    std::size_t boxes = 0;
    for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
      if (plan.routes[static_cast<std::size_t>(plan.buckets[b].route)].engine_rank != rank) continue;
      buckets.push_back(b);
      boxes += plan.buckets[b].slices.size();
    }
    const std::unique_ptr<BoxReader> reader = packer.Read(buckets);
    for (std::size_t box = 0; box < boxes; ++box) RETURN_IF_ERROR(reader->Next().status());
  }
  return static_cast<double>(checkpoint->read_summary().read_bytes);
}

constexpr SlotMemory kWhenReserved = {.from = nullptr, .when_reserved = true};

ArtifactFingerprint FingerprintOf(const ModelConfig& config) {
  return {.architecture = config.Description(), .dtype = "BF16", .quantization = "none"};
}

// A cache daemon that holds the checkpoint.
struct HoldingDaemon {
  std::unique_ptr<LoadEngine> holder;
  std::unique_ptr<CacheDaemon> daemon;
  std::string socket;
};

Result<HoldingDaemon> StartDaemon(const ModelConfig& config, const BenchCheckpoint& checkpoint,
                                  const std::string& scratch) {
  HoldingDaemon started{.holder = nullptr, .daemon = nullptr, .socket = scratch + "/cache.sock"};
  ASSIGN_OR_RETURN(started.holder, LoadEngine::Create(config, {.from = &FreezableMemory(), .when_reserved = true}));
  RETURN_IF_ERROR(started.holder->Load(checkpoint.path(), ReadStrategy::kRead).status());
  CacheDaemonOptions options{.socket = started.socket};
  options.model.fingerprint = FingerprintOf(config);
  ASSIGN_OR_RETURN(started.daemon, CacheDaemon::Create(std::move(options), started.holder->receiver()));
  return started;
}

// Seconds until a new engine has its memory and its first version is live.
Result<double> StartFromDisk(const ModelConfig& config, const std::string& path) {
  const TimePoint start = Clock::Real().Now();
  ASSIGN_OR_RETURN(const auto engine, LoadEngine::Create(config));
  RETURN_IF_ERROR(engine->Load(path, ReadStrategy::kRead).status());
  return std::chrono::duration<double>(Clock::Real().Now() - start).count();
}

Result<double> StartFromDaemon(const ModelConfig& config, const std::string& socket, bool check) {
  const TimePoint start = Clock::Real().Now();
  ASSIGN_OR_RETURN(const auto engine, LoadEngine::Create(config, kWhenReserved));
  CacheFollower follower({.socket = socket, .fingerprint = FingerprintOf(config), .check = check, .follow = false},
                         engine->receiver());
  RETURN_IF_ERROR(follower.Attach(Deadline::After(Clock::Real(), kLoadDeadline), {}).status());
  return std::chrono::duration<double>(Clock::Real().Now() - start).count();
}

double Megabytes(double bytes) { return bytes / 1e6; }

}  // namespace

Result<std::vector<BenchmarkRow>> RunColdLoadBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const auto checkpoint, BenchCheckpoint::Write(config, scale.scratch));
  ASSIGN_OR_RETURN(const auto engine, LoadEngine::Create(config));
  const Measured contenders[] = {
      [&] {
        checkpoint.DropFromCache();
        return engine->Load(checkpoint.path(), ReadStrategy::kDirect);
      },
      [&]() -> Result<double> {
        checkpoint.DropFromCache();
        Status status;
        const double seconds = SecondsOf([&] { status = checkpoint.ReadDirect(); });
        RETURN_IF_ERROR(status);
        return seconds;
      },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  return std::vector<BenchmarkRow>{{"cold_load", GigabytesPerSecond(checkpoint.bytes(), seconds[0]), "GB/s",
                                    GigabytesPerSecond(checkpoint.bytes(), seconds[1]),
                                    "O_DIRECT read of the same file, 4 requests in flight"}};
}

Result<std::vector<BenchmarkRow>> RunWarmLoadBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const auto checkpoint, BenchCheckpoint::Write(config, scale.scratch));
  ASSIGN_OR_RETURN(const auto target, NoiseBuffer(checkpoint.bytes()));
  ASSIGN_OR_RETURN(const auto engine, LoadEngine::Create(config));
  const Measured contenders[] = {
      [&] { return engine->Load(checkpoint.path(), ReadStrategy::kRead); },
      [&] { return engine->Load(checkpoint.path(), ReadStrategy::kMmap); },
      [&]() -> Result<double> {
        Status status;
        const double seconds = SecondsOf([&] { status = checkpoint.ReadCached(target->bytes()); });
        RETURN_IF_ERROR(status);
        return seconds;
      },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));
  ASSIGN_OR_RETURN(const double extra, ExtraMemory(*engine, checkpoint.path()));
  ASSIGN_OR_RETURN(const double read_by_eight, BytesReadByEightRanks(config, checkpoint.path()));

  const std::size_t bytes = checkpoint.bytes();
  const double limit = GigabytesPerSecond(bytes, seconds[2]);
  constexpr const char* kLimit = "pread from the page cache into prefaulted memory, one thread";
  return std::vector<BenchmarkRow>{
      {"warm_load_read", GigabytesPerSecond(bytes, seconds[0]), "GB/s", limit, kLimit},
      {"warm_load_mmap", GigabytesPerSecond(bytes, seconds[1]), "GB/s", limit, kLimit},
      {"load_prefault", GigabytesPerSecond(engine->memory_bytes(), engine->prefault_seconds()), "GB/s", limit, kLimit},
      {"load_extra_memory", extra, "MB", Megabytes(static_cast<double>(bytes)), "the slot"},
      {"load_tp8_bytes_read", Megabytes(read_by_eight), "MB", Megabytes(static_cast<double>(bytes)),
       "the file, for 8 ranks one after another"},
  };
}

Result<std::vector<BenchmarkRow>> RunDaemonStartBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const auto checkpoint, BenchCheckpoint::Write(config, scale.scratch));
  ASSIGN_OR_RETURN(const HoldingDaemon cache, StartDaemon(config, checkpoint, scale.scratch));
  const WeightLease held = cache.holder->receiver().AcquireLive();
  ASSIGN_OR_RETURN(const UniqueFd object, DuplicateOf(held.shared_fd(0)));
  const std::int64_t bytes = WeightSlots::RankBytes(cache.holder->receiver().layout().ranks[0]);
  const Measured contenders[] = {
      [&] { return StartFromDisk(config, checkpoint.path()); },
      [&] { return StartFromDaemon(config, cache.socket, /*check=*/true); },
      [&] { return StartFromDaemon(config, cache.socket, /*check=*/false); },
      [&]() -> Result<double> {
        Status mapped;
        const double seconds = SecondsOf([&] { mapped = MapFrozen(object, bytes).status(); });
        RETURN_IF_ERROR(mapped);
        return seconds;
      },
      [&]() -> Result<double> {
        ASSIGN_OR_RETURN(const auto mapped, MapFrozen(object, bytes));
        return SecondsOf([&] { ReadMemory(mapped->bytes()); });
      },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  return std::vector<BenchmarkRow>{
      {"daemon_start", seconds[1] * 1e3, "ms", seconds[4] * 1e3, "one core's read of the same memory"},
      {"daemon_start_recorded", seconds[2] * 1e3, "ms", seconds[3] * 1e3, "mapping and unmapping the same memory"},
      {"disk_start", seconds[0] * 1e3, "ms", seconds[1] * 1e3, "the same from the daemon, all of it digested"},
  };
}

}  // namespace bascule
