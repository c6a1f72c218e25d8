#include "benchmarks/gpu/stepping_engine.h"

#include <algorithm>
#include <utility>

namespace bascule {
namespace {

constexpr std::int64_t kColumns = 8192;
constexpr std::int64_t kTensorBytes = std::int64_t{256} << 20;
constexpr Duration kLookAgain = std::chrono::milliseconds(1);

}  // namespace

std::vector<TensorSpec> ModelTensors(std::int64_t model_bytes) {
  constexpr std::int64_t kRowBytes = kColumns * 2;
  const std::int64_t each = std::min(kTensorBytes, model_bytes / 4 / kRowBytes * kRowBytes);
  std::vector<TensorSpec> tensors;
  for (std::int64_t left = model_bytes; left >= each; left -= each) {
    tensors.push_back({fmt::format("layer.{:03}.weight", tensors.size()), DType::kBf16, {each / kRowBytes, kColumns}});
  }
  return tensors;
}

Result<std::unique_ptr<Stepper>> Stepper::Create(const GpuScale& scale, std::size_t tensors) {
  ASSIGN_OR_RETURN(auto run, GpuRun::Open(&scale));
  std::unique_ptr<Stepper> stepper(new Stepper(std::move(run), tensors));
  ASSIGN_OR_RETURN(stepper->digests_,
                   stepper->run_->Allocate(static_cast<std::int64_t>(tensors * sizeof(TensorDigest))));
  return stepper;
}

void Stepper::Start(std::function<WeightLease()> acquire) {
  acquire_ = std::move(acquire);
  running_ = true;
  thread_ = Worker("steps", [this](const std::stop_token& stop) { Run(stop); });
}

void Stepper::Stop() {
  thread_.RequestStop();
  thread_.Join();
}

Status Stepper::failure() const {
  const MutexLock lock(mu_);
  return failure_;
}

void Stepper::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (Status stepped = Step(); !stepped.ok()) {
      const MutexLock lock(mu_);
      failure_ = std::move(stepped);
      break;
    }
    TakePending();
  }
  running_ = false;
  TakePending();  // whoever came before this was seen
}

Status Stepper::Step() {
  const WeightLease lease = acquire_();
  if (lease.empty()) return OkStatus();
  ASSIGN_OR_RETURN(const DeviceTable* const table, TableOf(lease));
  auto* const digests = reinterpret_cast<TensorDigest*>(digests_->bytes().data());
  RETURN_IF_ERROR(run_->kernels().digest_boxes(table->Batch(nullptr, nullptr, digests), run_->stream().handle()));
  RETURN_IF_ERROR(run_->Await());
  const MutexLock lock(mu_);
  ++steps_;
  return OkStatus();
}

Result<const DeviceTable*> Stepper::TableOf(const WeightLease& lease) {
  const auto known = tables_.find(lease.slot());
  if (known != tables_.end()) return &known->second;
  BoxMoveTable table;
  const BoxPlace line{0, {1}};
  for (std::size_t t = 0; t < tensors_; ++t) {
    const std::span<const std::byte> tensor = lease.Tensor(0, static_cast<int>(t));
    const auto address = reinterpret_cast<std::int64_t>(tensor.data());
    RETURN_IF_ERROR(table.Add({.shape = {1, {static_cast<std::int64_t>(tensor.size()) / 2}},
                               .item_bytes = 2,
                               .source_bytes = address,
                               .source = line,
                               .target_bytes = address,
                               .target = line,
                               .logical = line}));
  }
  ASSIGN_OR_RETURN(DeviceTable uploaded, run_->Upload(table));
  return &tables_.emplace(lease.slot(), std::move(uploaded)).first->second;
}

void Stepper::TakePending() {
  const MutexLock lock(mu_);
  if (pending_ == nullptr) return;
  const TimePoint began = Clock::Real().Now();
  (*pending_->critical)();
  pending_->stall = Clock::Real().Now() - began;
  pending_->done = true;
  pending_ = nullptr;
  changed_.NotifyAll();
}

Result<SafePoint> Stepper::RunAtSafePoint(std::uint64_t /*at_step*/, const std::function<void()>& critical,
                                          Deadline deadline) {
  const MutexLock lock(mu_);
  if (!running_) {
    critical();
    return SafePoint{.next_step = steps_ + 1};
  }
  Pending own{.critical = &critical};
  pending_ = &own;
  while (!own.done) {
    if (deadline.Passed(Clock::Real()) || !running_) {
      pending_ = nullptr;
      return Status::DeadlineExceeded("deadline", "no step has ended");
    }
    Clock::Real().WaitUntil(changed_, mu_, std::min(deadline.point(), Clock::Real().Now() + kLookAgain));
  }
  return SafePoint{.next_step = steps_ + 1, .stall = own.stall};
}

Result<std::unique_ptr<GpuEngine>> GpuEngine::Create(GpuRun& run, FlipMode flip) {
  std::unique_ptr<GpuEngine> engine(new GpuEngine);
  ASSIGN_OR_RETURN(engine->listener_,
                   CudaIpcListener::Create(engine->directory_.path() + "/engine.sock", run.device()));
  const std::vector<TensorSpec> tensors = ModelTensors(run.scale().model_bytes);
  ASSIGN_OR_RETURN(engine->steps_, Stepper::Create(run.scale(), tensors.size()));
  WeightReceiverOptions options;
  options.layout = PlainLayout(tensors);
  options.devices = {&run.device()};
  options.flip = flip;
  options.listeners = {engine->listener_.get()};
  ASSIGN_OR_RETURN(engine->receiver_, WeightReceiver::Create(std::move(options), *engine->steps_));
  ASSIGN_OR_RETURN(engine->serving_,
                   engine->control_.Listen(kAddress, [receiver = engine->receiver_.get()](ControlChannel& channel) {
                     static_cast<void>(receiver->Serve(channel));
                   }));
  return engine;
}

GpuEngine::~GpuEngine() {
  if (steps_ != nullptr) steps_->Stop();
  receiver_.reset();
  serving_.reset();
  listener_.reset();
}

}  // namespace bascule
