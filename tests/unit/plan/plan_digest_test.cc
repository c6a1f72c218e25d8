#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "bridge/plan/planner.h"

namespace bascule {
namespace {

Plan TwoRoutePlan() {
  const Layout engine = PlainLayout({{"a", DType::kBf16, {8, 6}}, {"b", DType::kBf16, {}}});
  Layout sender = PlainLayout({{"a", DType::kF32, {8, 6}}, {"b", DType::kBf16, {}}, {"extra", DType::kF32, {1}}});
  sender.ranks.push_back({.tensors = {sender.ranks[0].tensors[0]}, .rows = {sender.ranks[0].rows[0]}});
  for (RankLayout& rank : sender.ranks) {
    rank.tensors[0].shape = {4, 6};
    rank.rows[0].local_box = rank.rows[0].logical_box = Box::Whole({4, 6});
  }
  sender.ranks[1].rows[0].logical_box.offset[0] = 4;
  return *MakePlan(sender, engine, {.bucket_bytes = 4096, .ignore = {"extra"}});
}

TEST(PlanDigestTest, ChangesWithAnyField) {
  const Plan plan = TwoRoutePlan();
  ASSERT_EQ(plan.routes.size(), 2U);
  const auto first = [](Plan& p) -> Slice& { return p.buckets[0].slices[0]; };
  const std::function<void(Plan&)> changes[] = {
      [](Plan& p) { p.tensors[0].name = "c"; },
      [](Plan& p) { p.tensors[0].dtype = DType::kF16; },
      [](Plan& p) {
        p.tensors[0].shape = {6, 8};
      },
      [](Plan& p) { std::swap(p.tensors[0], p.tensors[1]); },
      [](Plan& p) { p.routes[0].sender_rank = 7; },
      [](Plan& p) { p.routes[0].engine_rank = 7; },
      [](Plan& p) { p.buckets[0].route = 1; },
      [](Plan& p) { p.buckets[0].payload_bytes += 1; },
      [](Plan& p) { std::swap(p.buckets[0], p.buckets[1]); },
      [](Plan& p) { p.buckets.pop_back(); },
      [](Plan& p) { p.buckets[0].slices.pop_back(); },
      [&](Plan& p) { first(p).tensor = 1; },
      [&](Plan& p) { first(p).logical_box.offset[0] += 1; },
      [&](Plan& p) { first(p).logical_box.extent[0] += 1; },
      [&](Plan& p) { first(p).sender_tensor += 1; },
      [&](Plan& p) { first(p).sender_box.offset[1] += 1; },
      [&](Plan& p) { first(p).sender_box.extent[1] += 1; },
      [&](Plan& p) { first(p).engine_tensor += 1; },
      [&](Plan& p) { first(p).engine_box.offset[0] += 1; },
      [&](Plan& p) { first(p).engine_box.extent[0] += 1; },
      [&](Plan& p) { first(p).conversion = Conversion::kBf16ToF32; },
      [&](Plan& p) { first(p).counts = false; },
      [&](Plan& p) { first(p).payload_offset += 64; },
      [&](Plan& p) { first(p).payload_bytes += 1; },
      [](Plan& p) { p.names.expected.push_back("x"); },
      [](Plan& p) { p.names.loaded.push_back("x"); },
      [](Plan& p) { p.names.ignored.push_back("x"); },
      [](Plan& p) { p.names.unexpected.push_back("x"); },
      [](Plan& p) { p.payload_bytes += 1; },
      [](Plan& p) { p.sender_layout = Sha256Of("x"); },
      [](Plan& p) { p.engine_layout = Sha256Of("x"); },
  };
  std::vector<Hash256> seen = {PlanDigest(plan)};
  for (const auto& change : changes) {
    Plan changed = plan;
    change(changed);
    seen.push_back(PlanDigest(changed));
  }

  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(PlanTextTest, ShowsRoutesWithBytesBucketsAndTheNameSets) {
  const Plan plan = TwoRoutePlan();

  EXPECT_EQ(PlanText(plan), "plan " + plan.digest.ToHex() +
                                "\n"
                                "2 tensors, 98 bytes in 2 buckets on 2 routes\n"
                                "sender 0 -> engine 0: 50 bytes, 2 slices in 1 buckets\n"
                                "sender 1 -> engine 0: 48 bytes, 1 slices in 1 buckets\n"
                                "expected    0\n"
                                "loaded      2: a, b\n"
                                "ignored     1: extra\n"
                                "unexpected  0\n");
}

}  // namespace
}  // namespace bascule
