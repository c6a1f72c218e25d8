#include "benchmarks/local_engine.h"

#include <atomic>

#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::int64_t kKvPages = 256;  // of 16 tokens: for every request that benchmarks run at once

}  // namespace

class LocalEngine::PausableHooks final : public EngineHooks {
 public:
  explicit PausableHooks(DecodeEngine& decode) : decode_(decode) {}

  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override {
    if (!paused) return decode_.RunAtSafePoint(at_step, critical, deadline);
    critical();
    return SafePoint{.next_step = at_step};
  }
  bool Decoding() const override { return decode_.Decoding(); }
  KvReport InvalidateKv(const WeightVersion& live) override { return decode_.InvalidateKv(live); }

  std::atomic<bool> paused = false;

 private:
  DecodeEngine& decode_;
};

LocalEngine::LocalEngine() = default;

Result<Duration> LocalEngine::PublishWhilePaused(Deadline deadline) {
  CHECK(hooks_ != nullptr);
  Status published;
  const auto publish = [&] {
    hooks_->paused = true;
    published = trainer_->PublishAndReport().status();
    hooks_->paused = false;
  };
  ASSIGN_OR_RETURN(const SafePoint point, decode_->RunAtSafePoint(0, publish, deadline));
  RETURN_IF_ERROR(published);
  return point.stall;
}

Result<std::unique_ptr<LocalEngine>> LocalEngine::Create(const ModelConfig& config, const Options& options) {
  std::unique_ptr<LocalEngine> engine(new LocalEngine());
  ASSIGN_OR_RETURN(EngineLayout layout, MakeEngineLayout(config, DType::kBf16));
  ASSIGN_OR_RETURN(engine->decode_, DecodeEngine::Create({.config = config,
                                                          .tensors = layout.tensors,
                                                          .dtype = DType::kBf16,
                                                          .threads = options.threads,
                                                          .kv_pages = kKvPages,
                                                          .fast = options.fast}));
  ASSIGN_OR_RETURN(engine->listener_, LoopbackListener::Create(engine->network_, "engine"));
  EngineHooks* hooks = engine->decode_.get();
  if (options.pausable) {
    engine->hooks_ = std::make_unique<PausableHooks>(*engine->decode_);
    hooks = engine->hooks_.get();
  }
  ASSIGN_OR_RETURN(engine->receiver_, WeightReceiver::Create({.model = config.Description(),
                                                              .layout = std::move(layout.layout),
                                                              .flip = options.flip,
                                                              .listeners = {engine->listener_.get()}},
                                                             *hooks));
  WeightReceiver& receiver = *engine->receiver_;
  ASSIGN_OR_RETURN(engine->serving_, engine->control_.Listen("engine", [&receiver](ControlChannel& channel) {
    static_cast<void>(receiver.Serve(channel));
  }));
  ASSIGN_OR_RETURN(engine->trainer_, SyncTrainer::Create(config, "engine", engine->control_, engine->dialer_));
  RETURN_IF_ERROR(engine->trainer_->Publish().status());
  engine->decode_->Start([&receiver] { return receiver.AcquireLive(); });
  return engine;
}

LocalEngine::~LocalEngine() {
  if (decode_) decode_->Stop();  // gives its leases back
}

}  // namespace bascule
