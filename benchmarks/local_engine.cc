#include "benchmarks/local_engine.h"

#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::int64_t kKvPages = 256;  // of 16 tokens: for every request that benchmarks run at once

}  // namespace

Result<std::unique_ptr<LocalEngine>> LocalEngine::Create(const ModelConfig& config, int threads) {
  std::unique_ptr<LocalEngine> engine(new LocalEngine());
  ASSIGN_OR_RETURN(EngineLayout layout, MakeEngineLayout(config, DType::kBf16));
  ASSIGN_OR_RETURN(engine->decode_, DecodeEngine::Create({.config = config,
                                                          .tensors = layout.tensors,
                                                          .dtype = DType::kBf16,
                                                          .threads = threads,
                                                          .kv_pages = kKvPages}));
  ASSIGN_OR_RETURN(engine->listener_, LoopbackListener::Create(engine->network_, "engine"));
  ASSIGN_OR_RETURN(engine->receiver_, WeightReceiver::Create({.model = config.Description(),
                                                              .layout = std::move(layout.layout),
                                                              .listeners = {engine->listener_.get()}},
                                                             *engine->decode_));
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
