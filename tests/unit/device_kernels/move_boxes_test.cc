#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/box_moves.h"
#include "kernels/pack.h"
#include "tests/unit/device_kernels/test_device.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

constexpr std::byte kUntouched{0xa5};

// Boxes of one launch, side by side in one source and one target memory, and what the host makes of them.
class MoveBoxesTest : public DeviceKernelTest {
 protected:
  struct Batch {
    std::vector<BoxMove> moves;
    std::vector<std::byte> source;
    std::vector<std::byte> target;  // before
    std::vector<std::byte> expected;
    std::vector<TensorDigest> digests;
  };

  // A box of up to 4 dimensions, or one long run; its places in random memory, most often aligned as real ones are.
  static BoxMove RandomMove(Random& random, std::int64_t& source_elements, std::int64_t& target_elements) {
    BoxMove move;
    const bool long_runs = Uniform(random, 0, 3) == 0;
    const BoxShape tensor = long_runs ? BoxShape{2, {Uniform(random, 1, 4), Uniform(random, 1, 9000)}}
                                      : RandomShape(random, Uniform(random, 0, 4) == 0 ? 40 : 9);
    const SubBox box = RandomPartition(random, tensor, static_cast<int>(Uniform(random, 0, 3))).front();
    move.shape = box.shape;
    move.logical = box.place;
    move.logical.offset += Uniform(random, 0, 1) * Uniform(random, 0, 5000);
    move.item_bytes = 1 << Uniform(random, 0, 3);
    if (Uniform(random, 0, 3) == 0) {
      const bool narrow = Uniform(random, 0, 1) == 0;
      move.conversion = narrow ? Conversion::kF32ToBf16 : Conversion::kBf16ToF32;
      move.item_bytes = narrow ? 4 : 2;
    } else if (Uniform(random, 0, 7) == 0) {
      move.fills = true;
      move.element = random();
    }
    move.source = RandomPlace(random, move.shape, source_elements);
    move.target = RandomPlace(random, move.shape, target_elements);
    if (Uniform(random, 0, 1) == 0) move.source.offset = move.target.offset = 0;
    move.key.seed = {random(), random(), random(), random()};
    return move;
  }

  static int ConvertedBytes(const BoxMove& move) {
    return move.conversion == Conversion::kF32ToBf16   ? 2
           : move.conversion == Conversion::kBf16ToF32 ? 4
                                                       : move.item_bytes;
  }

  static void AddMove(Random& random, Batch& batch) {
    std::int64_t source_elements = 0, target_elements = 0;
    BoxMove move = RandomMove(random, source_elements, target_elements);
    const std::size_t boundary = Uniform(random, 0, 1) == 0 ? 64 : 8;
    const auto align = [boundary](std::vector<std::byte>& memory, std::byte filler) {
      memory.resize((memory.size() + boundary - 1) / boundary * boundary, filler);
      return static_cast<std::int64_t>(memory.size());
    };
    move.source_bytes = align(batch.source, std::byte{});
    move.target_bytes = align(batch.target, kUntouched);
    const auto bytes = RandomBytes(random, static_cast<std::size_t>(source_elements * move.item_bytes));
    batch.source.insert(batch.source.end(), bytes.begin(), bytes.end());
    batch.target.resize(batch.target.size() + static_cast<std::size_t>(target_elements * ConvertedBytes(move)),
                        kUntouched);
    batch.moves.push_back(move);
  }

  static Batch RandomBatch(Random& random) {
    Batch batch;
    for (std::int64_t i = Uniform(random, 1, 6); i > 0; --i) AddMove(random, batch);
    batch.expected = batch.target;
    for (const BoxMove& move : batch.moves) batch.digests.push_back(MoveOnHost(move, batch.source, batch.expected));
    return batch;
  }

