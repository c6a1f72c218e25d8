#include "kernels/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/digest_internal.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

constexpr DigestKey kKey{{0x0123456789abcdef, 0xfedcba9876543210, 0, 0xffffffffffffffff}};

TensorDigest DigestOf(std::span<const std::byte> bytes, const DigestKey& key = kKey) {
  return DigestRunOnHost(key, 0, bytes);
}

// Printed by: python3 tests/support/python/digest_known_answers.py
struct KnownAnswer {
  std::int64_t position;
  std::size_t size;
  std::uint32_t salt;
  const char* hex;
};
constexpr KnownAnswer kKnownAnswers[] = {
    {0, 0, 0, "0000000000000000000000000000000000000000000000000000000000000000"},
    {0, 1, 4000000000, "b8917733f045da0eb88a06f222954daeb790dced2c5db856a0bcd874e62ef762"},
    {0, 4096, 1, "8752aee3da39994df5e5b8f1fc56e877a2e7bbb2e22a346323b9ca1957fc2ebd"},
    {4095, 2, 2, "bef5f149ad9f6189208c0f421b8cf1393b422cf8efbfdf093e1cd5f1196098d9"},
    {3, 10, 3, "dd50de21e4d4416b2c3e62a8757b1fe97da4f93ed610ded5348007ae7bdb59fb"},
    {4097, 8191, 4, "53902371fcb11ae96b5a92f1cbb895158b15b6a77387dd9b378c75877de045b5"},
    {65536, 70000, 5, "600fa66f47ce261bb4d5db351e385763d28e8aaf25264f470d134bb9f0ed8905"},
    {8589938685, 4200, 6, "822de0cd7cad39e5de458537d389cb5d6ce8824a9d931bbd72cdd4aacb15ef95"},
};

std::vector<std::byte> PatternOf(const KnownAnswer& known) {
  std::vector<std::byte> bytes(known.size);
  for (std::size_t i = 0; i < known.size; ++i) {
    const auto place = static_cast<std::uint32_t>(known.position + static_cast<std::int64_t>(i));
    bytes[i] = static_cast<std::byte>((place * 2654435761u + known.salt) >> 24);
  }
  return bytes;
}

TEST(DigestTest, EqualsTheAnswersOfAnIndependentProgram) {
  for (const KnownAnswer& known : kKnownAnswers) {
    EXPECT_EQ(DigestRunOnHost(kKey, known.position, PatternOf(known)).ToHex(), known.hex)
        << known.position << " " << known.size;
  }
}

TEST(DigestTest, EveryVariantThisProcessorHasEqualsTheAnswersOfAnIndependentProgram) {
  for (const digest_internal::Variant& variant : digest_internal::Variants()) {
    if (!variant.available()) continue;
    SCOPED_TRACE(variant.name);
    for (const KnownAnswer& known : kKnownAnswers) {
      digest_internal::RunningDigest digest(kKey, variant);
      digest.Add(known.position, PatternOf(known));
      EXPECT_EQ(digest.Total().ToHex(), known.hex) << known.position << " " << known.size;
    }
  }
}

TEST(DigestTest, EveryVariantThisProcessorHasEqualsTheScalarOneAtAnySizePositionAndAlignment) {
  const digest_internal::Variant& scalar = digest_internal::Variants().front();
  for (const digest_internal::Variant& variant : digest_internal::Variants()) {
    if (!variant.available()) continue;
    SCOPED_TRACE(variant.name);
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
      SCOPED_TRACE(seed);
      Random random(seed);
      const std::int64_t max_size = seed % 4 == 0 ? 300'000 : 9'000;
      std::vector<std::byte> memory = RandomBytes(random, static_cast<std::size_t>(Uniform(random, 70, max_size)));
      if (seed % 5 == 0) std::fill(memory.begin(), memory.end(), std::byte{0xff});  // the largest sums
      const auto bytes = std::span(memory).subspan(static_cast<std::size_t>(Uniform(random, 0, 64)));
      const std::int64_t position =
          seed % 3 == 0 ? Uniform(random, 0, 1 << 20) * kDigestChunkBytes : Uniform(random, 0, std::int64_t{1} << 40);

      digest_internal::RunningDigest expected(kKey, scalar);
      expected.Add(position, bytes);
      digest_internal::RunningDigest digest(kKey, variant);
      digest.Add(position, bytes);

      ASSERT_EQ(digest.Total(), expected.Total());
    }
  }
}

