// Engine tensors that are larger than what they hold: experts in several physical slots, rows that a kernel wants
// padded. The expected bytes are worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "bridge/send/publish_session.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/weight_receiver.h"

namespace bascule {
namespace {

// Tensors of bytes; element e of tensor t of version v says all three.
class Bytes final : public WeightSource {
 public:
  Bytes(std::vector<TensorSpec> tensors, int version) : layout_(PlainLayout(std::move(tensors))) {
    for (std::size_t t = 0; t < layout_.tensors.size(); ++t) {
      std::vector<std::byte>& data = data_.emplace_back(static_cast<std::size_t>(layout_.tensors[t].Bytes()));
      for (std::size_t e = 0; e < data.size(); ++e)
        data[e] = static_cast<std::byte>(1 + (37 * t + 5 * e) % 83 + 84 * version);
    }
  }
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int, int tensor) const override { return of(static_cast<std::size_t>(tensor)).data(); }
  const std::vector<std::byte>& of(std::size_t tensor) const { return data_[tensor]; }

 private:
  const Layout layout_;
  std::vector<std::vector<std::byte>> data_;
};

class Engine {
 public:
  explicit Engine(Layout layout)
      : listener_(*LoopbackListener::Create(network_, "engine")),
        receiver_(*WeightReceiver::Create({.layout = std::move(layout), .listeners = {listener_.get()}}, hooks_)),
        serving_(*control_.Listen("engine",
                                  [this](ControlChannel& channel) { static_cast<void>(receiver_->Serve(channel)); })) {}

  Status Publish(const WeightSource& source, std::uint64_t number) {
    LoopbackDialer dialer(network_);
    ConnectionOptions connection;
    connection.address = "engine";
    connection.control = &control_;
    connection.transports = {&dialer};
    return PublishOnce(source, std::move(connection), {.run = "run", .number = number, .new_run = number == 1},
                       Deadline::After(Clock::Real(), std::chrono::minutes(1)))
        .status;
  }
  WeightLease AcquireLive() { return receiver_->AcquireLive(); }