  // With the host's functions: pack (or fill) what is moved, then unpack it.
  static TensorDigest MoveOnHost(const BoxMove& move, std::span<const std::byte> source, std::span<std::byte> target) {
    const int bytes = ConvertedBytes(move);
    std::vector<std::byte> payload(static_cast<std::size_t>(move.shape.Elements() * bytes));
    if (move.fills) {
      FillBoxOnHost(move.shape, std::as_bytes(std::span(&move.element, 1)).first(static_cast<std::size_t>(bytes)),
                    payload.data(), CompactPlace(move.shape));
    } else {
      PackAndDigestOnHost(move.key, move.shape, move.conversion, move.item_bytes, source.data() + move.source_bytes,
                          move.source, move.logical, payload);
    }
    return UnpackAndDigestOnHost(move.key, move.shape, bytes, payload, target.data() + move.target_bytes, move.target,
                                 move.logical);
  }

  // Of `run`, a launch over the batch: what lies in the target then, and the digests.
  struct Outcome {
    std::vector<std::byte> target;
    std::vector<TensorDigest> digests;
  };
  Outcome OnDevice(Status (*kernel)(const MoveBatch&, StreamHandle), const Batch& batch, std::size_t misalignment) {
    BoxMoveTable table;
    for (const BoxMove& move : batch.moves) EXPECT_TRUE(table.Add(move).ok());
    const auto entries = UploadItems(table.entries());
    const auto source = Upload(batch.source, misalignment);
    const auto target = Upload(batch.target, misalignment);
    const std::vector<TensorDigest> zeros(batch.moves.size());
    const auto digests = UploadItems(std::span(zeros));
    const MoveBatch launch{.entries = reinterpret_cast<const MoveEntry*>(entries->data()),
                           .entry_count = static_cast<std::int64_t>(batch.moves.size()),
                           .tiles = table.tiles(),
                           .source_base = reinterpret_cast<std::uint64_t>(source->data()),
                           .target_base = reinterpret_cast<std::uint64_t>(target->data()),
                           .digests = reinterpret_cast<TensorDigest*>(digests->data())};
    Run(kernel, launch);
    return {target->Read(), DownloadItems<TensorDigest>(*digests)};
  }
};

TEST_F(MoveBoxesTest, MovesConvertsFillsAndDigestsAsTheHostDoes) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SetSeed(seed);
    const Batch batch = RandomBatch(random);

    const Outcome outcome = OnDevice(kernels().move_and_digest_boxes, batch, seed % 3 == 0 ? 8 : 0);

    ASSERT_EQ(outcome.target, batch.expected);
    ASSERT_EQ(outcome.digests, batch.digests);
  }
}

TEST_F(MoveBoxesTest, MovesTheSameWithoutADigest) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Batch batch = RandomBatch(random);

    ASSERT_EQ(OnDevice(kernels().move_boxes, batch, seed % 3 == 0 ? 8 : 0).target, batch.expected);
  }
}

TEST_F(MoveBoxesTest, DigestsWhatLiesThereAndWritesNothing) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Batch batch = RandomBatch(random);

    const Outcome outcome = OnDevice(kernels().digest_boxes, batch, seed % 3 == 0 ? 8 : 0);

    ASSERT_EQ(outcome.digests, batch.digests);
    ASSERT_EQ(outcome.target, batch.target);
  }
}

