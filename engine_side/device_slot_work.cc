#include "engine_side/device_slot_work.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/mutex.h"
#include "base/worker.h"
#include "engine_side/device_lane.h"
#include "engine_side/kept_memory.h"

namespace bascule {
namespace {

constexpr Duration kNap = std::chrono::microseconds(50);  // while decoding stands still

// Copies between two memories of a device. Decoding stands still meanwhile, so they go before all else.
//
// Thread-safety: Copy and Finish confined to one thread; Settle thread-safe.
class DeviceCopier final : public BlockCopier {
 public:
  static Result<std::unique_ptr<DeviceCopier>> Create(Device& device, std::size_t saved_bytes, Clock& clock) {
    auto copier = std::unique_ptr<DeviceCopier>(new DeviceCopier(clock));
    ASSIGN_OR_RETURN(copier->stream_, device.MakeStream(StreamPriority::kHigh));
    ASSIGN_OR_RETURN(copier->done_, device.MakeEvent());
    ASSIGN_OR_RETURN(copier->saved_, device.memory().Allocate(saved_bytes));
    return copier;
  }
  std::span<std::byte> saved() { return saved_->bytes(); }

  Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    const Status enqueued = stream_->Copy(to, from);
    if (!enqueued.ok()) left_ = true;
    return enqueued;
  }
  Status Finish() override {
    Status done = stream_->Record(*done_);
    if (done.ok()) done = AwaitEvent(*done_, Deadline::After(clock_, kDevicePatience), clock_, kNap);
    left_ = !done.ok();
    return done;
  }
  // Waits for copies that a failure has left under way.
  Status Settle() { return left_ ? Finish() : OkStatus(); }

 private:
  explicit DeviceCopier(Clock& clock) : clock_(clock) {}

  Clock& clock_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> done_;
  std::unique_ptr<DeviceBuffer> saved_;
  std::atomic<bool> left_ = false;
};

// One device's lanes, each used by one call at a time.
//
// Thread-safety: thread-safe.
class LanePool {
 public:
  LanePool(Device& device, Clock& clock) : device_(device), clock_(clock) {}
  ~LanePool();
  Status Fill(const DeviceKernels& kernels, const DeviceStaging& staging);

  Device& device() const { return device_; }

  // Calls work(lane). Where it fails, and what it has enqueued is not done, the lane stays apart until Settle; `reads`
  // is then still read.
  template <typename Work>
  Status WithLane(const Work& work, const std::byte* reads = nullptr) EXCLUDES(mu_);
  Status GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) EXCLUDES(mu_);
  Status Settle() EXCLUDES(mu_);

 private:
  struct Apart {
    std::unique_ptr<DeviceLane> lane;
    const std::byte* reads = nullptr;
  };
  Result<std::unique_ptr<DeviceLane>> Take() EXCLUDES(mu_);

  Device& device_;
  Clock& clock_;
  Mutex mu_;
  CondVar returned_;
  std::vector<std::unique_ptr<DeviceLane>> free_ GUARDED_BY(mu_);
  std::vector<Apart> apart_ GUARDED_BY(mu_);
};

LanePool::~LanePool() {
  const MutexLock lock(mu_);
  for (Apart& apart : apart_)
    KeepForEver(std::move(apart.lane), "staging", Status::DeadlineExceeded("device_deadline"));
}

Status LanePool::Fill(const DeviceKernels& kernels, const DeviceStaging& staging) {
  const std::size_t lane_bytes = DeviceLane::BytesOf(staging.lane_bytes);
  const auto memory = std::make_shared<LaneMemory>();
  ASSIGN_OR_RETURN(memory->pinned,
                   device_.pinned_memory().Allocate(lane_bytes * static_cast<std::size_t>(staging.lanes)));
  ASSIGN_OR_RETURN(memory->on_device, device_.memory().Allocate(memory->pinned->bytes().size()));
  const MutexLock lock(mu_);
  for (int i = 0; i < staging.lanes; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceLane> lane,
                     DeviceLane::Create(device_, kernels, memory, lane_bytes * static_cast<std::size_t>(i),
                                        staging.lane_bytes, clock_));
    free_.push_back(std::move(lane));
  }
  return OkStatus();
}