TEST(DigestTest, EveryVariantThisProcessorHasEqualsTheScalarOneForEveryNumberOfWholeChunks) {
  Random random(10);
  const std::vector<std::byte> bytes =
      RandomBytes(random, (2 * digest_internal::kBatchChunks + 2) * digest_internal::kChunkBytes);
  for (const digest_internal::Variant& variant : digest_internal::Variants()) {
    if (!variant.available()) continue;
    SCOPED_TRACE(variant.name);
    for (std::size_t chunks = 1; chunks <= 2 * digest_internal::kBatchChunks + 2; ++chunks) {
      const auto piece = std::span(bytes).first(chunks * digest_internal::kChunkBytes);
      digest_internal::RunningDigest expected(kKey, digest_internal::Variants().front());
      expected.Add(5 * kDigestChunkBytes, piece);
      digest_internal::RunningDigest digest(kKey, variant);
      digest.Add(5 * kDigestChunkBytes, piece);

      ASSERT_EQ(digest.Total(), expected.Total()) << chunks;
    }
  }
}

TEST(DigestTest, AnyRandomPartitionOfARandomTensorAddsUpToTheWhole) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const BoxShape shape = RandomShape(random, 24);
    const int item_bytes = 1 << Uniform(random, 0, 3);
    const std::vector<std::byte> tensor = RandomBytes(random, static_cast<std::size_t>(shape.Elements() * item_bytes));

    std::vector<SubBox> boxes = RandomPartition(random, shape, static_cast<int>(Uniform(random, 0, 12)));
    std::shuffle(boxes.begin(), boxes.end(), random);
    TensorDigest sum;
    for (const SubBox& box : boxes) {
      sum += DigestBoxOnHost(kKey, box.shape, item_bytes, tensor.data(), box.place, box.place);
    }

    ASSERT_EQ(sum, DigestOf(tensor));
  }
}

TEST(DigestTest, ABoxElsewhereInMemoryHasTheDigestOfItsLogicalPlace) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const BoxShape tensor = RandomShape(random, 12);
    const int item_bytes = 1 << Uniform(random, 0, 3);
    const auto item = static_cast<std::size_t>(item_bytes);
    const SubBox box = RandomPartition(random, tensor, 4).back();
    std::int64_t memory_elements = 0;
    const BoxPlace memory = RandomPlace(random, box.shape, memory_elements);
    const std::vector<std::byte> bytes = RandomBytes(random, static_cast<std::size_t>(memory_elements) * item);

    std::vector<std::byte> logical(static_cast<std::size_t>(tensor.Elements()) * item);
    for (std::int64_t i = 0; i < box.shape.Elements(); ++i) {
      std::copy_n(bytes.begin() + OffsetOf(box.shape, memory, i) * item_bytes, item,
                  logical.begin() + OffsetOf(box.shape, box.place, i) * item_bytes);
    }

    ASSERT_EQ(DigestBoxOnHost(kKey, box.shape, item_bytes, bytes.data(), memory, box.place), DigestOf(logical));
  }
}