// As a bucket of norms is: many slices, more tiles than one block takes, shorter than one.
TEST_F(MoveBoxesTest, AThousandSmallSlicesAreOneLaunch) {
  Random random(7);
  Batch batch;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t count = Uniform(random, 0, 3) == 0 ? 0 : Uniform(random, 1, 300);
    BoxMove move{.shape = {1, {count}}, .item_bytes = 2};
    move.source.stride[0] = move.target.stride[0] = move.logical.stride[0] = 1;
    move.source_bytes = move.target_bytes = static_cast<std::int64_t>(batch.source.size());
    move.key.seed = {random(), random(), random(), random()};
    batch.moves.push_back(move);
    batch.source.resize(batch.source.size() + static_cast<std::size_t>((2 * count + 63) / 64 * 64));
  }
  batch.source = RandomBytes(random, batch.source.size());
  batch.target.resize(batch.source.size(), kUntouched);
  batch.expected = batch.target;
  for (const BoxMove& move : batch.moves) batch.digests.push_back(MoveOnHost(move, batch.source, batch.expected));

  const Outcome outcome = OnDevice(kernels().move_and_digest_boxes, batch, 0);

  EXPECT_EQ(outcome.target, batch.expected);
  EXPECT_EQ(outcome.digests, batch.digests);
}

TEST_F(MoveBoxesTest, ADigestIsAddedToWhatIsThere) {
  Random random(3);
  const Batch batch = RandomBatch(random);
  BoxMoveTable table;
  for (const BoxMove& move : batch.moves) ASSERT_TRUE(table.Add(move).ok());
  const auto entries = UploadItems(table.entries());
  const auto source = Upload(batch.source);
  const std::vector<TensorDigest> before(batch.moves.size(), TensorDigest{{1, 2, 3, ~std::uint64_t{0}}});
  const auto digests = UploadItems(std::span(before));

  Run(kernels().digest_boxes, MoveBatch{.entries = reinterpret_cast<const MoveEntry*>(entries->data()),
                                        .entry_count = static_cast<std::int64_t>(batch.moves.size()),
                                        .tiles = table.tiles(),
                                        .source_base = reinterpret_cast<std::uint64_t>(source->data()),
                                        .digests = reinterpret_cast<TensorDigest*>(digests->data())});

  const auto after = DownloadItems<TensorDigest>(*digests);
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i], before[i] + batch.digests[i]) << i;
}

// Far beyond 2^31: the digest of the same bytes at a far place needs only other keys.
TEST_F(MoveBoxesTest, PositionsBeyondFourGigabytesAreTheirOwn) {
  Random random(11);
  Batch batch;
  BoxMove move{.shape = {2, {3, 1000}}, .item_bytes = 2};
  move.source.stride = move.target.stride = {1000, 1};
  move.logical.offset = 5'000'000'123;
  move.logical.stride = {3'000'000'000, 1};
  batch.moves = {move};
  batch.source = RandomBytes(random, 6000);
  batch.target.resize(6000);
  batch.expected = batch.target;
  batch.digests = {MoveOnHost(move, batch.source, batch.expected)};

  const Outcome outcome = OnDevice(kernels().move_and_digest_boxes, batch, 0);

  EXPECT_EQ(outcome.target, batch.expected);
  EXPECT_EQ(outcome.digests, batch.digests);
}

TEST(BoxMoveTableTest, RefusesElementSizesThatNoKernelKnows) {
  BoxMoveTable table;

  EXPECT_EQ(table.Add({.item_bytes = 3}).reason(), "item_bytes");
  EXPECT_EQ(table.Add({.item_bytes = 2, .conversion = Conversion::kF32ToBf16}).reason(), "item_bytes");
  EXPECT_EQ(table.Add({.item_bytes = 4, .source_bytes = 2}).reason(), "misaligned");
  EXPECT_TRUE(table.entries().empty());
}

// Rows that begin at one place in every chunk need no room for the chunk that a shifted row would reach into.
TEST(BoxMoveTableTest, RowsThatStayWithinAChunkAreOneSegmentEach) {
  BoxMoveTable table;
  BoxMove move{.shape = {2, {64, 512}}, .item_bytes = 2};
  move.source.stride = move.target.stride = {512, 1};
  move.logical.stride = {4096, 1};

  ASSERT_TRUE(table.Add(move).ok());

  EXPECT_EQ(table.entries()[0].segments, 64);
  EXPECT_FALSE(table.entries()[0].lane_each);
}

}  // namespace
}  // namespace bascule