Result<std::unique_ptr<DeviceLane>> LanePool::Take() {
  const Deadline deadline = Deadline::After(clock_, kDevicePatience);
  const MutexLock lock(mu_);
  while (free_.empty()) {
    if (!clock_.WaitUntil(returned_, mu_, deadline.point()) && free_.empty()) {
      return Status::DeadlineExceeded("device_deadline", "every stream of staging has work that is not done");
    }
  }
  std::unique_ptr<DeviceLane> lane = std::move(free_.back());
  free_.pop_back();
  return lane;
}

template <typename Work>
Status LanePool::WithLane(const Work& work, const std::byte* reads) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceLane> lane, Take());
  const Status status = work(*lane);
  const bool is_done = status.ok() || lane->Drain().ok();
  const MutexLock lock(mu_);
  if (is_done) {
    free_.push_back(std::move(lane));
  } else {
    apart_.push_back({std::move(lane), reads});
  }
  returned_.NotifyAll();
  return status;
}

Status LanePool::GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) {
  const MutexLock lock(mu_);
  for (const Apart& apart : apart_) {
    const std::byte* const begin = frame.device_payload.data();
    if (apart.reads < begin || apart.reads >= begin + frame.device_payload.size()) continue;
    return receiver.AcknowledgeReadOn(frame, ack, apart.lane->stream());
  }
  return receiver.Acknowledge(frame, ack);
}

// Without the lock while it waits: frames are given back meanwhile.
Status LanePool::Settle() {
  std::vector<Apart> apart;
  {
    const MutexLock lock(mu_);
    apart.swap(apart_);
  }
  Status settled;
  for (Apart& one : apart) {
    const Status drained = one.lane->Drain();
    const MutexLock lock(mu_);
    if (drained.ok()) {
      free_.push_back(std::move(one.lane));
      returned_.NotifyAll();
    } else {
      settled = drained;
      apart_.push_back(std::move(one));
    }
  }
  return settled;
}

class DeviceSlotWork final : public SlotWork {
 public:
  DeviceSlotWork(const DeviceStaging& staging, Clock& clock) : staging_(staging), clock_(clock) {}
  ~DeviceSlotWork() override {
    static_cast<void>(Settle());
    for (auto& copier : copiers_) {
      const Status settled = copier == nullptr ? OkStatus() : copier->Settle();
      if (!settled.ok()) KeepForEver(std::move(copier), "a flip in place", settled);
    }
  }

  Status Open(const std::vector<Device*>& devices) {
    ASSIGN_OR_RETURN(const DeviceKernels* const kernels, LoadDeviceKernels());
    for (Device* const device : devices) {
      const auto known = std::ranges::find(pools_, device, [](const auto& pool) { return &pool->device(); });
      pool_of_rank_.push_back(static_cast<std::size_t>(known - pools_.begin()));
      if (known != pools_.end()) continue;
      pools_.push_back(std::make_unique<LanePool>(*device, clock_));
      copiers_.emplace_back();
      RETURN_IF_ERROR(pools_.back()->Fill(*kernels, staging_));
    }
    return OkStatus();
  }

  DeviceMemory& memory(int engine_rank) override { return PoolOf(engine_rank).device().memory(); }
  bool OnHost() const override { return false; }

  Result<std::vector<TensorDigest>> PlaceAndDigest(std::span<const Placement> boxes, FrameMemory from) override {
    std::vector<TensorDigest> digests(boxes.size());
    if (boxes.empty()) return digests;
    const std::byte* const reads = from == FrameMemory::kDevice ? boxes[0].from.base : nullptr;
    RETURN_IF_ERROR(PoolOf(boxes[0].to.box.engine_rank)
                        .WithLane([&](DeviceLane& lane) { return lane.PlaceAndDigest(boxes, from, digests); }, reads));
    return digests;
  }

  Result<std::vector<TensorDigest>> Digest(std::span<const SlotSource> boxes) override {
    std::vector<TensorDigest> digests(boxes.size());
    RETURN_IF_ERROR(OnEveryDevice([&](std::size_t device) { return DigestOn(device, boxes, digests); }));
    return digests;
  }

