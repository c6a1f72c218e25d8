#include "engine_side/weight_slots.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/worker.h"
#include "tests/support/fake_clock.h"

namespace bascule {
namespace {

using std::chrono::seconds;

Layout TwoRanks() {
  RankLayout rank;
  rank.tensors = {{"a", DType::kU8, {3}, {}}, {"b", DType::kF32, {4, 5}, {}}};
  Layout layout;
  layout.ranks = {rank, rank};
  return layout;
}

class WeightSlotsTest : public ::testing::Test {
 protected:
  std::unique_ptr<WeightSlots> Make(int slot_count) { return *WeightSlots::Create(TwoRanks(), slot_count, clock_); }
  Deadline Now() { return Deadline::After(clock_, Duration::zero()); }
  Deadline Soon() { return Deadline::After(clock_, seconds(10)); }
  static WeightVersion V(std::uint64_t number) { return WeightVersion{"run", number, {}}; }
  void Publish(WeightSlots& slots, std::uint64_t number) {
    const int slot = *slots.ReserveShadow(Now());
    std::memset(slots.ShadowTensor(slot, 1, 1).data(), static_cast<int>(number), 80);
    slots.Flip(slot, V(number));
  }
  static int ByteOf(const WeightLease& lease) { return std::to_integer<int>(lease.Tensor(1, 1)[79]); }

  FakeClock clock_;
};

TEST_F(WeightSlotsTest, TensorsAreDenseAlignedAndApart) {
  auto slots = Make(2);
  const int slot = *slots->ReserveShadow(Now());

  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(slots->ShadowTensor(slot, rank, 0).size(), 3u);
    EXPECT_EQ(slots->ShadowTensor(slot, rank, 1).size(), 80u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slots->ShadowTensor(slot, rank, 1).data()) % 64, 0u);
    EXPECT_EQ(slots->slot_bytes(rank), 64 + 128);
  }
}

TEST_F(WeightSlotsTest, NothingIsLiveUntilTheFirstFlip) {
  auto slots = Make(2);

  EXPECT_TRUE(slots->AcquireLive().empty());
  EXPECT_EQ(slots->live(), std::nullopt);
  EXPECT_EQ(slots->kept(), std::nullopt);
}

TEST_F(WeightSlotsTest, I1ALeasedSlotIsNeverHandedOutForWriting) {
  auto slots = Make(2);
  Publish(*slots, 1);
  WeightLease old_reader = slots->AcquireLive();
  Publish(*slots, 2);

  EXPECT_EQ(slots->ReserveShadow(Now()).status().reason(), "shadow_leased");
  EXPECT_EQ(ByteOf(old_reader), 1);
  EXPECT_EQ(slots->kept(), V(1)) << "a wait that failed does not give up the kept version";

  old_reader = WeightLease();
  EXPECT_TRUE(slots->ReserveShadow(Now()).ok());
}

TEST_F(WeightSlotsTest, I2ALeaseShowsOneVersionAcrossFlips) {
  auto slots = Make(2);
  Publish(*slots, 1);
  const WeightLease lease = slots->AcquireLive();

  Publish(*slots, 2);

  EXPECT_EQ(lease.version(), V(1));
  EXPECT_EQ(ByteOf(lease), 1);
  EXPECT_EQ(slots->AcquireLive().version(), V(2));
}

TEST_F(WeightSlotsTest, AReservationWaitsForTheLastLeaseOfItsSlot) {
  auto slots = Make(2);
  Publish(*slots, 1);
  WeightLease lease = slots->AcquireLive();
  Publish(*slots, 2);
  std::atomic<bool> reserved{false};
  {
    Worker session("session", [&](std::stop_token) { reserved = slots->ReserveShadow(Soon()).ok(); });
    lease = WeightLease();
  }
  EXPECT_TRUE(reserved);
  EXPECT_EQ(slots->kept(), std::nullopt) << "two slots: the kept version is given up";
}

TEST_F(WeightSlotsTest, AReservationThatWaitsEndsAtItsDeadlineOrWhenStopped) {
  auto slots = Make(2);
  Publish(*slots, 1);
  const WeightLease lease = slots->AcquireLive();
  Publish(*slots, 2);
  const Deadline deadline = Soon();
  Status late;
  Status stopped;

  {
    Worker session("session", [&](std::stop_token) { late = slots->ReserveShadow(deadline).status(); });
    clock_.Advance(seconds(10));
  }
  {
    Worker session("session", [&](std::stop_token stop) { stopped = slots->ReserveShadow(Soon(), stop).status(); });
  }

  EXPECT_EQ(late.reason(), "shadow_leased");
  EXPECT_EQ(stopped.reason(), "cancelled");
}

