#include "engine_side/weight_receiver.h"

#include <algorithm>
#include <set>

#include "base/mutex.h"
#include "base/thread_priority.h"
#include "engine_side/adoption.h"
#include "engine_side/connection.h"
#include "engine_side/live_digest.h"
#include "engine_side/receiver_parts.h"
#include "engine_side/rollback.h"

namespace bascule {
namespace {

Status CheckDevices(const WeightReceiverOptions& options) {
  const bool on_host = options.devices.empty();
  if (!on_host && options.devices.size() != options.layout.ranks.size()) {
    return Status::InvalidArgument("bad_options", fmt::format("devices={} for {} engine ranks", options.devices.size(),
                                                              options.layout.ranks.size()));
  }
  if (!on_host && (options.memory.from != nullptr || options.copier != nullptr)) {
    return Status::InvalidArgument("bad_options", "slots have their memory on devices, and are copied there");
  }
  if (options.device_staging.lanes < 1 || options.device_staging.lane_bytes < 4096 ||
      options.device_staging.exchange_bytes < 4096) {
    return Status::InvalidArgument("bad_options", "device_staging has no lane, or fewer than 4096 bytes");
  }
  const bool takes_device_frames = std::ranges::any_of(options.listeners, [](TransportListener* listener) {
    const TransportKind kind = listener->endpoint().kind;
    return kind == TransportKind::kCudaIpc || kind == TransportKind::kNccl;
  });
  if (on_host && takes_device_frames) {
    return Status::InvalidArgument("bad_options",
                                   "frames of cuda_ipc and nccl lie on a device, and slots in host memory");
  }
  return OkStatus();
}

Status CheckOptions(const WeightReceiverOptions& options) {
  if (options.slot_count != 2 && options.slot_count != 3) {
    return Status::InvalidArgument("bad_options", fmt::format("slot_count={} want=2|3", options.slot_count));
  }
  if (options.flip == FlipMode::kInPlace && options.slot_count != 2) {
    return Status::InvalidArgument(
        "bad_options", fmt::format("slot_count={} but flips in place exchange two slots", options.slot_count));
  }
  if (options.flip == FlipMode::kInPlace && options.memory.when_reserved) {
    return Status::InvalidArgument("bad_options", "flips in place need the memory of their slots from the start");
  }
  if (options.stall_budget.limit < Duration::zero()) {
    return Status::InvalidArgument("bad_options", "stall_budget is negative");
  }
  if (options.staging.nice < 0 || options.staging.nice > 19) {
    return Status::InvalidArgument("bad_options", fmt::format("staging nice={} want=0..19", options.staging.nice));
  }
  if (options.max_credits < 1 || options.max_credits > kMaxCredits) {
    return Status::InvalidArgument("bad_options",
                                   fmt::format("max_credits={} most={}", options.max_credits, kMaxCredits));
  }
  RETURN_IF_ERROR(CheckDevices(options));
  RETURN_IF_ERROR(CheckCores(options.staging.cores));
  return CheckLayout(options.layout);
}

// Of all that a slot has memory for.
Status CheckDense(const Layout& slot_layout) {
  for (const RankLayout& rank : slot_layout.ranks) {
    for (const LocalTensor& tensor : rank.tensors) {
      if (tensor.stride.empty() || tensor.stride == RowMajorStride(tensor.shape)) continue;
      return Status::InvalidArgument("bad_layout", fmt::format("engine tensor {} is not dense", tensor.name));
    }
  }
  return OkStatus();
}

// What a receiver is made of that can fail to be made. Each borrows those before it.
struct Foundation {
  ReceivePlan engine_plan;
  DerivedTensors derived;
  std::unique_ptr<SlotWork> device_work;  // null: the host's
  std::unique_ptr<WeightSlots> slots;
  std::unique_ptr<InPlaceFlip> in_place;  // null for kShadow
};

Result<std::unique_ptr<Foundation>> LayFoundation(const WeightReceiverOptions& options) {
  ASSIGN_OR_RETURN(ReceivePlan engine_plan, PlanOfEngine(options.layout));
  ASSIGN_OR_RETURN(DerivedTensors derived, DerivedTensors::Create(options.layout, options.derived));
  RETURN_IF_ERROR(CheckDense(derived.slot_layout()));
  auto made = std::make_unique<Foundation>(Foundation{std::move(engine_plan), std::move(derived), {}, {}, {}});
  if (!options.devices.empty()) {
    ASSIGN_OR_RETURN(made->device_work, MakeDeviceSlotWork(options.devices, options.device_staging, *options.clock));
  }
  SlotWork& work = made->device_work != nullptr ? *made->device_work : HostSlotWork();
  ASSIGN_OR_RETURN(made->slots, WeightSlots::Create(made->derived.slot_layout(), options.slot_count, *options.clock,
                                                    options.memory, work));
  if (options.flip == FlipMode::kInPlace) {
    ASSIGN_OR_RETURN(made->in_place, InPlaceFlip::Create(*made->slots, made->engine_plan, made->derived, options.copier,
                                                         *options.clock));
  }
  return made;
}

class Receiver final : public WeightReceiver {
 public:
  Receiver(WeightReceiverOptions options, std::unique_ptr<const Foundation> foundation, EngineHooks& hooks)
      : options_(std::move(options)),
        foundation_(std::move(foundation)),
        engine_plan_(foundation_->engine_plan),
        derived_(foundation_->derived),
        slots_(foundation_->slots.get()),
        gate_(*slots_, hooks, *options_.clock, foundation_->in_place.get(), options_.stall_budget),
        board_(*slots_, *options_.clock),
        registry_(*slots_, *options_.clock),
        plans_(options_.layout),
        parts_{options_, InstanceId::Mint(), *options_.clock, *slots_, gate_,
               board_,   registry_,          plans_,          hooks,   derived_} {}

