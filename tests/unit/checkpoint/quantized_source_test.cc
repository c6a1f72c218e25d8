#include "checkpoint/quantized_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "bridge/plan/planner.h"
#include "checkpoint/checkpoint.h"
#include "kernels/cast.h"
#include "kernels/pack.h"
#include "kernels/quantize.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

// Tensors in memory under one layout with one rank.
class MemorySource final : public WeightSource {
 public:
  explicit MemorySource(Layout layout) : layout_(std::move(layout)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (const LocalTensor& tensor : layout_.ranks[0].tensors) {
      std::vector<std::byte>& data = data_.emplace_back(static_cast<std::size_t>(tensor.Bytes()));
      const auto item_bytes = static_cast<std::size_t>(ItemBytes(tensor.dtype));
      for (std::size_t at = 0; at < data.size(); at += item_bytes) {
        const auto bits = std::bit_cast<std::uint32_t>(normal(random));
        if (tensor.dtype == DType::kBf16) {
          const std::uint16_t bf16 = Bf16BitsOfF32Bits(bits);
          std::memcpy(data.data() + at, &bf16, sizeof(bf16));
        } else {
          std::memcpy(data.data() + at, &bits, std::min(item_bytes, sizeof(bits)));
        }
      }
    }
  }
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int, int tensor) const override { return data_[static_cast<std::size_t>(tensor)].data(); }
  std::vector<std::byte>& data(std::size_t tensor) { return data_[tensor]; }

 private:
  const Layout layout_;
  std::vector<std::vector<std::byte>> data_;
};

// What a source holds, whole, by logical name.
std::map<std::string, std::vector<std::byte>> HeldBy(const WeightSource& source) {
  const Result<Plan> plan =
      MakePlan(source.layout(), PlainLayout(source.layout().tensors), {.bucket_bytes = 1 << 16, .ignore = {}});
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  std::map<std::string, std::vector<std::byte>> held;
  for (const TensorSpec& tensor : source.layout().tensors) {
    held[tensor.name].resize(static_cast<std::size_t>(tensor.Bytes()));
  }
  if (!plan.ok()) return held;
  std::vector<const Slice*> slices;
  std::vector<SourceBox> boxes;
  for (const Bucket& bucket : plan->buckets) {
    for (const Slice& slice : bucket.slices) {
      const LocalTensor& from = source.layout().ranks[0].tensors[static_cast<std::size_t>(slice.sender_tensor)];
      slices.push_back(&slice);
      boxes.push_back({source.Base(0, slice.sender_tensor), ItemBytes(from.dtype), ShapeOf(slice.sender_box),
                       PlaceIn(slice.sender_box, from.shape)});
    }
  }
  const std::unique_ptr<BoxReader> reader = source.Read(boxes);
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const Result<BoxView> view = reader->Next();
    EXPECT_TRUE(view.ok());
    if (!view.ok()) return held;
    const TensorSpec& spec = plan->tensors[static_cast<std::size_t>(slices[s]->tensor)];
    CopyBoxOnHost(boxes[s].shape, boxes[s].item_bytes, view->base, view->place, held[spec.name].data(),
                  PlaceIn(slices[s]->logical_box, spec.shape));
  }
  return held;
}

std::pair<std::vector<std::byte>, std::vector<std::byte>> Quantised(std::int64_t rows, std::int64_t columns,
                                                                    std::span<const std::byte> bf16) {
  std::pair<std::vector<std::byte>, std::vector<std::byte>> made;
  made.first.resize(bf16.size() / 2);
  made.second.resize(static_cast<std::size_t>(4 * Fp8Blocks(rows) * Fp8Blocks(columns)));
  EXPECT_TRUE(QuantizeFp8BlocksOnHost(rows, columns, bf16, made.first, made.second).ok());
  return made;
}

