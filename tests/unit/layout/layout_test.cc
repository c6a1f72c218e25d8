#include "bridge/layout/layout.h"

#include <gtest/gtest.h>

#include <functional>

namespace bascule {
namespace {

// [4, 6] cut in columns over two ranks, the second padded by one column.
Layout ColumnLayout() {
  Layout layout;
  layout.tensors = {{"w", DType::kBf16, {4, 6}}};
  layout.ranks = {
      {.tensors = {{"w", DType::kBf16, {4, 3}, {}}}, .rows = {{0, {{0, 0}, {4, 3}}, 0, {{0, 0}, {4, 3}}}}},
      {.tensors = {{"w", DType::kBf16, {4, 4}, {}}},
       .rows = {{0, {{0, 0}, {4, 3}}, 0, {{0, 3}, {4, 3}}}, {0, {{0, 3}, {4, 1}}, kFill, {}}}},
  };
  return layout;
}

TEST(DTypeTest, EveryNameParsesBackAndUnknownOnesListTheKnown) {
  for (const char* name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "U16", "I16", "F16", "BF16", "U32", "I32", "F32",
                           "U64", "I64", "F64"}) {
    ASSERT_TRUE(ParseDType(name).ok()) << name;
    EXPECT_EQ(DTypeName(*ParseDType(name)), name);
  }
  EXPECT_EQ(ItemBytes(DType::kF8E4M3), 1);
  EXPECT_EQ(ItemBytes(DType::kBf16), 2);
  EXPECT_EQ(ItemBytes(DType::kF32), 4);
  EXPECT_EQ(ItemBytes(DType::kF64), 8);

  const Status status = ParseDType("bf16").status();

