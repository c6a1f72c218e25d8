// An engine that decodes and the trainer that publishes to it, in one process: versions go through loopback, into the
// slots that the decoder reads.
//
// Thread-safety: confined to one thread.
#pragma once

#include <memory>

#include "base/status.h"
#include "benchmarks/sync_trainer.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

class LocalEngine {
 public:
  struct Options {
    int threads = 1;
    FlipMode flip = FlipMode::kShadow;
    bool pausable = false;
    FastGemm* fast = nullptr;  // numerics "fast"; borrowed
  };
  // A first version is live and decoding has started.
  //
  // ResourceExhausted "slot_memory" | "device_memory" | "kv_memory"
  static Result<std::unique_ptr<LocalEngine>> Create(const ModelConfig& config, const Options& options);
  ~LocalEngine();

  DecodeEngine& decode() { return *decode_; }
  WeightReceiver& receiver() { return *receiver_; }
  SyncTrainer& trainer() { return *trainer_; }
  // Of a pausable engine: decoding stops, a version comes and goes live, decoding goes on. How long it stood still.
  Result<Duration> PublishWhilePaused(Deadline deadline);

 private:
  // Where the engine is paused already, every moment is a safe point.
  class PausableHooks;

  LocalEngine();

  LoopbackControl control_;
  LoopbackNetwork network_;
  std::unique_ptr<LoopbackListener> listener_;
  std::unique_ptr<DecodeEngine> decode_;
  std::unique_ptr<PausableHooks> hooks_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> serving_;
  LoopbackDialer dialer_{network_};
  std::unique_ptr<SyncTrainer> trainer_;
};

}  // namespace bascule
