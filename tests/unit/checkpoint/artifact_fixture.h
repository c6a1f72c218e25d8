// A small model in memory and an engine layout of two ranks for it: fused rows, cut columns, a replicated tensor,
// padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/artifact.h"

namespace bascule {

// Elements are two bytes; element i of tensor t has the bits t * 1000 + i, so that a misplaced one is seen.
class SmallModel final : public WeightSource {
 public:
  SmallModel() {
    layout_ = PlainLayout({{"embed", DType::kBf16, {5, 4}},
                           {"norm", DType::kBf16, {4}},
                           {"q", DType::kBf16, {4, 4}},
                           {"k", DType::kBf16, {2, 4}},
                           {"down", DType::kBf16, {4, 6}}});
    for (std::size_t t = 0; t < layout_.tensors.size(); ++t) {
      std::vector<std::uint16_t>& data = data_.emplace_back();
      for (std::int64_t i = 0; i < layout_.tensors[t].Elements(); ++i) {
        data.push_back(static_cast<std::uint16_t>(t * 1000 + static_cast<std::size_t>(i)));
      }
    }
  }
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int, int tensor) const override {
    return reinterpret_cast<const std::byte*>(data_[static_cast<std::size_t>(tensor)].data());
  }
  const std::vector<std::uint16_t>& data(std::size_t tensor) const { return data_[tensor]; }

 private:
  Layout layout_;
  std::vector<std::vector<std::uint16_t>> data_;
};

// Rank r: 3 rows of the embedding (the last of rank 1 is padding), the norm, 2 rows of q and one of k, 3 columns of
// down.
inline Layout LayoutOfTwoRanks(const SmallModel& model) {
  Layout layout;
  layout.tensors = model.layout().tensors;
  for (std::int64_t r = 0; r < 2; ++r) {
    RankLayout& rank = layout.ranks.emplace_back();
    rank.tensors = {{"embed", DType::kBf16, {3, 4}, {}},
                    {"norm", DType::kBf16, {4}, {}},
                    {"qk", DType::kBf16, {3, 4}, {}},
                    {"down", DType::kBf16, {4, 3}, {}}};
    const std::int64_t real = r == 0 ? 3 : 2;
    rank.rows.push_back({0, {{0, 0}, {real, 4}}, 0, {{3 * r, 0}, {real, 4}}});
    if (r == 1) rank.rows.push_back({0, {{2, 0}, {1, 4}}, kFill, {}});
    rank.rows.push_back({1, {{0}, {4}}, 1, {{0}, {4}}});
    rank.rows.push_back({2, {{0, 0}, {2, 4}}, 2, {{2 * r, 0}, {2, 4}}});
    rank.rows.push_back({2, {{2, 0}, {1, 4}}, 3, {{r, 0}, {1, 4}}});
    rank.rows.push_back({3, {{0, 0}, {4, 3}}, 4, {{0, 3 * r}, {4, 3}}});
  }
  return layout;
}

inline ArtifactRecipe RecipeOf(const SmallModel& model) {
  ArtifactRecipe recipe;
  recipe.source = &model;
  recipe.layout = LayoutOfTwoRanks(model);
  recipe.stored = model.layout();
  recipe.fingerprint = {"Small layers=1", 2, 1, false, "BF16", "none"};
  recipe.origin = {"someone/small", "", ""};
  recipe.config_json = "{\n  \"a\": \"\u00e4 \\\" b\"\n}\n";
  return recipe;
}

}  // namespace bascule
