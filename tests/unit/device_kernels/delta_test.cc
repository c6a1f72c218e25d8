#include "kernels/delta.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/delta_device.h"
#include "tests/unit/device_kernels/test_device.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

constexpr std::byte kUntouched{0xa5};
constexpr std::size_t kBeyond = 64;

class DeviceDeltaTest : public DeviceKernelTest {
 protected:
  // The first `written` bytes of `expected`, as far as it goes, and nothing behind them.
  static void ExpectIsThereAndNothingBeyond(TestMemory& memory, std::span<const std::byte> expected,
                                            std::size_t written) {
    const std::vector<std::byte> bytes = memory.Read();
    written = std::min(written, expected.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(written), expected.begin()));
    EXPECT_EQ(std::count(bytes.begin() + static_cast<std::ptrdiff_t>(written), bytes.end(), kUntouched),
              static_cast<std::ptrdiff_t>(bytes.size() - written));
  }
};

// About one element in `one_in` gets other bits.
std::vector<std::byte> Changed(Random& random, std::span<const std::byte> base, std::size_t item, std::int64_t one_in) {
  std::vector<std::byte> next(base.begin(), base.end());
  for (std::size_t at = 0; at < next.size(); at += item) {
    if (Uniform(random, 1, one_in) > 1) continue;
    next[at + random() % item] ^= static_cast<std::byte>(Uniform(random, 1, 255));
  }
  return next;
}

TEST_F(DeviceDeltaTest, FindsTheChangesThatTheHostFindsInTheSameOrder) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    SetSeed(seed);
    const std::size_t item = std::size_t{1} << Uniform(random, 0, 3);
    const auto count = static_cast<std::size_t>(seed == 0 ? 0 : Uniform(random, 1, 20'000));
    const std::size_t misalignment = seed % 4 == 0 ? 8 : 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << count << " items of " << item);
    const std::vector<std::byte> base = RandomBytes(random, count * item);
    const std::vector<std::byte> next = Changed(random, base, item, Uniform(random, 1, 3000));
    const std::size_t capacity = seed % 5 == 0 ? count / 100 : count;
    std::vector<std::uint32_t> positions(capacity);
    std::vector<std::byte> items(capacity * item);
    const std::int64_t found = ExtractChangesOnHost(static_cast<int>(item), base, next, positions, items);
    const auto blocks = static_cast<std::size_t>(CompareBlocks(static_cast<std::int64_t>(count)));
    const auto base_memory = Upload(base, misalignment), next_memory = Upload(next, misalignment);
    const auto changed = Upload(std::vector<std::byte>(blocks * 512));
    const auto sums = Upload(std::vector<std::byte>((blocks + 1) * 8));
    const auto room_for = [](std::size_t size) { return std::vector<std::byte>(size + kBeyond, kUntouched); };
    const auto positions_memory = Upload(room_for(capacity * 4)), items_memory = Upload(room_for(items.size()));

    Run(kernels().extract_changes, CompareBatch{.base = base_memory->data(),
                                                .next = next_memory->data(),
                                                .count = static_cast<std::int64_t>(count),
                                                .item_bytes = static_cast<int>(item),
                                                .changed = reinterpret_cast<std::uint16_t*>(changed->data()),
                                                .first_change = reinterpret_cast<std::int64_t*>(sums->data()),
                                                .positions = reinterpret_cast<std::uint32_t*>(positions_memory->data()),
                                                .items = items_memory->data(),
                                                .capacity = static_cast<std::int64_t>(capacity)});

    const auto first_change = DownloadItems<std::int64_t>(*sums);
    ASSERT_EQ(first_change.back(), found);
    ExpectIsThereAndNothingBeyond(*positions_memory, std::as_bytes(std::span(positions)),
                                  static_cast<std::size_t>(found) * 4);
    ExpectIsThereAndNothingBeyond(*items_memory, items, static_cast<std::size_t>(found) * item);
    if (capacity < count) continue;
    for (std::size_t block = 0; block <= blocks; ++block) {  // the offset table
      const auto after = std::lower_bound(positions.begin(), positions.begin() + found,
                                          block * static_cast<std::size_t>(kCompareElements));
      ASSERT_EQ(first_change[block], after - positions.begin());
    }
  }
}