 private:
  IdleHooks hooks_;
  LoopbackControl control_;
  LoopbackNetwork network_;
  std::unique_ptr<LoopbackListener> listener_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> serving_;
};

constexpr std::int64_t kExpertRows = 4;
constexpr std::int64_t kColumns = 8;
constexpr std::int64_t kExpertBytes = kExpertRows * kColumns;

// The expert in each physical slot of each rank. Expert 0 is hot: it is on both ranks, and twice on the first.
using PhysicalSlots = std::array<std::array<std::int32_t, 6>, 2>;
constexpr PhysicalSlots kSlots = {{{0, 1, 2, 3, 0, 5}, {4, 5, 6, 7, 0, 2}}};

std::vector<TensorSpec> Experts() {
  std::vector<TensorSpec> experts;
  for (int e = 0; e < 8; ++e) {
    experts.push_back(
        {.name = fmt::format("experts.{}.weight", e), .dtype = DType::kU8, .shape = {kExpertRows, kColumns}});
  }
  return experts;
}

Layout LayoutOf(const PhysicalSlots& slots) {
  Layout layout{.tensors = Experts()};
  for (const auto& of_rank : slots) {
    RankLayout& rank = layout.ranks.emplace_back();
    rank.tensors.push_back({.name = "experts", .dtype = DType::kU8, .shape = {6, kExpertRows, kColumns}});
    for (std::int64_t slot = 0; slot < 6; ++slot) {
      rank.rows.push_back({.local = 0,
                           .local_box = {{slot, 0, 0}, {1, kExpertRows, kColumns}},
                           .logical = of_rank[static_cast<std::size_t>(slot)],
                           .logical_box = Box::Whole({kExpertRows, kColumns})});
    }
  }
  return layout;
}

// C-067. An engine's map of slots is part of its layout, which a receiver has for good and a session's plan digest
// covers; another map is another engine.
TEST(PhysicalLayoutTest, EverySlotOfAnExpertThatIsHeldSeveralTimesFollowsEveryUpdate) {
  Engine engine(LayoutOf(kSlots));

  for (int version = 1; version <= 3; ++version) {
    const Bytes source(Experts(), version % 2);
    ASSERT_TRUE(engine.Publish(source, static_cast<std::uint64_t>(version)).ok());

    const WeightLease lease = engine.AcquireLive();
    for (int rank = 0; rank < 2; ++rank) {
      for (std::size_t slot = 0; slot < 6; ++slot) {
        const auto held = lease.Tensor(rank, 0).subspan(slot * kExpertBytes, kExpertBytes);
        const auto expert = static_cast<std::size_t>(kSlots[static_cast<std::size_t>(rank)][slot]);
        EXPECT_TRUE(std::ranges::equal(held, source.of(expert)))
            << "version=" << version << " rank=" << rank << " slot=" << slot;
      }
    }
  }
}

TEST(PhysicalLayoutTest, AnotherMapOfSlotsIsAnotherPlanAndAnotherLayout) {
  PhysicalSlots moved = kSlots;
  std::swap(moved[0][4], moved[1][5]);
  const Layout sender = PlainLayout(Experts());

  EXPECT_NE(LayoutDigest(LayoutOf(moved)), LayoutDigest(LayoutOf(kSlots)));
  EXPECT_NE(MakePlan(sender, LayoutOf(moved), {})->digest, MakePlan(sender, LayoutOf(kSlots), {})->digest);
}

// C-076: 48 rows over four ranks, 12 each, padded to 16 on every rank.
TEST(PhysicalLayoutTest, RowsThatAKernelWantsPaddedTakeTheirSourceFromUnpaddedPlacesAndArePaddedWithZeros) {
  constexpr std::int64_t kRows = 48;
  constexpr std::int64_t kShare = 12;
  constexpr std::int64_t kPadded = 16;
  Layout layout{.tensors = {{.name = "w", .dtype = DType::kU8, .shape = {kRows, kColumns}}}};
  for (std::int64_t r = 0; r < 4; ++r) {
    RankLayout& rank = layout.ranks.emplace_back();
    rank.tensors.push_back({.name = "w", .dtype = DType::kU8, .shape = {kPadded, kColumns}});
    rank.rows.push_back({.local = 0,
                         .local_box = {{0, 0}, {kShare, kColumns}},
                         .logical = 0,
                         .logical_box = {{r * kShare, 0}, {kShare, kColumns}}});
    rank.rows.push_back(
        {.local = 0, .local_box = {{kShare, 0}, {kPadded - kShare, kColumns}}, .logical = kFill, .logical_box = {}});
  }
  const Bytes source(layout.tensors, 1);
  // Whatever lay in a slot before.
  const auto slots = WeightSlots::Create(layout, 2, Clock::Real());
  ASSERT_TRUE(slots.ok());
  const int slot = *(*slots)->ReserveShadow(Deadline::After(Clock::Real(), std::chrono::seconds(1)));
  for (int rank = 0; rank < 4; ++rank) std::ranges::fill((*slots)->RankMemory(slot, rank), std::byte{0xff});
  const ReceivePlan plan = MakeReceivePlan(*MakePlan(source.layout(), layout, {}));
  const Staging staging(plan, **slots, slot);

  ASSERT_TRUE(staging.FillPadding().ok());
  for (const Bucket& bucket : plan.plan.buckets) {
    std::vector<BoxView> from;
    for (const Slice& slice : bucket.slices) {
      from.push_back({source.of(0).data(), PlaceIn(slice.sender_box, {kRows, kColumns}), nullptr});
    }
    ASSERT_TRUE(staging.PlaceAndDigest(bucket, from, FrameMemory::kHost).ok());
  }

  for (int rank = 0; rank < 4; ++rank) {
    const std::span<const std::byte> held = staging.memory()(rank, 0);
    const auto wanted =
        std::span(source.of(0)).subspan(static_cast<std::size_t>(rank * kShare * kColumns), kShare * kColumns);
    EXPECT_TRUE(std::ranges::equal(held.first(kShare * kColumns), wanted)) << rank;
    EXPECT_TRUE(std::ranges::all_of(held.subspan(kShare * kColumns), [](std::byte b) { return b == std::byte{0}; }))
        << rank;
  }
}

}  // namespace
}  // namespace bascule