TEST(DigestTest, CutsAnywhereAlsoInsideWordsAddUp) {
  Random random(11);
  const std::vector<std::byte> bytes = RandomBytes(random, 10'000);
  const TensorDigest whole = DigestRunOnHost(kKey, 4093, bytes);
  for (int round = 0; round < 200; ++round) {
    const auto first = static_cast<std::size_t>(Uniform(random, 0, 10'000));
    const auto second = static_cast<std::size_t>(Uniform(random, 0, static_cast<std::int64_t>(10'000 - first)));
    const std::span<const std::byte> all(bytes);

    const TensorDigest sum =
        DigestRunOnHost(kKey, 4093, all.first(first)) +
        DigestRunOnHost(kKey, 4093 + static_cast<std::int64_t>(first), all.subspan(first, second)) +
        DigestRunOnHost(kKey, 4093 + static_cast<std::int64_t>(first + second), all.subspan(first + second));

    ASSERT_EQ(sum, whole) << "cuts " << first << " and " << first + second;
  }
}

TEST(DigestTest, AnySingleChangedByteShowsInEveryLane) {
  Random random(12);
  std::vector<std::byte> bytes = RandomBytes(random, 3 * kDigestChunkBytes + 5);
  const TensorDigest before = DigestOf(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::byte kept = bytes[i];
    bytes[i] ^= static_cast<std::byte>(Uniform(random, 1, 255));

    const TensorDigest after = DigestOf(bytes);

    for (std::size_t l = 0; l < kDigestLanes; ++l) ASSERT_NE(after.lane[l], before.lane[l]) << "byte " << i;
    bytes[i] = kept;
  }
}

TEST(DigestTest, SwappingTwoTensorsOfEqualShapeShowsBecauseTheirKeysDiffer) {
  Random random(13);
  const std::vector<std::byte> q = RandomBytes(random, 8192);
  const std::vector<std::byte> k = RandomBytes(random, 8192);
  const DigestKey q_key{{1, 2, 3, 4}};
  const DigestKey k_key{{5, 6, 7, 8}};

  EXPECT_NE(DigestOf(q, q_key), DigestOf(k, q_key));
  EXPECT_NE(DigestOf(q, q_key), DigestOf(q, k_key));
  EXPECT_NE(DigestOf(q, q_key) + DigestOf(k, k_key), DigestOf(k, q_key) + DigestOf(q, k_key));
}

TEST(DigestTest, SwappingTwoWordsTwoRowsOrTwoChunksShows) {
  Random random(14);
  const std::vector<std::byte> bytes = RandomBytes(random, 16 * kDigestChunkBytes);
  constexpr std::size_t kRowBytes = 192;
  for (const std::size_t unit : {std::size_t{4}, kRowBytes, static_cast<std::size_t>(kDigestChunkBytes)}) {
    for (int round = 0; round < 100; ++round) {
      const auto last = static_cast<std::int64_t>(bytes.size() / unit) - 1;
      const std::int64_t a = Uniform(random, 0, last);
      const std::int64_t b = (a + Uniform(random, 1, last)) % (last + 1);
      std::vector<std::byte> swapped = bytes;
      std::swap_ranges(swapped.begin() + a * static_cast<std::int64_t>(unit),
                       swapped.begin() + (a + 1) * static_cast<std::int64_t>(unit),
                       swapped.begin() + b * static_cast<std::int64_t>(unit));

      ASSERT_NE(DigestOf(swapped), DigestOf(bytes)) << "unit " << unit << ": " << a << " and " << b;
    }
  }
}

TEST(DigestTest, UpdatingByDifferenceEqualsRecomputing) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<std::byte> bytes = RandomBytes(random, 50'000);
    TensorDigest digest = DigestOf(bytes);
    for (int change = 0; change < 40; ++change) {
      const std::int64_t at = Uniform(random, 0, 49'900);
      const auto size = static_cast<std::size_t>(Uniform(random, 1, 100));
      const auto piece = std::span(bytes).subspan(static_cast<std::size_t>(at), size);

      digest -= DigestRunOnHost(kKey, at, piece);
      for (std::byte& byte : piece) byte = static_cast<std::byte>(random());
      digest += DigestRunOnHost(kKey, at, piece);
    }

    ASSERT_EQ(digest, DigestOf(bytes));
  }
}

TEST(DigestTest, NoBytesAndZeroBytesHaveTheDigestZero) {
  const std::vector<std::byte> zeros(10'000);

  EXPECT_EQ(DigestOf({}), TensorDigest{});
  EXPECT_EQ(DigestOf(zeros), TensorDigest{});
  EXPECT_EQ(DigestBoxOnHost(kKey, BoxShape{2, {0, 4}}, 2, nullptr, BoxPlace{0, {4, 1}}, BoxPlace{0, {4, 1}}),
            TensorDigest{});
}

TEST(DigestTest, ThreadsThatDigestAtTheSameTimeDoNotDisturbEachOther) {
  Random random(15);
  const std::vector<std::byte> bytes = RandomBytes(random, 200'000);
  digest_internal::RunningDigest expected(kKey, digest_internal::Variants().front());
  expected.Add(0, bytes);
  const TensorDigest whole = expected.Total();
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) wrong += DigestOf(bytes) != whole;
      });
    }
  }

  EXPECT_EQ(wrong, 0);
}

TEST(DigestTest, EveryKeyIsOddSoThatAChangeWithinAWordIsNeverMissed) {
  std::set<std::uint32_t> distinct;
  for (std::size_t lane = 0; lane < digest_internal::kLanes; ++lane) {
    for (std::size_t word = 0; word < digest_internal::kChunkWords; ++word) {
      const std::uint32_t key = digest_internal::kWordKeys.Lane(lane)[word];
      EXPECT_EQ(key % 2, 1u);
      distinct.insert(key);
    }
  }
  EXPECT_EQ(distinct.size(), 4096u);
}

TEST(DigestTest, HexHasLaneZeroFirst) {
  EXPECT_EQ((TensorDigest{{1, 2, 3, 0xabc}}.ToHex()),
            "0000000000000001000000000000000200000000000000030000000000000abc");
}

}  // namespace
}  // namespace bascule
