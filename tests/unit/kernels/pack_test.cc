#include "kernels/pack.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cast.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

constexpr DigestKey kKey{{11, 22, 33, 44}};
constexpr std::byte kUntouched{0xa5};

// A random box of a random logical tensor, and where it lies in random memory (often transposed, often with gaps).
struct Case {
  explicit Case(std::uint64_t seed) : random(seed) {
    tensor = RandomShape(random, seed % 10 == 0 ? 40 : 9);
    box = RandomPartition(random, tensor, 3).front();
    item_bytes = 1 << Uniform(random, 0, 3);
    place = RandomPlace(random, box.shape, memory_elements);
  }
  std::size_t item() const { return static_cast<std::size_t>(item_bytes); }
  std::size_t box_bytes() const { return static_cast<std::size_t>(box.shape.Elements()) * item(); }
  std::size_t memory_bytes() const { return static_cast<std::size_t>(memory_elements) * item(); }

  Random random;
  BoxShape tensor;
  SubBox box;
  int item_bytes = 1;
  std::int64_t memory_elements = 0;
  BoxPlace place;
};

std::vector<std::byte> PackedByElement(const Case& c, std::span<const std::byte> memory) {
  std::vector<std::byte> packed(c.box_bytes());
  for (std::int64_t i = 0; i < c.box.shape.Elements(); ++i) {
    std::memcpy(packed.data() + static_cast<std::size_t>(i) * c.item(),
                memory.data() + OffsetOf(c.box.shape, c.place, i) * c.item_bytes, c.item());
  }
  return packed;
}

std::vector<std::byte> UnpackedByElement(const Case& c, std::span<const std::byte> payload) {
  std::vector<std::byte> memory(c.memory_bytes(), kUntouched);
  for (std::int64_t i = 0; i < c.box.shape.Elements(); ++i) {
    std::memcpy(memory.data() + OffsetOf(c.box.shape, c.place, i) * c.item_bytes,
                payload.data() + static_cast<std::size_t>(i) * c.item(), c.item());
  }
  return memory;
}

// The digest of compact `packed` items that lie at the box's logical place, item by item.
TensorDigest DigestByElement(const Case& c, std::span<const std::byte> packed, std::size_t item) {
  TensorDigest digest;
  for (std::int64_t i = 0; i < c.box.shape.Elements(); ++i) {
    digest += DigestRunOnHost(kKey, OffsetOf(c.box.shape, c.box.place, i) * static_cast<std::int64_t>(item),
                              packed.subspan(static_cast<std::size_t>(i) * item, item));
  }
  return digest;
}

TEST(PackTest, PacksAnyBoxAsAnElementByElementCopyDoesAndDigestsItInTheSamePass) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    const std::vector<std::byte> memory = RandomBytes(c.random, c.memory_bytes());
    std::vector<std::byte> payload(c.box_bytes());

    const TensorDigest digest = PackAndDigestOnHost(kKey, c.box.shape, Conversion::kNone, c.item_bytes, memory.data(),
                                                    c.place, c.box.place, payload);

    const std::vector<std::byte> expected = PackedByElement(c, memory);
    ASSERT_EQ(payload, expected);
    ASSERT_EQ(digest, DigestByElement(c, expected, c.item()));
    ASSERT_EQ(digest, DigestBoxOnHost(kKey, c.box.shape, c.item_bytes, memory.data(), c.place, c.box.place));
  }
}

TEST(PackTest, ConvertsEachElementAndDigestsWhatItBecame) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    const bool narrow = seed % 2 == 0;
    c.item_bytes = narrow ? 4 : 2;
    const std::size_t wire = narrow ? 2 : 4;
    const std::vector<std::byte> memory = RandomBytes(c.random, c.memory_bytes());
    const std::vector<std::byte> unconverted = PackedByElement(c, memory);
    std::vector<std::byte> expected(unconverted.size() / c.item() * wire);
    if (narrow) {
      CastF32ToBf16OnHost(unconverted, expected);
    } else {
      CastBf16ToF32OnHost(unconverted, expected);
    }
    std::vector<std::byte> payload(expected.size());

    const TensorDigest digest =
        PackAndDigestOnHost(kKey, c.box.shape, narrow ? Conversion::kF32ToBf16 : Conversion::kBf16ToF32, c.item_bytes,
                            memory.data(), c.place, c.box.place, payload);

    ASSERT_EQ(payload, expected);
    ASSERT_EQ(digest, DigestByElement(c, expected, wire));
  }
}

