// An engine on the device whose decode steps only read all weights once, as a small batch does, and flip between steps.
//
// Thread-safety: confined to one thread, but for EngineHooks.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/worker.h"
#include "benchmarks/gpu/gpu_run.h"
#include "benchmarks/temp_directory.h"
#include "bridge/layout/layout.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

// Matrices of bf16 of so many bytes in all, in the order of an engine's layers.
std::vector<TensorSpec> ModelTensors(std::int64_t model_bytes);

// The steps. Thread-safety: thread-safe.
class Stepper final : public EngineHooks {
 public:
  static Result<std::unique_ptr<Stepper>> Create(const GpuScale& scale, std::size_t tensors);
  ~Stepper() override { Stop(); }

  void Start(std::function<WeightLease()> acquire);
  void Stop();
  // The first error of a step; steps have stopped then.
  Status failure() const EXCLUDES(mu_);

  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override EXCLUDES(mu_);
  bool Decoding() const override { return running_; }
  KvReport InvalidateKv(const WeightVersion& /*live*/) override { return {}; }

 private:
  // What waits for the safe point.
  struct Pending {
    const std::function<void()>* critical = nullptr;
    bool done = false;
    Duration stall{};
  };
  Stepper(std::unique_ptr<GpuRun> run, std::size_t tensors) : run_(std::move(run)), tensors_(tensors) {}
  void Run(const std::stop_token& stop);
  Status Step();
  Result<const DeviceTable*> TableOf(const WeightLease& lease);
  void TakePending() EXCLUDES(mu_);

  const std::unique_ptr<GpuRun> run_;  // of the step thread
  const std::size_t tensors_;
  std::function<WeightLease()> acquire_;
  std::map<int, DeviceTable> tables_;  // by slot, whose addresses never change
  std::unique_ptr<DeviceBuffer> digests_;
  std::atomic<bool> running_ = false;
  mutable Mutex mu_;
  CondVar changed_;
  Pending* pending_ GUARDED_BY(mu_) = nullptr;
  std::uint64_t steps_ GUARDED_BY(mu_) = 0;
  Status failure_ GUARDED_BY(mu_);
  Worker thread_;
};

// A receiver with its slots on the device, behind cuda_ipc and control in this process.
class GpuEngine {
 public:
  static constexpr const char* kAddress = "engine";
  static Result<std::unique_ptr<GpuEngine>> Create(GpuRun& run, FlipMode flip);
  ~GpuEngine();

  LoopbackControl& control() { return control_; }
  WeightReceiver& receiver() { return *receiver_; }
  Stepper& steps() { return *steps_; }
  void StartSteps() {
    steps_->Start([this] { return receiver_->AcquireLive(); });
  }

 private:
  GpuEngine() = default;

  const TempDirectory directory_;
  LoopbackControl control_;
  std::unique_ptr<CudaIpcListener> listener_;
  std::unique_ptr<Stepper> steps_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> serving_;
};

}  // namespace bascule
