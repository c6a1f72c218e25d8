#include "bridge/send/source_digest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "bridge/manifest/manifest.h"
#include "checkpoint/checkpoint.h"
#include "tests/support/case_name.h"
#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

std::vector<TensorSpec> WithType(std::vector<TensorSpec> tensors, std::optional<DType> dtype) {
  for (TensorSpec& tensor : tensors) tensor.dtype = dtype.value_or(tensor.dtype);
  return tensors;
}

// Tensors in memory of any layout.
class MemorySource final : public WeightSource {
 public:
  MemorySource(Layout layout, std::vector<std::vector<std::vector<std::byte>>> memory)
      : layout_(std::move(layout)), memory_(std::move(memory)) {}
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int rank, int tensor) const override {
    return memory_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)].data();
  }

 private:
  Layout layout_;
  std::vector<std::vector<std::vector<std::byte>>> memory_;  // per rank, per local tensor
};

std::vector<std::byte> Bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
  return bytes;
}

struct OracleCase {
  const char* fixture;
  const char* fixture_dtype;
  const char* wire_dtype;  // as the oracle's --dtype
  friend std::ostream& operator<<(std::ostream& out, const OracleCase& c) {
    return out << c.fixture << " " << c.fixture_dtype << " to " << c.wire_dtype;
  }
};

class SourceDigestOracleTest : public testing::TestWithParam<OracleCase> {};

