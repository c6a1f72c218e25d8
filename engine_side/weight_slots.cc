#include "engine_side/weight_slots.h"

#include "base/checked_math.h"
#include "device/host/host_memory.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 64;
constexpr Duration kLookAgain = std::chrono::seconds(1);  // an exchange ends by itself and notifies

// Where each tensor of a rank begins, and after them all the bytes of the rank.
std::vector<std::int64_t> TensorOffsets(const RankLayout& rank) {
  std::vector<std::int64_t> offsets{0};
  for (const LocalTensor& tensor : rank.tensors) {
    offsets.push_back(RoundUp(offsets.back() + tensor.Bytes(), kTensorAlignment));
  }
  return offsets;
}

}  // namespace

struct WeightSlots::Slot {
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;      // per rank
  std::vector<std::vector<std::span<std::byte>>> tensors;  // per rank, per local tensor
  WeightVersion version;                                   // changes under mu_, while nobody leases the slot
  HeldDigests held;                                        // likewise
  int leases = 0;                                          // under mu_
};

WeightSlots::WeightSlots(const Layout& engine_layout, Clock& clock) : layout_(engine_layout), clock_(clock) {}

WeightSlots::~WeightSlots() {
  for (const auto& slot : slots_) CHECK(slot->leases == 0);
}

Result<std::unique_ptr<WeightSlots>> WeightSlots::Create(const Layout& engine_layout, int slot_count, Clock& clock) {
  CHECK(slot_count == 2 || slot_count == 3);
  auto slots = std::unique_ptr<WeightSlots>(new WeightSlots(engine_layout, clock));
  for (int i = 0; i < slot_count; ++i) RETURN_IF_ERROR(slots->Allocate());
  return slots;
}

Status WeightSlots::Allocate() {
  auto slot = std::make_unique<Slot>();
  for (const RankLayout& rank : layout_.ranks) {
    const std::vector<std::int64_t> offsets = TensorOffsets(rank);
    auto buffer = HostMemory().Allocate(static_cast<std::size_t>(offsets.back()));
    if (!buffer.ok()) {
      return Status::ResourceExhausted("slot_memory",
                                       fmt::format("slot={} rank={} bytes={}: {}", slots_.size(), slot->buffers.size(),
                                                   offsets.back(), buffer.status().message()));
    }
    std::vector<std::span<std::byte>>& tensors = slot->tensors.emplace_back();
    for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
      tensors.push_back((*buffer)->bytes().subspan(static_cast<std::size_t>(offsets[t]),
                                                   static_cast<std::size_t>(rank.tensors[t].Bytes())));
    }
    slot->buffers.push_back(*std::move(buffer));
  }
  slots_.push_back(std::move(slot));
  return OkStatus();
}

WeightLease WeightSlots::AcquireLive() {
  MutexLock lock(mu_);
  while (exchanging_) clock_.WaitUntil(leases_changed_, mu_, clock_.Now() + kLookAgain);
  if (!live_) return WeightLease();
  ++at(*live_).leases;
  return WeightLease(this, *live_);
}

void WeightSlots::ReleaseLease(int slot) {
  MutexLock lock(mu_);
  if (--at(slot).leases == 0) leases_changed_.NotifyAll();
}

// Without a free slot the kept one serves: that is what two slots mean.
std::optional<int> WeightSlots::FreeSlot() const {
  for (int i = 0; i < slot_count(); ++i) {
    if (live_ != i && kept_ != i) return i;
  }
  return kept_;
}

Result<int> WeightSlots::ReserveShadow(Deadline deadline, std::stop_token stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    leases_changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  while (true) {
    if (reserved_) return Status::FailedPrecondition("shadow_reserved", fmt::format("slot={}", *reserved_));
    // Asked anew each time: a rollback during the wait exchanges live and kept.
    const int slot = *FreeSlot();
    const auto busy = [&]() REQUIRES(mu_) { return exchanging_ || at(slot).leases > 0; };
    if (!busy()) {
      if (kept_ == slot) kept_.reset();
      reserved_ = slot;
      return slot;
    }
    if (stop.stop_requested()) return Status::Cancelled("cancelled", "the wait for the shadow slot was ended");
    if (!clock_.WaitUntil(leases_changed_, mu_, deadline.point()) && busy()) {
      return Status::DeadlineExceeded("shadow_leased", fmt::format("slot={} leases={}", slot, at(slot).leases));
    }
  }
}

std::span<std::byte> WeightSlots::ShadowTensor(int slot, int engine_rank, int tensor) {
  return at(slot).tensors[static_cast<std::size_t>(engine_rank)][static_cast<std::size_t>(tensor)];
}

std::span<std::byte> WeightSlots::RankMemory(int slot, int engine_rank) {
  return at(slot).buffers[static_cast<std::size_t>(engine_rank)]->bytes();
}

