#include "engine_side/decode/step_tables.h"

#include <algorithm>

namespace bascule {
namespace {

constexpr std::int64_t kBoundary = 64;
constexpr std::int64_t kMostBanned = 32;  // tokens of one row that a device leaves out

bool DeviceDraws(const SampleRule& rule) {
  return rule.top_k == 0 && rule.top_p == 1 && rule.top_logprobs == 0 && std::ssize(rule.banned) <= kMostBanned;
}

}  // namespace

StepTables::StepTables(const StepTableSizes& sizes) : sizes_(sizes) {
  const auto place = [this](std::int64_t& offset, std::int64_t bytes) {
    offset = block_bytes_;
    block_bytes_ += (bytes + kBoundary - 1) / kBoundary * kBoundary;
  };
  constexpr std::int64_t kInt = sizeof(std::int32_t);
  place(tokens_, sizes.rows * kInt);
  place(positions_, sizes.rows * kInt);
  place(first_page_, sizes.rows * kInt);
  place(logit_rows_, sizes.logits * kInt);
  place(sample_rows_, sizes.logits * std::int64_t{sizeof(SampleRow)});
  place(banned_, sizes.logits * kMostBanned * kInt);
  place(page_tables_, sizes.rows * sizes.table_pages * kInt);
}

Result<StepTables> StepTables::Create(Device& device, const StepTableSizes& sizes) {
  StepTables tables(sizes);
  ASSIGN_OR_RETURN(tables.pinned_, device.pinned_memory().Allocate(static_cast<std::size_t>(tables.block_bytes_)));
  return tables;
}

void StepTables::Write(std::span<const StepRow> rows, const StepShape& shape) {
  CHECK(shape.rows <= sizes_.rows && shape.logits <= sizes_.logits);
  const auto count = std::ssize(rows);
  std::fill_n(At<std::int32_t>(tokens_) + count, shape.rows - count, -1);
  std::fill_n(At<std::int32_t>(positions_) + count, shape.rows - count, -1);
  std::fill_n(At<std::int32_t>(first_page_) + count, shape.rows - count, 0);
  std::int64_t logits = 0, pages = 0, table = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const StepRow& row = rows[static_cast<std::size_t>(r)];
    At<std::int32_t>(tokens_)[r] = row.token;
    At<std::int32_t>(positions_)[r] = static_cast<std::int32_t>(row.position);
    if (row.wants_logits) At<std::int32_t>(logit_rows_)[logits++] = static_cast<std::int32_t>(r);
    // Rows of one request are neighbours, and the last of them uses the most of its table.
    const bool goes_on = r > 0 && rows[static_cast<std::size_t>(r - 1)].pages == row.pages;
    if (!goes_on) table = pages;
    const std::int64_t used = row.position / sizes_.page_tokens + 1;
    std::copy_n(row.pages, used, At<std::int32_t>(page_tables_) + table);
    pages = std::max(pages, table + used);
    At<std::int32_t>(first_page_)[r] = static_cast<std::int32_t>(table);
  }
  std::fill_n(At<std::int32_t>(logit_rows_) + logits, shape.logits - logits, -1);
  written_ = page_tables_ + pages * std::int64_t{sizeof(std::int32_t)};
  draws_ = 0;
}

std::vector<std::size_t> StepTables::WriteDraws(std::span<const SampleWish> wishes, const float* logits,
                                                std::int64_t stride, const std::byte* block) {
  std::vector<std::size_t> for_host;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const SampleWish& wish = wishes[i];
    if (!DeviceDraws(wish.rule)) {
      for_host.push_back(i);
      continue;
    }
    const std::int64_t banned = banned_ + draws_ * kMostBanned * std::int64_t{sizeof(std::int32_t)};
    std::ranges::copy(wish.rule.banned, At<std::int32_t>(banned));
    At<SampleRow>(sample_rows_)[draws_++] = {.logits = logits + static_cast<std::int64_t>(i) * stride,
                                             .banned = reinterpret_cast<const std::int32_t*>(block + banned),
                                             .banned_count = std::ssize(wish.rule.banned),
                                             .temperature = wish.rule.temperature,
                                             .given = wish.rule.given,
                                             .uniform = UniformAt(wish.seed, wish.position, wish.sample)};
  }
  return for_host;
}

StepTables::View StepTables::In(const std::byte* block) const {
  const auto ints = [&](std::int64_t offset) { return reinterpret_cast<const std::int32_t*>(block + offset); };
  return {.tokens = ints(tokens_),
          .positions = ints(positions_),
          .first_page = ints(first_page_),
          .logit_rows = ints(logit_rows_),
          .page_tables = ints(page_tables_),
          .draws = reinterpret_cast<const SampleRow*>(block + sample_rows_)};
}

}  // namespace bascule