TEST_P(SourceDigestOracleTest, EqualsAnIndependentComputationInPython) {
  const OracleCase& c = GetParam();
  const TempDirectory dir;
  RunPython("fixtures.py", {c.fixture, dir.File("checkpoint"), "--dtype", c.fixture_dtype});
  const auto expected =
      nlohmann::json::parse(RunPython("digest_oracle.py", {dir.File("checkpoint"), "--dtype", c.wire_dtype}));
  const auto checkpoint = Checkpoint::Open(dir.File("checkpoint"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const std::string wire = c.wire_dtype;
  const std::optional<DType> dtype = wire == "bf16"   ? std::optional(DType::kBf16)
                                     : wire == "fp32" ? std::optional(DType::kF32)
                                                      : std::nullopt;
  const std::vector<TensorSpec> tensors = WithType((*checkpoint)->tensors(), dtype);

  const Result<std::vector<TensorDigest>> digests = DigestSource(**checkpoint, tensors, /*threads=*/3);

  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  ASSERT_EQ(expected["tensors"].size(), tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_EQ((*digests)[t].ToHex(), expected["tensors"][tensors[t].name].get<std::string>()) << tensors[t].name;
  }
  EXPECT_EQ(VersionDigestOf(tensors, *digests).ToHex(), expected["version_digest"].get<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SourceDigestOracleTest,
                         testing::Values(OracleCase{"dense", "bf16", "keep"}, OracleCase{"dense", "bf16", "fp32"},
                                         OracleCase{"qk-norm", "fp32", "bf16"}, OracleCase{"tied", "fp32", "keep"}),
                         NameOfCase<OracleCase>);

TEST(SourceDigestTest, TheSumDoesNotDependOnTheNumberOfThreads) {
  const MemorySource source(
      PlainLayout({{"w", DType::kF32, {700, 513}}, {"b", DType::kF32, {513}}, {"none", DType::kF32, {0}}}),
      {{Bytes(700 * 513 * 4), Bytes(513 * 4), {}}});
  const std::vector<TensorSpec> wire = WithType(source.layout().tensors, DType::kBf16);

  const std::vector<TensorDigest> alone = *DigestSource(source, wire, 1);

  EXPECT_EQ(*DigestSource(source, wire, 2), alone);
  EXPECT_EQ(*DigestSource(source, wire, 7), alone);
  EXPECT_EQ(*DigestSource(source, wire, 0), alone);
  EXPECT_EQ(alone[2], TensorDigest{});
}

TEST(SourceDigestTest, ShardsReplicasAndStridesGiveTheDigestOfTheWhole) {
  const std::vector<TensorSpec> tensors = {{"w", DType::kBf16, {6, 10}}};
  const std::vector<std::byte> whole = Bytes(6 * 10 * 2);
  const MemorySource plain(PlainLayout(tensors), {{whole}});
  // Rank 0 has columns 0 to 4 in rows that are 16 apart, rank 1 the rest, rank 2 all of it again.
  Layout layout{.tensors = tensors, .ranks = std::vector<RankLayout>(3)};
  layout.ranks[0] = {.tensors = {{"left", DType::kBf16, {6, 4}, {16, 1}}},
                     .rows = {{0, Box::Whole({6, 4}), 0, Box::Whole({6, 4})}}};
  layout.ranks[1] = {.tensors = {{"right", DType::kBf16, {6, 6}, {}}},
                     .rows = {{0, Box::Whole({6, 6}), 0, {{0, 4}, {6, 6}}}}};
  layout.ranks[2] = {.tensors = {{"all", DType::kBf16, {6, 10}, {}}},
                     .rows = {{0, Box::Whole({6, 10}), 0, Box::Whole({6, 10})}}};
  std::vector<std::byte> left(6 * 16 * 2, std::byte{0xee});
  std::vector<std::byte> right(6 * 6 * 2);
  for (std::size_t row = 0; row < 6; ++row) {
    std::memcpy(&left[row * 32], &whole[row * 20], 8);
    std::memcpy(&right[row * 12], &whole[row * 20 + 8], 12);
  }
  const MemorySource sharded(layout, {{left}, {right}, {whole}});

  EXPECT_EQ(*DigestSource(sharded, tensors, 2), *DigestSource(plain, tensors, 1));
}

TEST(SourceDigestTest, OneChangedByteShowsInItsTensorAlone) {
  const std::vector<TensorSpec> tensors = {{"v", DType::kU8, {100}}, {"w", DType::kU8, {5000}}};
  std::vector<std::byte> changed = Bytes(5000);
  changed[4999] ^= std::byte{1};
  const MemorySource before(PlainLayout(tensors), {{Bytes(100), Bytes(5000)}});
  const MemorySource after(PlainLayout(tensors), {{Bytes(100), changed}});

  const std::vector<TensorDigest> old_digests = *DigestSource(before, tensors, 1);
  const std::vector<TensorDigest> new_digests = *DigestSource(after, tensors, 1);

  EXPECT_EQ(new_digests[0], old_digests[0]);
  EXPECT_NE(new_digests[1], old_digests[1]);
}

TEST(SourceDigestTest, TensorsThatAreNotAskedForTakeNoPartAndMissingOnesAreNamed) {
  const MemorySource source(PlainLayout({{"v", DType::kU8, {3}}, {"w", DType::kU8, {5}}}), {{Bytes(3), Bytes(5)}});

  EXPECT_EQ(DigestSource(source, {{"w", DType::kU8, {5}}}, 1)->size(), 1U);
  const Status missing = DigestSource(source, {{"x", DType::kU8, {5}}}, 1).status();
  const Status other_shape = DigestSource(source, {{"w", DType::kU8, {6}}}, 1).status();

  EXPECT_EQ(missing.reason(), "tensor_missing");
  EXPECT_NE(missing.message().find("x"), std::string::npos);
  EXPECT_EQ(other_shape.reason(), "shape_mismatch");
}

// C-112: data that begin at an odd address.
TEST(SourceDigestTest, AFileWithUnalignedDataGivesTheSameDigest) {
  const TempDirectory dir;
  const std::string data(400, 'x');
  std::vector<TensorDigest> seen;
  for (std::size_t padding = 0; padding < 5; ++padding) {
    std::string json = R"({"w":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}})";
    json.append(padding, ' ');
    std::string length(8, '\0');
    length[0] = static_cast<char>(json.size());
    const auto file = Checkpoint::Open(dir.Write(std::to_string(padding), length + json + data));
    ASSERT_TRUE(file.ok()) << file.status().ToString();

    seen.push_back(DigestSource(**file, {{"w", DType::kBf16, {100}}}, 1)->front());

    EXPECT_EQ(seen.back(), seen.front());
  }
  EXPECT_NE(seen.front(), TensorDigest{});
}

}  // namespace
}  // namespace bascule