  Status Zero(std::span<const SlotTarget> boxes) override {
    return OnEveryDevice([&](std::size_t device) -> Status {
      std::vector<SlotTarget> own;
      std::ranges::copy_if(boxes, std::back_inserter(own),
                           [&](const SlotTarget& target) { return DeviceOf(target.box) == device; });
      if (own.empty()) return OkStatus();
      return pools_[device]->WithLane([&](DeviceLane& lane) { return lane.Zero(own); });
    });
  }

  Status Read(std::span<const SlotSource> boxes, std::span<std::byte> to) override {
    if (boxes.empty()) return OkStatus();
    return PoolOf(boxes[0].box.engine_rank).WithLane([&](DeviceLane& lane) { return lane.Read(boxes, to); });
  }

  Result<BlockExchange> MakeExchange(std::span<const std::vector<BlockExchange::Pair>> memory) override {
    std::vector<BlockExchange::Share> shares(pools_.size());
    for (std::size_t device = 0; device < pools_.size(); ++device) {
      if (copiers_[device] == nullptr) {
        ASSIGN_OR_RETURN(copiers_[device],
                         DeviceCopier::Create(pools_[device]->device(), staging_.exchange_bytes, clock_));
      }
      shares[device].copier = copiers_[device].get();
      shares[device].saved = copiers_[device]->saved();
    }
    for (std::size_t rank = 0; rank < memory.size(); ++rank) {
      std::ranges::copy(memory[rank], std::back_inserter(shares[pool_of_rank_[rank]].memory));
    }
    return BlockExchange(shares);
  }

  Status GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) override {
    return PoolOf(receiver.hello().route.engine_rank).GiveBack(receiver, frame, ack);
  }

  Status Settle() override {
    for (const auto& pool : pools_) RETURN_IF_ERROR(pool->Settle());
    for (const auto& copier : copiers_) {
      if (copier != nullptr) RETURN_IF_ERROR(copier->Settle());
    }
    return OkStatus();
  }

 private:
  LanePool& PoolOf(int engine_rank) { return *pools_[pool_of_rank_[static_cast<std::size_t>(engine_rank)]]; }
  std::size_t DeviceOf(const SlotBox& box) const { return pool_of_rank_[static_cast<std::size_t>(box.engine_rank)]; }

  // Of the boxes that lie there.
  Status DigestOn(std::size_t device, std::span<const SlotSource> boxes, std::span<TensorDigest> digests) {
    std::vector<SlotSource> own;
    std::vector<std::size_t> number;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (DeviceOf(boxes[i].box) != device) continue;
      own.push_back(boxes[i]);
      number.push_back(i);
    }
    if (own.empty()) return OkStatus();
    std::vector<TensorDigest> found(own.size());
    RETURN_IF_ERROR(pools_[device]->WithLane([&](DeviceLane& lane) { return lane.Digest(own, found); }));
    for (std::size_t i = 0; i < own.size(); ++i) digests[number[i]] = found[i];
    return OkStatus();
  }

  // At once on all of them: a flip in place waits for the slowest, not for their sum.
  template <typename Work>
  Status OnEveryDevice(const Work& work) {
    std::vector<Status> ended(pools_.size());
    {
      std::vector<Worker> others;
      for (std::size_t device = 1; device < pools_.size(); ++device) {
        others.emplace_back("device_work", [&, device](std::stop_token) { ended[device] = work(device); });
      }
      ended[0] = work(0);
    }
    for (const Status& end : ended) RETURN_IF_ERROR(end);
    return OkStatus();
  }

  const DeviceStaging staging_;
  Clock& clock_;
  std::vector<std::unique_ptr<LanePool>> pools_;        // one for each device
  std::vector<std::unique_ptr<DeviceCopier>> copiers_;  // likewise; made for flips in place
  std::vector<std::size_t> pool_of_rank_;
};

}  // namespace

Result<std::unique_ptr<SlotWork>> MakeDeviceSlotWork(const std::vector<Device*>& devices, const DeviceStaging& staging,
                                                     Clock& clock) {
  auto work = std::make_unique<DeviceSlotWork>(staging, clock);
  RETURN_IF_ERROR(work->Open(devices));
  return std::unique_ptr<SlotWork>(std::move(work));
}

}  // namespace bascule