TEST(PackTest, PacksARunOfManyBlocksWithAndWithoutConversion) {
  Random random(5);
  const BoxShape shape{2, {3, 50'001}};
  const BoxPlace logical = RowMajorPlace(shape);
  const BoxPlace source{3, {50'001 + 5, 1}};
  const std::vector<std::byte> memory = RandomBytes(random, 4 * (3 + 3 * (50'001 + 5)));
  std::vector<std::byte> same(4 * 3 * 50'001);
  std::vector<std::byte> narrow(2 * 3 * 50'001);
  std::vector<std::byte> expected(narrow.size());

  const TensorDigest same_digest =
      PackAndDigestOnHost(kKey, shape, Conversion::kNone, 4, memory.data(), source, logical, same);
  const TensorDigest narrow_digest =
      PackAndDigestOnHost(kKey, shape, Conversion::kF32ToBf16, 4, memory.data(), source, logical, narrow);

  for (std::int64_t row = 0; row < 3; ++row) {
    ASSERT_EQ(std::memcmp(same.data() + row * 50'001 * 4, memory.data() + (3 + row * 50'006) * 4, 50'001 * 4), 0);
  }
  CastF32ToBf16OnHost(same, expected);
  EXPECT_EQ(narrow, expected);
  EXPECT_EQ(same_digest, DigestRunOnHost(kKey, 0, same));
  EXPECT_EQ(narrow_digest, DigestRunOnHost(kKey, 0, expected));
}

TEST(PackTest, UnpacksAnyBoxAndLeavesTheBytesBetweenAlone) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    const std::vector<std::byte> payload = RandomBytes(c.random, c.box_bytes());
    std::vector<std::byte> memory(c.memory_bytes(), kUntouched);

    UnpackOnHost(c.box.shape, c.item_bytes, payload, memory.data(), c.place);

    ASSERT_EQ(memory, UnpackedByElement(c, payload));
  }
}

TEST(PackTest, UnpackingWithDigestWritesTheSameAndDigestsWhatLiesInTheTarget) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    const std::vector<std::byte> payload = RandomBytes(c.random, c.box_bytes());
    std::vector<std::byte> memory(c.memory_bytes(), kUntouched);

    const TensorDigest digest =
        UnpackAndDigestOnHost(kKey, c.box.shape, c.item_bytes, payload, memory.data(), c.place, c.box.place);

    ASSERT_EQ(memory, UnpackedByElement(c, payload));
    ASSERT_EQ(digest, DigestByElement(c, payload, c.item()));
  }
}

TEST(PackTest, CopyingWithDigestTakesABoxFromAnyPlaceToAnyOtherAndDigestsWhatLiesThere) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    std::int64_t source_elements = 0;
    const BoxPlace source = RandomPlace(c.random, c.box.shape, source_elements);
    const auto source_bytes = static_cast<std::size_t>(source_elements) * c.item();
    const std::vector<std::byte> from = RandomBytes(c.random, source_bytes);
    std::vector<std::byte> compact(c.box_bytes());
    for (std::int64_t i = 0; i < c.box.shape.Elements(); ++i) {
      std::memcpy(compact.data() + static_cast<std::size_t>(i) * c.item(),
                  from.data() + OffsetOf(c.box.shape, source, i) * c.item_bytes, c.item());
    }
    std::vector<std::byte> memory(c.memory_bytes(), kUntouched);

    const TensorDigest digest = CopyAndDigestBoxOnHost(kKey, c.box.shape, c.item_bytes, from.data(), source,
                                                       memory.data(), c.place, c.box.place);

    ASSERT_EQ(memory, UnpackedByElement(c, compact));
    ASSERT_EQ(digest, DigestByElement(c, compact, c.item()));
  }
}

// The payload lies in memory that its producer can still write. Here it changes at a known moment: the target is the
// same memory a little further on, through another mapping, so that each write changes what is read next.
TEST(PackTest, WhatIsDigestedIsWhatWasWrittenWhenThePayloadChangesMeanwhile) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::size_t kMapped = kBytes + 4096;
  const int fd = memfd_create("payload", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kMapped), 0);
  std::byte* mapped[2];
  for (std::byte*& mapping : mapped) {
    void* const address = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(address, MAP_FAILED);
    mapping = static_cast<std::byte*>(address);
  }
  close(fd);
  for (const std::int64_t count : {3000, 20'000, 1 << 20}) {
    for (const std::int64_t shift : {1, 64, 1000, 4096}) {
      SCOPED_TRACE(testing::Message() << count << " bytes, shifted by " << shift);
      Random random(static_cast<std::uint64_t>(count + shift));
      const auto size = static_cast<std::size_t>(count);
      const std::vector<std::byte> before = RandomBytes(random, size);
      std::copy(before.begin(), before.end(), mapped[0]);
      const std::span<const std::byte> target(mapped[0] + shift, size);

      const TensorDigest digest = UnpackAndDigestOnHost(kKey, BoxShape{1, {count}}, 1, {mapped[0], size}, mapped[1],
                                                        BoxPlace{shift, {1}}, BoxPlace{0, {1}});

      EXPECT_EQ(digest, DigestRunOnHost(kKey, 0, target));
      if (size < kBytes) continue;  // may be taken in at once
      EXPECT_NE(digest, DigestRunOnHost(kKey, 0, before)) << "it did not change in time";
    }
  }
  for (std::byte* const mapping : mapped) munmap(mapping, kMapped);
}

TEST(PackTest, LongRunsAtAnyAlignmentArriveWhole) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::int64_t count = Uniform(random, 4000, 600'000);
    const std::int64_t into = Uniform(random, 0, 100);
    const std::int64_t logical = Uniform(random, 0, 1 << 20);
    const std::vector<std::byte> payload = RandomBytes(random, static_cast<std::size_t>(count));
    std::vector<std::byte> memory(static_cast<std::size_t>(into + count + 100), kUntouched);

    const TensorDigest digest = UnpackAndDigestOnHost(kKey, BoxShape{1, {count}}, 1, payload, memory.data(),
                                                      BoxPlace{into, {1}}, BoxPlace{logical, {1}});

    ASSERT_TRUE(std::equal(payload.begin(), payload.end(), memory.begin() + into));
    ASSERT_EQ(std::count(memory.begin(), memory.begin() + into, kUntouched), into);
    ASSERT_EQ(std::count(memory.end() - 100, memory.end(), kUntouched), 100);
    ASSERT_EQ(digest, DigestRunOnHost(kKey, logical, payload));
  }
}

TEST(PackTest, CopiesABoxBetweenAnyTwoPlaces) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    std::int64_t source_elements = 0;
    Case from = c;
    from.place = RandomPlace(c.random, c.box.shape, source_elements);
    const std::vector<std::byte> source = RandomBytes(c.random, static_cast<std::size_t>(source_elements) * c.item());
    std::vector<std::byte> target(c.memory_bytes(), kUntouched);

    CopyBoxOnHost(c.box.shape, c.item_bytes, source.data(), from.place, target.data(), c.place);

    ASSERT_EQ(target, UnpackedByElement(c, PackedByElement(from, source)));
  }
}

