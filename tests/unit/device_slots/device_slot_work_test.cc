// Each piece of work on slots in device memory, against the same on the host: random boxes, many and large enough to
// fill several batches, and some that are cut into pieces.
#include "engine_side/device_slot_work.h"

#include <gtest/gtest.h>

#include <random>

#include "bridge/layout/box.h"
#include "kernels/pack.h"
#include "tests/support/device_work/device_work.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"

namespace bascule {
namespace {

constexpr std::int64_t kRows = 96;
constexpr std::int64_t kColumns = 200;
constexpr int kItemBytes = 4;
constexpr std::int64_t kBytes = kRows * kColumns * kItemBytes;

// A tensor of 96 by 200 in device memory and its twin on the host, and boxes of it that do not overlap.
class DeviceSlotWorkTest : public testing::Test {
 protected:
  DeviceSlotWorkTest() {
    FakeCuda::SetSeed(3);
    for (std::byte& byte : source_) byte = static_cast<std::byte>(random_());
    // One of three quarters of all columns and a third of the rows, and above five hundred small ones.
    Add(Box{{0, 50}, {32, 150}});
    for (std::int64_t row = 32; row < kRows; ++row) {
      for (std::int64_t column = 0; column < kColumns; column += 20) {
        Add(Box{{row, column}, {1, static_cast<std::int64_t>(1 + random_() % 20)}});
      }
    }
    Add(Box{{5, 7}, {0, 3}});
  }

  void Add(const Box& box) {
    const BoxPlace place = PlaceIn(box, {kRows, kColumns});
    boxes_.push_back({.engine_rank = 0,
                      .shape = ShapeOf(box),
                      .item_bytes = kItemBytes,
                      .place = place,
                      .logical = place,
                      .key = DigestKey{{1, 2, 3, boxes_.size()}}});
  }
  std::vector<Placement> Placements(const std::byte* source) {
    std::vector<Placement> placements;
    for (const SlotBox& box : boxes_) {
      placements.push_back({{box, slot_->bytes().data()}, {source, box.place, nullptr}});
    }
    return placements;
  }
  std::vector<SlotSource> Sources() {
    std::vector<SlotSource> sources;
    for (const SlotBox& box : boxes_) sources.push_back({box, slot_->bytes().data()});
    return sources;
  }
  // What the host says of the boxes of `bytes`.
  std::vector<TensorDigest> HostDigests(std::span<const std::byte> bytes) {
    std::vector<TensorDigest> digests;
    for (const SlotBox& box : boxes_) {
      digests.push_back(DigestBoxOnHost(box.key, box.shape, box.item_bytes, bytes.data(), box.place, box.logical));
    }
    return digests;
  }
  // The slot's bytes once the boxes of `bytes` are in it.
  std::vector<std::byte> Placed(std::span<const std::byte> bytes) {
    std::vector<std::byte> slot(kBytes);
    for (const SlotBox& box : boxes_) {
      CopyBoxOnHost(box.shape, box.item_bytes, bytes.data(), box.place, slot.data(), box.place);
    }
    return slot;
  }
  std::vector<std::byte> Slot() { return ReadDevice(FakeDevice(), slot_->bytes()).value(); }

  std::mt19937 random_{11};
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<SlotBox> boxes_;
  std::unique_ptr<SlotWork> work_ =
      MakeDeviceSlotWork({&FakeDevice()}, {.lanes = 1, .lane_bytes = 4096, .exchange_bytes = 4096}, Clock::Real())
          .value();
  std::unique_ptr<DeviceBuffer> slot_ = FakeDevice().memory().Allocate(kBytes).value();
};

TEST_F(DeviceSlotWorkTest, BoxesOfTheHostAreGatheredPlacedAndDigested) {
  const auto digests = work_->PlaceAndDigest(Placements(source_.data()), FrameMemory::kHost);

  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  EXPECT_EQ(*digests, HostDigests(source_));
  EXPECT_EQ(Slot(), Placed(source_));
}

TEST_F(DeviceSlotWorkTest, BoxesOfTheDeviceArePlacedAndDigestedFromWhereTheyLie) {
  const auto frame = FakeDevice().memory().Allocate(kBytes).value();
  ASSERT_TRUE(WriteDevice(FakeDevice(), frame->bytes(), source_).ok());

  const auto digests = work_->PlaceAndDigest(Placements(frame->bytes().data()), FrameMemory::kDevice);

  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  EXPECT_EQ(*digests, HostDigests(source_));
  EXPECT_EQ(Slot(), Placed(source_));
}

TEST_F(DeviceSlotWorkTest, WhatLiesInASlotIsDigestedReadAndZeroed) {
  ASSERT_TRUE(WriteDevice(FakeDevice(), slot_->bytes(), source_).ok());
  std::vector<std::byte> expected;
  for (const SlotBox& box : boxes_) {
    std::vector<std::byte> compact(static_cast<std::size_t>(box.shape.Elements() * kItemBytes));
    CopyBoxOnHost(box.shape, kItemBytes, source_.data(), box.place, compact.data(), CompactPlace(box.shape));
    expected.insert(expected.end(), compact.begin(), compact.end());
  }

  const auto digests = work_->Digest(Sources());
  std::vector<std::byte> read(expected.size());
  ASSERT_TRUE(work_->Read(Sources(), read).ok());

  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  EXPECT_EQ(*digests, HostDigests(source_));
  EXPECT_EQ(read, expected);
  std::vector<SlotTarget> targets;
  for (const SlotBox& box : boxes_) targets.push_back({box, slot_->bytes().data()});
  ASSERT_TRUE(work_->Zero(targets).ok());
  EXPECT_EQ(*work_->Digest(Sources()), std::vector<TensorDigest>(boxes_.size()));
  EXPECT_NE(Slot(), std::vector<std::byte>(kBytes)) << "what lies between the boxes stays";
}

}  // namespace
}  // namespace bascule