// More blocks than the one that sums their counts has threads.
TEST_F(DeviceDeltaTest, CountsOfManyBlocksAreSummedInSeveralRounds) {
  constexpr std::size_t kCount = 700 * static_cast<std::size_t>(kCompareElements) + 5;
  std::vector<std::byte> base(kCount), next(kCount);
  std::vector<std::uint32_t> expected;
  Random random(4);
  for (std::size_t at = 0; at < kCount; at += static_cast<std::size_t>(Uniform(random, 1, 20'000))) {
    next[at] = std::byte{1};
    expected.push_back(static_cast<std::uint32_t>(at));
  }
  const auto base_memory = Upload(base), next_memory = Upload(next);
  const auto changed = Upload(std::vector<std::byte>(701 * 512)), sums = Upload(std::vector<std::byte>(702 * 8));
  const auto positions = UploadItems<std::uint32_t>(std::vector<std::uint32_t>(expected.size()));
  const auto items = Upload(std::vector<std::byte>(expected.size()));

  Run(kernels().extract_changes, CompareBatch{.base = base_memory->data(),
                                              .next = next_memory->data(),
                                              .count = static_cast<std::int64_t>(kCount),
                                              .changed = reinterpret_cast<std::uint16_t*>(changed->data()),
                                              .first_change = reinterpret_cast<std::int64_t*>(sums->data()),
                                              .positions = reinterpret_cast<std::uint32_t*>(positions->data()),
                                              .items = items->data(),
                                              .capacity = static_cast<std::int64_t>(expected.size())});

  EXPECT_EQ(DownloadItems<std::int64_t>(*sums).back(), static_cast<std::int64_t>(expected.size()));
  EXPECT_EQ(DownloadItems<std::uint32_t>(*positions), expected);
}

// Changes of several boxes in one live memory, and what the host makes of them.
struct Delta {
  explicit Delta(std::uint64_t seed) : random(seed) {
    first_change.push_back(0);
    for (std::int64_t i = Uniform(random, 1, 6); i > 0; --i) AddBox();
  }

  void AddBox() {
    std::int64_t elements = 0;
    BoxMove move;
    const bool long_runs = Uniform(random, 0, 2) == 0;
    const BoxShape tensor = long_runs ? BoxShape{2, {3, Uniform(random, 1, 3000)}} : RandomShape(random, 9);
    const SubBox box = RandomPartition(random, tensor, 2).front();
    move.shape = box.shape;
    move.logical = box.place;
    move.item_bytes = 1 << Uniform(random, 0, 3);
    move.target = RandomPlace(random, move.shape, elements);
    live.resize((live.size() + 7) / 8 * 8);
    move.target_bytes = static_cast<std::int64_t>(live.size());
    move.key.seed = {random(), random(), random(), random()};
    const std::vector<std::byte> held = RandomBytes(random, static_cast<std::size_t>(elements * move.item_bytes));
    live.insert(live.end(), held.begin(), held.end());

    const auto item = static_cast<std::size_t>(move.item_bytes);
    const std::vector<std::byte> base(static_cast<std::size_t>(move.shape.Elements()) * item);
    const std::vector<std::byte> next = Changed(random, base, item, Uniform(random, 1, 30));
    std::vector<std::uint32_t> found(next.size() / item);
    std::vector<std::byte> found_items(next.size());
    const auto count = static_cast<std::size_t>(ExtractChangesOnHost(move.item_bytes, base, next, found, found_items));
    items.resize((items.size() + 7) / 8 * 8);
    first_item.push_back(static_cast<std::int64_t>(items.size()));
    positions.insert(positions.end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count));
    items.insert(items.end(), found_items.begin(), found_items.begin() + static_cast<std::ptrdiff_t>(count * item));
    first_change.push_back(static_cast<std::int64_t>(positions.size()));
    moves.push_back(move);
  }

  BoxChanges ChangesOf(std::size_t i) const {
    const auto first = static_cast<std::size_t>(first_change[i]), last = static_cast<std::size_t>(first_change[i + 1]);
    const auto item = static_cast<std::size_t>(moves[i].item_bytes);
    return {std::span(positions).subspan(first, last - first),
            std::span(items).subspan(static_cast<std::size_t>(first_item[i]), (last - first) * item)};
  }

  Random random;
  std::vector<BoxMove> moves;
  std::vector<std::byte> live;
  std::vector<std::uint32_t> positions;
  std::vector<std::byte> items;
  std::vector<std::int64_t> first_change, first_item;
};

// A delta in device memory.
class DeviceChangesTest : public DeviceKernelTest {
 protected:
  void Place(const Delta& delta) {
    BoxMoveTable table;
    for (const BoxMove& move : delta.moves) ASSERT_TRUE(table.Add(move).ok());
    entries_ = UploadItems(table.entries());
    live_ = Upload(delta.live);
    positions_ = UploadItems(std::span(delta.positions));
    items_ = Upload(delta.items);
    replaced_ = Upload(std::vector<std::byte>(delta.items.size()));
    first_change_ = UploadItems(std::span(delta.first_change));
    first_item_ = UploadItems(std::span(delta.first_item));
    digests_ = Upload(std::vector<std::byte>(delta.moves.size() * sizeof(TensorDigest)));
    batch_ = {.entries = reinterpret_cast<const MoveEntry*>(entries_->data()),
              .entry_count = static_cast<std::int64_t>(delta.moves.size()),
              .first_change = reinterpret_cast<const std::int64_t*>(first_change_->data()),
              .first_item = reinterpret_cast<const std::int64_t*>(first_item_->data()),
              .positions = reinterpret_cast<const std::uint32_t*>(positions_->data()),
              .items = items_->data(),
              .replaced = replaced_->data(),
              .changes = delta.first_change.back(),
              .target_base = reinterpret_cast<std::uint64_t>(live_->data()),
              .digests = reinterpret_cast<TensorDigest*>(digests_->data())};
  }

  std::unique_ptr<TestMemory> entries_, live_, positions_, items_, replaced_, first_change_, first_item_, digests_;
  ChangeBatch batch_;
};

TEST_F(DeviceChangesTest, ScattersAsTheHostDoesAndKeepsWhatWasThere) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    SetSeed(seed);
    const Delta delta(seed);
    std::vector<std::byte> expected = delta.live, replaced(delta.items.size());
    for (std::size_t i = 0; i < delta.moves.size(); ++i) {
      const BoxChanges changes = delta.ChangesOf(i);
      ScatterOnHost(delta.moves[i].shape, delta.moves[i].item_bytes, changes,
                    expected.data() + delta.moves[i].target_bytes, delta.moves[i].target,
                    std::span(replaced).subspan(static_cast<std::size_t>(delta.first_item[i]), changes.items.size()));
    }
    Place(delta);

    Run(kernels().scatter, batch_);

    ASSERT_EQ(live_->Read(), expected);
    ASSERT_EQ(replaced_->Read(), replaced);
    const auto again = Upload(std::vector<std::byte>(replaced.size()));
    batch_.items = replaced_->data();
    batch_.replaced = again->data();
    Run(kernels().scatter, batch_);
    ASSERT_EQ(live_->Read(), delta.live) << "the undo";
  }
}

TEST_F(DeviceChangesTest, DigestsWhatTheChangesDoAsTheHostDoesAndWritesNothing) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    SetSeed(seed);
    const Delta delta(seed);
    Place(delta);

    Run(kernels().digest_changes, batch_);

    const auto digests = DownloadItems<TensorDigest>(*digests_);
    for (std::size_t i = 0; i < delta.moves.size(); ++i) {
      const BoxMove& move = delta.moves[i];
      ASSERT_EQ(digests[i], DigestOfChangesOnHost(move.key, move.shape, move.item_bytes, delta.ChangesOf(i),
                                                  delta.live.data() + move.target_bytes, move.target, move.logical))
          << i;
    }
    ASSERT_EQ(live_->Read(), delta.live);
  }
}

}  // namespace
}  // namespace bascule