TEST_F(WeightSlotsTest, OneSessionAtATimeReservesAndAReleasedSlotComesBack) {
  auto slots = Make(3);
  const int slot = *slots->ReserveShadow(Now());

  EXPECT_EQ(slots->ReserveShadow(Now()).status().reason(), "shadow_reserved");

  slots->ReleaseShadow(slot);
  EXPECT_EQ(*slots->ReserveShadow(Now()), slot);
}

TEST_F(WeightSlotsTest, ASlotWhoseBytesAreBeingExchangedIsNotReserved) {
  auto slots = Make(2);
  Publish(*slots, 1);
  Publish(*slots, 2);
  Status meanwhile;

  const auto back = slots->SwapKeptInPlace([&](const HeldDigests&, const HeldDigests&) {
    meanwhile = slots->ReserveShadow(Now()).status();
    return OkStatus();
  });

  EXPECT_EQ(meanwhile.reason(), "shadow_leased");
  EXPECT_EQ(*back, V(1));
  EXPECT_TRUE(slots->ReserveShadow(Now()).ok());
}

TEST_F(WeightSlotsTest, TwoSlotsKeepTheOldVersionUntilTheNextReservation) {
  auto slots = Make(2);
  Publish(*slots, 1);
  Publish(*slots, 2);

  EXPECT_EQ(*slots->SwapKept(), V(1));
  EXPECT_EQ(ByteOf(slots->AcquireLive()), 1);
  EXPECT_EQ(*slots->SwapKept(), V(2));

  ASSERT_TRUE(slots->ReserveShadow(Now()).ok());
  EXPECT_EQ(slots->SwapKept().status().reason(), "no_kept_version");
  EXPECT_EQ(slots->live(), V(2));
}

TEST_F(WeightSlotsTest, ThreeSlotsKeepTheWayBackWhileTheNextVersionStages) {
  auto slots = Make(3);
  Publish(*slots, 1);
  Publish(*slots, 2);
  const int slot = *slots->ReserveShadow(Now());
  std::memset(slots->ShadowTensor(slot, 1, 1).data(), 3, 80);

  EXPECT_EQ(*slots->SwapKept(), V(1));
  EXPECT_EQ(ByteOf(slots->AcquireLive()), 1);

  slots->Flip(slot, V(3));
  EXPECT_EQ(slots->live(), V(3));
  EXPECT_EQ(slots->kept(), V(1));
}

TEST_F(WeightSlotsTest, ManyFlipsUnderReadersNeverShowAMix) {
  auto slots = Make(2);
  Publish(*slots, 1);
  std::atomic<bool> mixed{false};
  {
    Worker reader("reader", [&](std::stop_token stop) {
      while (!stop.stop_requested()) {
        const WeightLease lease = slots->AcquireLive();
        for (const std::byte byte : lease.Tensor(1, 1)) {
          if (std::to_integer<std::uint64_t>(byte) != lease.version().number) mixed = true;
        }
      }
    });
    for (std::uint64_t number = 2; number < 200; ++number) {
      const int slot = *slots->ReserveShadow(Soon());
      std::memset(slots->ShadowTensor(slot, 1, 1).data(), static_cast<int>(number), 80);
      slots->Flip(slot, V(number));
    }
  }
  EXPECT_FALSE(mixed);
}

// C-019.
TEST_F(WeightSlotsTest, I5EveryRankFlipsInTheSameCriticalSection) {
  auto slots = Make(2);
  std::atomic<bool> apart{false};
  {
    Worker reader("reader", [&](std::stop_token stop) {
      while (!stop.stop_requested()) {
        const WeightLease lease = slots->AcquireLive();
        if (lease.empty()) continue;
        for (int rank = 0; rank < 2; ++rank) {
          if (std::to_integer<std::uint64_t>(lease.Tensor(rank, 1)[0]) != lease.version().number) apart = true;
        }
      }
    });
    for (std::uint64_t number = 1; number < 200; ++number) {
      const int slot = *slots->ReserveShadow(Soon());
      for (int rank = 0; rank < 2; ++rank) {
        std::memset(slots->ShadowTensor(slot, rank, 1).data(), static_cast<int>(number), 80);
      }
      slots->Flip(slot, V(number));
    }
  }
  EXPECT_FALSE(apart);
}

// C-098.
TEST_F(WeightSlotsTest, MemoryThatCannotBeHadIsRefusedWithItsBytes) {
  Layout layout;
  layout.ranks.emplace_back().tensors = {{"huge", DType::kU8, {std::int64_t{1} << 50}, {}}};

  const Status status = WeightSlots::Create(layout, 2, clock_).status();

  EXPECT_EQ(status.reason(), "slot_memory");
  EXPECT_NE(status.message().find("1125899906842624"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace bascule