  EXPECT_EQ(status.reason(), "unknown_dtype");
  EXPECT_NE(status.message().find("BF16"), std::string::npos) << status.message();
}

TEST(LayoutTest, SizesOfScalarsEmptyAndOrdinaryTensors) {
  EXPECT_EQ((TensorSpec{"s", DType::kF32, {}}.Bytes()), 4);
  EXPECT_EQ((TensorSpec{"e", DType::kF32, {3, 0}}.Bytes()), 0);
  EXPECT_EQ((TensorSpec{"w", DType::kBf16, {3, 5}}.Bytes()), 30);
  EXPECT_EQ((LocalTensor{"w", DType::kBf16, {3, 5}, {8, 1}}.Bytes()), 30);
}

TEST(LayoutTest, APlainLayoutHoldsEveryTensorWholeUnderItsName) {
  const Layout layout = PlainLayout({{"a", DType::kF32, {2, 3}}, {"b", DType::kBf16, {}}});

  ASSERT_TRUE(CheckLayout(layout).ok());
  ASSERT_EQ(layout.ranks.size(), 1U);
  EXPECT_EQ(layout.ranks[0].tensors[1].name, "b");
  EXPECT_EQ(layout.ranks[0].rows[0].logical_box, Box::Whole({2, 3}));
}

TEST(LayoutTest, CutPaddedAndEmptyShardsAreOrdinary) {
  Layout layout = ColumnLayout();
  ASSERT_TRUE(CheckLayout(layout).ok()) << CheckLayout(layout).ToString();

  // Ceil division of 5 rows over 4 ranks starts the empty shard at row 6: its offset means nothing.
  layout.tensors.push_back({"v", DType::kF32, {5}});
  layout.ranks[0].tensors.push_back({"v", DType::kF32, {0}, {}});
  layout.ranks[0].rows.push_back({1, {{0}, {0}}, 1, {{6}, {0}}});

  EXPECT_TRUE(CheckLayout(layout).ok()) << CheckLayout(layout).ToString();
}

struct BadLayoutCase {
  const char* what;
  std::function<void(Layout&)> damage;
  const char* message;  // a part of it
};

TEST(LayoutTest, EveryRuleIsCheckedAndTheMessageHasTheNumbers) {
  const std::int64_t huge = std::int64_t{1} << 62;
  const BadLayoutCase cases[] = {
      {"local index", [](Layout& l) { l.ranks[1].rows[0].local = 1; }, "rank 1: row 0: local index 1 of 1"},
      {"negative local", [](Layout& l) { l.ranks[1].rows[0].local = -1; }, "local index -1"},
      {"logical index", [](Layout& l) { l.ranks[0].rows[0].logical = 3; }, "logical index 3 of 1"},
      {"below kFill", [](Layout& l) { l.ranks[0].rows[0].logical = -2; }, "logical index -2"},
      {"outside local", [](Layout& l) { l.ranks[0].rows[0].local_box.offset[1] = 1; }, "local box outside tensor=w"},
      {"outside logical", [](Layout& l) { l.ranks[1].rows[0].logical_box.offset[1] = 4; },
       "logical box outside tensor=w"},
      {"offset wraps", [&](Layout& l) { l.ranks[1].rows[0].logical_box.offset[1] = 2 * (huge - 1); },
       "logical box outside"},
      {"negative offset", [](Layout& l) { l.ranks[0].rows[0].local_box.offset[0] = -1; }, "local box outside"},
      {"negative extent", [](Layout& l) { l.ranks[0].rows[0].local_box.extent[0] = -4; }, "local box outside"},
      {"dims",
       [](Layout& l) {
         l.ranks[0].rows[0].local_box = {{0}, {3}};
       },
       "local box outside"},
      {"extents", [](Layout& l) { l.ranks[0].rows[0].logical_box.extent[1] = 2; }, "differ"},
      {"dtype", [](Layout& l) { l.ranks[0].tensors[0].dtype = DType::kF32; }, "local F32 and logical BF16"},
      {"no name", [](Layout& l) { l.tensors[0].name = ""; }, "no name"},
      {"long name", [](Layout& l) { l.tensors[0].name = std::string(1025, 'x'); }, "1025 bytes"},
      {"newline", [](Layout& l) { l.ranks[0].tensors[0].name = "a\nb"; }, "control character"},
      {"twice", [](Layout& l) { l.tensors.push_back(l.tensors[0]); }, "two tensors are named w"},
      {"twice locally", [](Layout& l) { l.ranks[0].tensors.push_back(l.ranks[0].tensors[0]); }, "rank 0: two local"},
      {"negative shape", [](Layout& l) { l.tensors[0].shape[0] = -1; }, "negative extent"},
      {"overflow",
       [&](Layout& l) {
         l.tensors[0].shape = {huge, 4};
       },
       "more than 2^63 bytes"},
      {"overflow behind zero",
       [&](Layout& l) {
         l.tensors[0].shape = {0, huge, 4};
       },
       "more than 2^63 bytes"},
      {"stride dims", [](Layout& l) { l.ranks[0].tensors[0].stride = {1}; }, "other number of dimensions"},
      {"negative stride",
       [](Layout& l) {
         l.ranks[0].tensors[0].stride = {-3, 1};
       },
       "negative stride"},
      {"stride overflow",
       [&](Layout& l) {
         l.ranks[0].tensors[0].stride = {huge, 1};
       },
       "reaches past"},
  };
  for (const BadLayoutCase& c : cases) {
    Layout layout = ColumnLayout();
    c.damage(layout);

    const Status status = CheckLayout(layout);

    EXPECT_EQ(status.reason(), "bad_layout") << c.what;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.what << ": " << status.message();
  }
}

// The constants come from tests/support/python/version_digest_known_answers.py.
TEST(LayoutDigestTest, EqualsAnIndependentComputation) {
  Layout padded;
  padded.tensors = {{"w", DType::kBf16, {3, 6}}};
  padded.ranks = {{.tensors = {{"fused", DType::kBf16, {4, 6}, {8, 1}}},
                   .rows = {{0, {{0, 0}, {3, 6}}, 0, {{0, 0}, {3, 6}}}, {0, {{3, 0}, {1, 6}}, kFill, {}}}}};

  EXPECT_EQ(LayoutDigest(PlainLayout({{"w", DType::kF32, {4, 6}}})).ToHex(),
            "fb3fea61bb92d2a1b396bab9244f0907b15ec7fc0af4fc96f1c366b74e94933b");
  EXPECT_EQ(LayoutDigest(padded).ToHex(), "6134a817f7a507df62fb5a05ef8b7ada7ff33fd1b426272ae303d246db9e281e");
}

TEST(LayoutDigestTest, LayoutsThatDifferInAnythingHaveDifferentDigests) {
  const Hash256 digest = LayoutDigest(ColumnLayout());
  EXPECT_EQ(LayoutDigest(ColumnLayout()), digest);
  const std::function<void(Layout&)> changes[] = {
      [](Layout& l) { l.tensors[0].name = "v"; },
      [](Layout& l) { l.tensors[0].dtype = DType::kF16; },
      [](Layout& l) {
        l.tensors[0].shape = {6, 4};
      },
      [](Layout& l) {
        l.tensors.push_back({"b", DType::kF32, {}});
      },
      [](Layout& l) { l.ranks.push_back({}); },
      [](Layout& l) { l.ranks[0].tensors[0].name = "v"; },
      [](Layout& l) { l.ranks[0].tensors[0].dtype = DType::kF16; },
      [](Layout& l) { l.ranks[0].tensors[0].shape[0] = 5; },
      [](Layout& l) {
        l.ranks[0].tensors[0].stride = {3, 1};
      },
      [](Layout& l) { l.ranks[1].rows.pop_back(); },
      [](Layout& l) { l.ranks[1].rows[0].local = 1; },
      [](Layout& l) { l.ranks[1].rows[0].logical = kFill; },
      [](Layout& l) { l.ranks[1].rows[0].local_box.offset[0] = 1; },
      [](Layout& l) { l.ranks[1].rows[0].local_box.extent[0] = 3; },
      [](Layout& l) { l.ranks[1].rows[0].logical_box.offset[1] = 2; },
      [](Layout& l) { l.ranks[1].rows[0].logical_box.extent[1] = 2; },
      [](Layout& l) { std::swap(l.ranks[0], l.ranks[1]); },
  };
  std::vector<Hash256> seen = {digest};
  for (const auto& change : changes) {
    Layout layout = ColumnLayout();
    change(layout);
    seen.push_back(LayoutDigest(layout));
  }

  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

}  // namespace
}  // namespace bascule
