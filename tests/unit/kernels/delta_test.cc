#include "kernels/delta.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

constexpr DigestKey kKey{{5, 6, 7, 8}};

// A compact version of a box and its next one, of which about one element in `one_in` differs in some bits.
struct Versions {
  Versions(Random& random, std::int64_t count, int bytes, std::int64_t one_in)
      : item(static_cast<std::size_t>(bytes)), base(RandomBytes(random, static_cast<std::size_t>(count) * item)) {
    next = base;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      if (Uniform(random, 1, one_in) > 1) continue;
      next[i * item + static_cast<std::size_t>(Uniform(random, 0, bytes - 1))] ^=
          static_cast<std::byte>(Uniform(random, 1, 255));
      positions.push_back(static_cast<std::uint32_t>(i));
      items.insert(items.end(), next.begin() + static_cast<std::ptrdiff_t>(i * item),
                   next.begin() + static_cast<std::ptrdiff_t>((i + 1) * item));
    }
  }
  BoxChanges changes() const { return {positions, items}; }

  std::size_t item;
  std::vector<std::byte> base, next;
  std::vector<std::uint32_t> positions;
  std::vector<std::byte> items;
};

// C-056.
TEST(DeltaTest, FindsExactlyTheElementsWhoseBitsDiffer) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Versions versions(random, Uniform(random, 0, 700), 1 << Uniform(random, 0, 3), Uniform(random, 1, 60));
    std::vector<std::uint32_t> positions(versions.positions.size());
    std::vector<std::byte> items(versions.items.size());

    const std::int64_t count =
        ExtractChangesOnHost(static_cast<int>(versions.item), versions.base, versions.next, positions, items);

    ASSERT_EQ(static_cast<std::size_t>(count), versions.positions.size());
    ASSERT_EQ(positions, versions.positions);
    ASSERT_EQ(items, versions.items);
  }
}

TEST(DeltaTest, CountsOnWhenThereIsNoRoomAndWritesTheFirstOnes) {
  Random random(1);
  const Versions versions(random, 1000, 2, 3);
  std::vector<std::uint32_t> positions(10);
  std::vector<std::byte> items(20);

  const std::int64_t count = ExtractChangesOnHost(2, versions.base, versions.next, positions, items);

  EXPECT_EQ(static_cast<std::size_t>(count), versions.positions.size());
  EXPECT_TRUE(std::equal(positions.begin(), positions.end(), versions.positions.begin()));
  EXPECT_TRUE(std::equal(items.begin(), items.end(), versions.items.begin()));
}

TEST(DeltaTest, ComparesBitsAndNotNumbers) {
  const std::vector<float> base = {0.0f, __builtin_nanf("1"), 1.0f}, next = {-0.0f, __builtin_nanf("1"), 1.0f};
  std::vector<std::uint32_t> positions(3);
  std::vector<std::byte> items(12);

  EXPECT_EQ(ExtractChangesOnHost(4, std::as_bytes(std::span(base)), std::as_bytes(std::span(next)), positions, items),
            1);
  EXPECT_EQ(positions[0], 0u);
}

// A box somewhere in memory, holding a version.
struct Placed {
  Placed(Random& random, std::uint64_t seed) : tensor(RandomShape(random, seed % 10 == 0 ? 40 : 9)) {
    box = RandomPartition(random, tensor, 2).front();
    bytes = 1 << Uniform(random, 0, 3);
    place = RandomPlace(random, box.shape, elements);
    memory = RandomBytes(random, static_cast<std::size_t>(elements * bytes));
  }
  // Element by element, as no kernel does it.
  std::vector<std::byte> Holding(std::span<const std::byte> compact) const {
    std::vector<std::byte> held = memory;
    for (std::int64_t i = 0; i < box.shape.Elements(); ++i) {
      std::memcpy(held.data() + OffsetOf(box.shape, place, i) * bytes, compact.data() + i * bytes,
                  static_cast<std::size_t>(bytes));
    }
    return held;
  }

  BoxShape tensor;
  SubBox box;
  int bytes = 1;
  std::int64_t elements = 0;
  BoxPlace place;
  std::vector<std::byte> memory;
};

// C-056.
TEST(DeltaTest, ScattersIntoAnyBoxAndWhatWasReplacedRestoresEveryByte) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Placed placed(random, seed);
    const Versions versions(random, placed.box.shape.Elements(), placed.bytes, Uniform(random, 1, 20));
    const std::vector<std::byte> before = placed.Holding(versions.base);
    std::vector<std::byte> live = before, replaced(versions.items.size()), again(versions.items.size());

    ScatterOnHost(placed.box.shape, placed.bytes, versions.changes(), live.data(), placed.place, replaced);
    ASSERT_EQ(live, placed.Holding(versions.next));

    ScatterOnHost(placed.box.shape, placed.bytes, {versions.positions, replaced}, live.data(), placed.place, again);
    ASSERT_EQ(live, before);
    ASSERT_EQ(again, versions.items);
  }
}

// C-056.
TEST(DeltaTest, TheDigestOfTheChangesLeadsFromTheOldDigestToTheNewAndTouchesNothing) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Placed placed(random, seed);
    const Versions versions(random, placed.box.shape.Elements(), placed.bytes, Uniform(random, 1, 20));
    const std::vector<std::byte> before = placed.Holding(versions.base), after = placed.Holding(versions.next);
    const auto digest = [&](std::span<const std::byte> memory) {
      return DigestBoxOnHost(kKey, placed.box.shape, placed.bytes, memory.data(), placed.place, placed.box.place);
    };

    const TensorDigest change = DigestOfChangesOnHost(kKey, placed.box.shape, placed.bytes, versions.changes(),
                                                      before.data(), placed.place, placed.box.place);

    ASSERT_EQ(digest(before) + change, digest(after));
  }
}

TEST(DeltaTest, PositionsFromAWireAreCheckedBeforeTheyIndexAnything) {
  const std::vector<std::uint32_t> good = {0, 5, 9}, equal = {0, 5, 5}, falling = {5, 4}, beyond = {0, 10};

  EXPECT_TRUE(CheckChanges(good, 10).ok());
  EXPECT_TRUE(CheckChanges({}, 0).ok());
  EXPECT_EQ(CheckChanges(equal, 10).reason(), "change_order");
  EXPECT_EQ(CheckChanges(falling, 10).reason(), "change_order");
  EXPECT_EQ(CheckChanges(beyond, 10).reason(), "change_outside");
}

}  // namespace
}  // namespace bascule