TEST(PackTest, FillsEveryElementOfTheBoxAndNoOther) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c(seed);
    const std::vector<std::byte> element = RandomBytes(c.random, c.item());
    std::vector<std::byte> memory(c.memory_bytes(), kUntouched);

    FillBoxOnHost(c.box.shape, element, memory.data(), c.place);

    std::vector<std::byte> repeated;
    for (std::int64_t i = 0; i < c.box.shape.Elements(); ++i) {
      repeated.insert(repeated.end(), element.begin(), element.end());
    }
    ASSERT_EQ(memory, UnpackedByElement(c, repeated));
  }
}

TEST(PackTest, ATransposedViewIsPackedInItsOwnOrder) {
  const std::vector<std::uint16_t> matrix = {0, 1, 2, 3, 4, 5};  // 2 rows of 3
  std::vector<std::uint16_t> packed(6);

  PackAndDigestOnHost(kKey, BoxShape{2, {3, 2}}, Conversion::kNone, 2, std::as_bytes(std::span(matrix)).data(),
                      BoxPlace{0, {1, 3}}, BoxPlace{0, {2, 1}}, std::as_writable_bytes(std::span(packed)));

  EXPECT_EQ(packed, (std::vector<std::uint16_t>{0, 3, 1, 4, 2, 5}));
}

TEST(PackTest, AnItemSizeThatNoDtypeHasIsCopiedAllTheSame) {
  Random random(6);
  const std::vector<std::byte> payload = RandomBytes(random, 3 * 5);
  std::vector<std::byte> memory(3 * 10, kUntouched);

  UnpackOnHost(BoxShape{1, {5}}, 3, payload, memory.data(), BoxPlace{0, {2}});

  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::memcmp(memory.data() + 6 * i, payload.data() + 3 * i, 3), 0);
    EXPECT_EQ(memory[6 * i + 3], kUntouched);
  }
}

}  // namespace
}  // namespace bascule
