#include "engine_side/weight_slots.h"

#include <algorithm>

#include "base/checked_math.h"
#include "engine_side/kept_memory.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 64;
constexpr Duration kLookAgain = std::chrono::seconds(1);  // an exchange ends by itself and notifies

}  // namespace

struct WeightSlots::Slot {
  std::vector<std::unique_ptr<DeviceBuffer>> lent;         // per rank, or of none
  std::vector<std::unique_ptr<DeviceBuffer>> own;          // per rank: what is not lent; empty before the slot has any
  std::vector<std::vector<std::span<std::byte>>> tensors;  // per rank, per local tensor
  WeightVersion version;                                   // changes under mu_, while nobody leases the slot
  HeldDigests held;                                        // likewise
  int leases = 0;                                          // under mu_

  bool Writable() const {
    return !own.empty() && lent.empty() &&
           std::ranges::all_of(own, [](const auto& buffer) { return buffer->writable(); });
  }
};

WeightSlots::WeightSlots(const Layout& engine_layout, Clock& clock, SlotMemory memory, SlotWork& work)
    : layout_(engine_layout), clock_(clock), memory_(memory), work_(work) {}

WeightSlots::~WeightSlots() {
  for (const auto& slot : slots_) CHECK(slot->leases == 0);
  const Status settled = work_.Settle();
  if (settled.ok()) return;
  for (auto& slot : slots_) KeepForEver(std::move(slot), "a slot", settled);
}

Result<std::unique_ptr<WeightSlots>> WeightSlots::Create(const Layout& engine_layout, int slot_count, Clock& clock,
                                                         SlotMemory memory, SlotWork& work) {
  CHECK(slot_count == 2 || slot_count == 3);
  auto slots = std::unique_ptr<WeightSlots>(new WeightSlots(engine_layout, clock, memory, work));
  for (int i = 0; i < slot_count; ++i) {
    slots->slots_.push_back(std::make_unique<Slot>());
    if (!memory.when_reserved) RETURN_IF_ERROR(slots->GiveMemory(i, {}));
  }
  return slots;
}

std::vector<std::int64_t> WeightSlots::TensorOffsets(const RankLayout& rank) {
  std::vector<std::int64_t> offsets{0};
  for (const LocalTensor& tensor : rank.tensors) {
    offsets.push_back(RoundUp(offsets.back() + tensor.Bytes(), kTensorAlignment));
  }
  return offsets;
}

std::int64_t WeightSlots::RankBytes(const RankLayout& rank) { return TensorOffsets(rank).back(); }

// Nobody else has to do with the slot. Its old memory goes first: there may be no room for both.
Status WeightSlots::GiveMemory(int slot, std::vector<std::unique_ptr<DeviceBuffer>> lent) const {
  Slot& target = at(slot);
  target.tensors.clear();
  target.own.clear();
  target.lent = std::move(lent);
  for (std::size_t r = 0; r < layout_.ranks.size(); ++r) {
    const RankLayout& rank = layout_.ranks[r];
    const std::vector<std::int64_t> offsets = TensorOffsets(rank);
    const std::int64_t lent_bytes = target.lent.empty() ? 0 : std::ssize(target.lent[r]->bytes());
    DeviceMemory& memory = memory_.from != nullptr ? *memory_.from : work_.memory(static_cast<int>(r));
    auto own = memory.Allocate(static_cast<std::size_t>(offsets.back() - lent_bytes));
    if (!own.ok()) {
      target.own.clear();
      return Status::ResourceExhausted("slot_memory", fmt::format("slot={} rank={} bytes={}: {}", slot, r,
                                                                  offsets.back() - lent_bytes, own.status().message()));
    }
    std::vector<std::span<std::byte>>& tensors = target.tensors.emplace_back();
    for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
      const bool is_lent = offsets[t + 1] <= lent_bytes;
      const std::span<std::byte> bytes = is_lent ? target.lent[r]->bytes() : (*own)->bytes();
      tensors.push_back(bytes.subspan(static_cast<std::size_t>(offsets[t] - (is_lent ? 0 : lent_bytes)),
                                      static_cast<std::size_t>(rank.tensors[t].Bytes())));
    }
    target.own.push_back(*std::move(own));
  }
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
  RETURN_IF_ERROR(work_.Settle());
  ASSIGN_OR_RETURN(const int slot, ReserveRole(deadline, std::move(stop)));
  const Status given = at(slot).Writable() ? OkStatus() : GiveMemory(slot, {});
  if (!given.ok()) ReleaseShadow(slot);
  RETURN_IF_ERROR(given);
  return slot;
}

Result<int> WeightSlots::ReserveLent(std::vector<std::unique_ptr<DeviceBuffer>> lent, Deadline deadline,
                                     std::stop_token stop) {
  CHECK(lent.size() == layout_.ranks.size() && work_.OnHost());
  ASSIGN_OR_RETURN(const int slot, ReserveRole(deadline, std::move(stop)));
  const Status given = GiveMemory(slot, std::move(lent));
  if (!given.ok()) ReleaseShadow(slot);
  RETURN_IF_ERROR(given);
  return slot;
}

Status WeightSlots::FreezeShadow(int slot) {
  for (const auto& buffer : at(slot).own) RETURN_IF_ERROR(buffer->Freeze());
  return OkStatus();
}

Result<int> WeightSlots::ReserveRole(Deadline deadline, std::stop_token stop) {
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
  return at(slot).own[static_cast<std::size_t>(engine_rank)]->bytes();
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

void WeightSlots::ForgetKept() {
  MutexLock lock(mu_);
  kept_.reset();
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
  return RankBytes(layout_.ranks[static_cast<std::size_t>(engine_rank)]);
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

int WeightLease::slot() const {
  CHECK(slots_ != nullptr);
  return slot_;
}

SlotWork& WeightLease::work() const {
  CHECK(slots_ != nullptr);
  return slots_->work();
}

const HeldDigests& WeightLease::held() const {
  CHECK(slots_ != nullptr);
  return slots_->HeldOf(*this);
}

int WeightLease::shared_fd(int engine_rank) const {
  CHECK(slots_ != nullptr);
  return slots_->at(slot_).own[static_cast<std::size_t>(engine_rank)]->shared_fd();
}

std::span<const std::byte> WeightLease::Tensor(int engine_rank, int tensor) const {
  CHECK(slots_ != nullptr);
  return slots_->ShadowTensor(slot_, engine_rank, tensor);
}

}  // namespace bascule