void WeightSlots::ReleaseShadow(int slot) {
  MutexLock lock(mu_);
  CHECK(reserved_ == slot);
  reserved_.reset();
  leases_changed_.NotifyAll();
}

void WeightSlots::Flip(int slot, WeightVersion version, HeldDigests held) {
  MutexLock lock(mu_);
  CHECK(reserved_ == slot);
  at(slot).version = std::move(version);
  at(slot).held = std::move(held);
  reserved_.reset();
  kept_ = live_;
  live_ = slot;
}

Result<WeightVersion> WeightSlots::SwapKept() {
  MutexLock lock(mu_);
  if (!kept_) return Status::FailedPrecondition("no_kept_version");
  std::swap(live_, kept_);
  return at(*live_).version;
}

Status WeightSlots::FlipInPlace(int slot, const WeightVersion& version, HeldDigests held,
                                const ExchangeBytes& exchange) {
  int live = 0;
  {
    MutexLock lock(mu_);
    CHECK(reserved_ == slot && live_);
    RETURN_IF_ERROR(BeginExchange());
    live = *live_;
    at(slot).version = version;
    at(slot).held = std::move(held);
  }
  return EndExchange(slot, exchange(at(live).held, at(slot).held));
}

Result<WeightVersion> WeightSlots::SwapKeptInPlace(const ExchangeBytes& exchange) {
  int live = 0, slot = 0;
  WeightVersion version;
  {
    MutexLock lock(mu_);
    if (!kept_) return Status::FailedPrecondition("no_kept_version");
    RETURN_IF_ERROR(BeginExchange());
    live = *live_;
    slot = *kept_;
    version = at(slot).version;
  }
  RETURN_IF_ERROR(EndExchange(slot, exchange(at(live).held, at(slot).held)));
  return version;
}

Status WeightSlots::BeginExchange() {
  const int leases = at(*live_).leases;
  if (leases > 0) return Status::FailedPrecondition("live_leased", fmt::format("leases={}", leases));
  exchanging_ = true;
  return OkStatus();
}

Status WeightSlots::EndExchange(int slot, const Status& exchanged) {
  MutexLock lock(mu_);
  exchanging_ = false;
  leases_changed_.NotifyAll();
  if (exchanged.ok()) {
    std::swap(at(slot).version, at(*live_).version);
    std::swap(at(slot).held, at(*live_).held);
    kept_ = slot;
    if (reserved_ == slot) reserved_.reset();
  } else if (exchanged.reason() == "live_lost") {
    live_.reset();
    kept_.reset();
  }
  return exchanged;
}

Status WeightSlots::AwaitUnleasedLive(Deadline deadline) {
  MutexLock lock(mu_);
  const auto leases = [this]() REQUIRES(mu_) { return live_ ? at(*live_).leases : 0; };
  if (leases() == 0 || clock_.WaitUntil(leases_changed_, mu_, deadline.point()) || leases() == 0) return OkStatus();
  return Status::FailedPrecondition("live_leased", fmt::format("leases={}, at the deadline", leases()));
}

const HeldDigests& WeightSlots::HeldOf(const WeightLease& lease) const { return at(lease.slot_).held; }

std::optional<WeightVersion> WeightSlots::live() const {
  MutexLock lock(mu_);
  return live_ ? std::optional(at(*live_).version) : std::nullopt;
}

std::optional<WeightVersion> WeightSlots::kept() const {
  MutexLock lock(mu_);
  return kept_ ? std::optional(at(*kept_).version) : std::nullopt;
}

std::int64_t WeightSlots::slot_bytes(int engine_rank) const {
  return static_cast<std::int64_t>(at(0).buffers[static_cast<std::size_t>(engine_rank)]->bytes().size());
}

int WeightSlots::slot_count() const { return static_cast<int>(slots_.size()); }

const Layout& WeightSlots::layout() const { return layout_; }

WeightLease::WeightLease(WeightLease&& other) noexcept
    : slots_(std::exchange(other.slots_, nullptr)), slot_(other.slot_) {}

WeightLease& WeightLease::operator=(WeightLease&& other) noexcept {
  if (this == &other) return *this;
  if (slots_ != nullptr) slots_->ReleaseLease(slot_);
  slots_ = std::exchange(other.slots_, nullptr);
  slot_ = other.slot_;
  return *this;
}

WeightLease::~WeightLease() {
  if (slots_ != nullptr) slots_->ReleaseLease(slot_);
}

const WeightVersion& WeightLease::version() const {
  CHECK(slots_ != nullptr);
  return slots_->at(slot_).version;
}

std::span<const std::byte> WeightLease::Tensor(int engine_rank, int tensor) const {
  CHECK(slots_ != nullptr);
  return slots_->ShadowTensor(slot_, engine_rank, tensor);
}

}  // namespace bascule