  ~Receiver() override {
    MutexLock lock(mu_);
    stopping_ = true;
    for (ControlChannel* channel : channels_) channel->Cancel();
    while (!channels_.empty()) {
      options_.clock->WaitUntil(served_, mu_, options_.clock->Now() + std::chrono::seconds(1));
    }
  }

  Status Serve(ControlChannel& channel) override {
    if (const Status refused = Admit(channel); !refused.ok()) {
      static_cast<void>(channel.Send(Abort{SessionId{}, refused}));
      return refused;
    }
    const Status why = Connection(channel, parts_).Serve();
    MutexLock lock(mu_);
    channels_.erase(&channel);
    served_.NotifyAll();
    return why;
  }

  Result<FlipReport> Adopt(LentVersion version, Deadline deadline, std::stop_token stop) override {
    return AdoptVersion(parts_, std::move(version), deadline, std::move(stop));
  }

  WeightLease AcquireLive() override { return slots_->AcquireLive(); }

  Result<FlipReport> Rollback(std::optional<std::uint64_t> to, Deadline deadline, bool refused) override {
    return RollBackReceiver(parts_, to, OkStatus(), refused, deadline);
  }

  Result<MemoryDigest> DigestLive() override {
    const WeightLease lease = slots_->AcquireLive();
    if (lease.empty()) return Status::FailedPrecondition("nothing_live", "no version is live yet");
    const TensorMemory memory = [&](int engine_rank, int tensor) { return lease.Tensor(engine_rank, tensor); };
    RETURN_IF_ERROR(derived_.Check(memory, slots_->HeldOf(lease).derived, slots_->work()));
    return DigestMemory(memory, options_.layout, engine_plan_, slots_->work());
  }

  void Require(const WeightVersion& version) override { board_.Require(version); }
  void RequireInPlaceOf(const std::optional<WeightVersion>& live, const WeightVersion& version) override {
    board_.RequireInPlaceOf(live, version);
  }

  ReceiverStatus status() const override { return board_.Read(); }
  std::vector<HistoryEntry> History() const override { return board_.Rows(); }
  Result<StatusChanges> ChangesSince(std::uint64_t seen, Deadline deadline) const override {
    return board_.ChangesSince(seen, deadline);
  }
  const Layout& layout() const override { return options_.layout; }

 private:
  Status Admit(ControlChannel& channel) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (stopping_) return Status::Cancelled("engine_stopping", "the receiver shuts down");
    if (channels_.size() >= options_.max_connections) {
      return Status::ResourceExhausted("too_many_callers",
                                       fmt::format("{} publishers are connected", channels_.size()));
    }
    channels_.insert(&channel);
    return OkStatus();
  }

  const WeightReceiverOptions options_;
  const std::unique_ptr<const Foundation> foundation_;
  const ReceivePlan& engine_plan_;
  const DerivedTensors& derived_;
  WeightSlots* const slots_;
  FlipGate gate_;
  StatusBoard board_;
  SessionRegistry registry_;
  ReceivePlanCache plans_;
  ReceiverParts parts_;

  Mutex mu_;
  CondVar served_;
  std::set<ControlChannel*> channels_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
};

}  // namespace

Result<std::unique_ptr<WeightReceiver>> WeightReceiver::Create(WeightReceiverOptions options, EngineHooks& hooks) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(std::unique_ptr<const Foundation> foundation, LayFoundation(options));
  return std::unique_ptr<WeightReceiver>(std::make_unique<Receiver>(std::move(options), std::move(foundation), hooks));
}

}  // namespace bascule