TEST(QuantizedSourceTest, WeightsBecomeCodesAndScalesAndOtherTensorsStayWhatTheyAre) {
  MemorySource source(PlainLayout({{"a.weight", DType::kBf16, {130, 200}},
                                   {"norm.weight", DType::kBf16, {200}},
                                   {"z.weight", DType::kF32, {40, 130}}}));

  const auto made =
      QuantizedSource::Make(source, {{"a.weight", "a.weight_scale_inv"}, {"z.weight", "z.weight_scale_inv"}}, {});

  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_TRUE(CheckLayout((*made)->layout()).ok());
  const auto held = HeldBy(**made);
  const auto a = Quantised(130, 200, source.data(0));
  EXPECT_EQ(held.at("a.weight"), a.first);
  EXPECT_EQ(held.at("a.weight_scale_inv"), a.second);
  EXPECT_EQ(held.at("norm.weight"), source.data(1));
  std::vector<std::byte> rounded(source.data(2).size() / 2);
  CastF32ToBf16OnHost(source.data(2), rounded);
  const auto z = Quantised(40, 130, rounded);
  EXPECT_EQ(held.at("z.weight"), z.first);
  EXPECT_EQ(held.at("z.weight_scale_inv"), z.second);
}

TEST(QuantizedSourceTest, WeightsThatAreStoredInOneTensorHaveScalesOfTheirOwn) {
  const Dims expert = {70, 90};
  Layout stacked;
  stacked.tensors = {{"e.0.weight", DType::kBf16, expert}, {"e.1.weight", DType::kBf16, expert}};
  stacked.ranks.resize(1);
  stacked.ranks[0].tensors = {{.name = "e.stacked", .dtype = DType::kBf16, .shape = {2, 70, 90}, .stride = {}}};
  for (std::int32_t e = 0; e < 2; ++e) {
    stacked.ranks[0].rows.push_back({0, {{e, 0, 0}, {1, 70, 90}}, e, Box::Whole(expert)});
  }
  MemorySource source(stacked);

  const auto made = QuantizedSource::Make(
      source, {{"e.0.weight", "e.0.weight_scale_inv"}, {"e.1.weight", "e.1.weight_scale_inv"}}, {});

  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_TRUE(CheckLayout((*made)->layout()).ok());
  const auto held = HeldBy(**made);
  const std::span<const std::byte> all = source.data(0);
  const auto second = Quantised(70, 90, all.subspan(all.size() / 2));
  EXPECT_EQ(held.at("e.0.weight"), Quantised(70, 90, all.first(all.size() / 2)).first);
  EXPECT_EQ(held.at("e.1.weight"), second.first);
  EXPECT_EQ(held.at("e.1.weight_scale_inv"), second.second);
}

TEST(QuantizedSourceTest, AWeightThatCannotBeQuantisedIsRefusedByName) {
  MemorySource source(PlainLayout({{"bad.weight", DType::kBf16, {4, 4}},
                                   {"half.weight", DType::kF16, {4, 4}},
                                   {"vector.weight", DType::kBf16, {4}}}));
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(source.data(0).data() + 2 * 6, &nan, sizeof(nan));
  const auto refusal = [&](const std::string& name) {
    return QuantizedSource::Make(source, {{name, name + "_scale_inv"}}, {}).status();
  };

  EXPECT_EQ(refusal("bad.weight").reason(), "not_finite");
  EXPECT_NE(refusal("bad.weight").message().find("bad.weight: row=1 column=2"), std::string::npos)
      << refusal("bad.weight").ToString();
  EXPECT_EQ(refusal("half.weight").reason(), "cannot_quantize");
  EXPECT_EQ(refusal("vector.weight").reason(), "cannot_quantize");
  EXPECT_EQ(refusal("none.weight").reason(), "tensor_missing");
}

TEST(QuantizedSourceTest, AStopEndsItWithoutASource) {
  const MemorySource source(PlainLayout({{"a.weight", DType::kBf16, {130, 200}}}));
  std::stop_source stop;
  stop.request_stop();

  EXPECT_EQ(QuantizedSource::Make(source, {{"a.weight", "a.weight_scale_inv"}}, stop.get_token()).status().reason(),
            "cancelled");
}

}  // namespace
}  // namespace bascule
