#include "kernels/attention.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention_device.h"
#include "tests/unit/device_kernels/random_floats.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

// A cache of pages in random order and the problems over it. Pointers are into memory that begins at the bases.
struct Cache {
  Cache(Random& random, std::int64_t head_size_, std::int64_t page_tokens_, std::int64_t longest)
      : head_size(head_size_), page_tokens(page_tokens_) {
    const std::int64_t count = (longest + page_tokens - 1) / page_tokens;
    pages.resize(static_cast<std::size_t>(count));
    std::iota(pages.begin(), pages.end(), 1);
    std::shuffle(pages.begin(), pages.end(), random);
    // What no position has been stored in is garbage that must not matter.
    pool.assign(static_cast<std::size_t>((count + 2) * page_floats()), std::nanf(""));
  }
  std::int64_t keys_floats() const { return page_tokens * head_size; }
  std::int64_t page_floats() const { return 5 + keys_floats() + page_tokens * PaddedHead(head_size); }
  KvHeadView View(float* pool_base, const std::int32_t* pages_base) const {
    return {.pool = pool_base,
            .pages = pages_base,
            .page_floats = page_floats(),
            .page_tokens = page_tokens,
            .key_offset = 5,
            .value_offset = 5 + keys_floats(),
            .head_size = head_size};
  }

  std::int64_t head_size, page_tokens;
  std::vector<std::int32_t> pages;
  std::vector<float> pool;
};

class DeviceAttentionTest : public DeviceKernelTest {};

TEST_F(DeviceAttentionTest, StoresAndAttendsWithTheHostsBits) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SetSeed(seed);
    const std::int64_t head_size = seed % 3 == 0 ? 64 : Uniform(random, 1, 70);
    const std::int64_t longest = seed % 8 == 0 ? 700 : Uniform(random, 1, 90);
    const std::int64_t heads = Uniform(random, 1, 9);
    Cache cache(random, head_size, 16 * Uniform(random, 1, 3), longest);
    const auto floats = [&](std::int64_t count) { return RandomFloats(random, static_cast<std::size_t>(count)); };
    const std::vector<float> keys = floats(longest * head_size), values = floats(longest * head_size);
    const std::vector<float> queries = floats(heads * head_size);
    const auto pool = UploadItems<float>(cache.pool), keys_memory = UploadItems<float>(keys);
    const auto values_memory = UploadItems<float>(values), queries_memory = UploadItems<float>(queries);
    const auto pages = UploadItems<std::int32_t>(cache.pages);
    const KvHeadView on_host = cache.View(cache.pool.data(), cache.pages.data());
    const KvHeadView on_device =
        cache.View(reinterpret_cast<float*>(pool->data()), reinterpret_cast<const std::int32_t*>(pages->data()));
    std::vector<KvStore> stores;
    for (std::int64_t p = 0; p < longest; ++p) {
      StoreKvOnHost(on_host, p, keys.data() + p * head_size, values.data() + p * head_size);
      stores.push_back({on_device, p, reinterpret_cast<const float*>(keys_memory->data()) + p * head_size,
                        reinterpret_cast<const float*>(values_memory->data()) + p * head_size});
    }
    const auto stores_memory = UploadItems<KvStore>(stores);
    Run(kernels().store_kv, reinterpret_cast<const KvStore*>(stores_memory->data()), longest);
    ASSERT_EQ(Bits(DownloadItems<float>(*pool)), Bits(cache.pool));

    std::vector<AttentionProblem> problems;
    std::vector<float> expected(static_cast<std::size_t>(3 * heads * head_size));
    const auto out = UploadItems<float>(expected);
    const auto scratch =
        UploadItems<float>(std::vector<float>(static_cast<std::size_t>(3 * AttentionScratch(longest))));
    std::vector<float> host_scratch(static_cast<std::size_t>(AttentionScratch(longest)) + 16);
    void* aligned = host_scratch.data();
    std::size_t space = host_scratch.size() * sizeof(float);
    std::align(64, 64, aligned, space);
    for (std::int64_t i = 0; i < 3; ++i) {
      AttentionProblem problem{.cache = on_host,
                               .positions = i == 0 ? longest : Uniform(random, 1, longest),
                               .heads = heads,
                               .query = queries.data(),
                               .scale = 0.125f,
                               .out = expected.data() + i * heads * head_size,
                               .scratch = static_cast<float*>(aligned)};
      AttentionOnHost(problem);
      problem.cache = on_device;
      problem.query = reinterpret_cast<const float*>(queries_memory->data());
      problem.out = reinterpret_cast<float*>(out->data()) + i * heads * head_size;
      problem.scratch = reinterpret_cast<float*>(scratch->data()) + i * AttentionScratch(longest);
      problems.push_back(problem);
    }
    const auto problems_memory = UploadItems<AttentionProblem>(problems);

    Run(kernels().attention, reinterpret_cast<const AttentionProblem*>(problems_memory->data()), 3);

    ASSERT_EQ(Bits(DownloadItems<float>(*out)), Bits(expected));
  }
}

// Three requests of several rows each in one pool, with a row left out between them.
TEST_F(DeviceAttentionTest, TheRowsOfAStepStoreAndAttendWithTheHostsBitsAndARowWithoutAPositionDoesNothing) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SetSeed(seed);
    const std::int64_t head_size = Uniform(random, 1, 40), kv_heads = Uniform(random, 1, 3), heads = 2;
    const std::int64_t page_tokens = 16 * Uniform(random, 1, 2), longest = 40;
    const std::int64_t head_floats = page_tokens * (head_size + PaddedHead(head_size));
    const std::int64_t page_floats = kv_heads * head_floats, row_floats = (2 + heads) * kv_heads * head_size;
    std::vector<std::int32_t> tables, first_page, positions;
    for (std::int32_t request = 0; request < 3; ++request) {
      const auto begin = static_cast<std::int32_t>(tables.size());
      for (std::int32_t page = 0; page * page_tokens < longest; ++page) tables.push_back(3 * page + request);
      for (std::int32_t p = 0; p < 4 + 9 * request; ++p) first_page.push_back(begin), positions.push_back(p);
      first_page.push_back(begin), positions.push_back(-1);
    }
    const auto rows = std::ssize(positions);
    std::vector<float> pool(static_cast<std::size_t>((std::ssize(tables) + 3) * page_floats), std::nanf(""));
    const std::vector<float> x = RandomFloats(random, static_cast<std::size_t>(rows * row_floats));
    const auto pool_there = UploadItems<float>(pool), x_there = UploadItems<float>(x);
    const auto tables_there = UploadItems<std::int32_t>(tables), first_there = UploadItems<std::int32_t>(first_page);
    const auto positions_there = UploadItems<std::int32_t>(positions);
    PagedRows cache{.pool = reinterpret_cast<float*>(pool_there->data()),
                    .page_floats = page_floats,
                    .page_tokens = page_tokens,
                    .key_offset = 0,
                    .value_offset = page_tokens * head_size,
                    .head_floats = head_floats,
                    .head_size = head_size,
                    .kv_heads = kv_heads,
                    .page_tables = reinterpret_cast<const std::int32_t*>(tables_there->data()),
                    .first_page = reinterpret_cast<const std::int32_t*>(first_there->data()),
                    .positions = reinterpret_cast<const std::int32_t*>(positions_there->data())};
    const auto host_head = [&](std::int64_t row, std::int64_t kv_head) {
      return KvHeadView{.pool = pool.data(),
                        .pages = tables.data() + first_page[static_cast<std::size_t>(row)],
                        .page_floats = page_floats,
                        .page_tokens = page_tokens,
                        .key_offset = kv_head * head_floats,
                        .value_offset = kv_head * head_floats + page_tokens * head_size,
                        .head_size = head_size};
    };
    const std::int64_t query_floats = kv_heads * heads * head_size;
    std::vector<float> expected = RandomFloats(random, static_cast<std::size_t>(rows * query_floats));
    const auto out = UploadItems<float>(expected);
    const std::int64_t scratch_floats = AttentionScratch(longest);
    const auto scratch =
        UploadItems<float>(std::vector<float>(static_cast<std::size_t>(rows * kv_heads * scratch_floats)));
    std::vector<float> host_scratch(static_cast<std::size_t>(scratch_floats));
    const auto each = [&](const auto& work) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t position = positions[static_cast<std::size_t>(row)];
        for (std::int64_t head = 0; position >= 0 && head < kv_heads; ++head) work(row, head, position);
      }
    };
    each([&](std::int64_t row, std::int64_t head, std::int64_t position) {
      const float* const key = x.data() + row * row_floats + query_floats + head * head_size;
      StoreKvOnHost(host_head(row, head), position, key, key + kv_heads * head_size);
    });
    each([&](std::int64_t row, std::int64_t head, std::int64_t position) {
      AttentionOnHost({.cache = host_head(row, head),
                       .positions = position + 1,
                       .heads = heads,
                       .query = x.data() + row * row_floats + head * heads * head_size,
                       .scale = 0.125f,
                       .out = expected.data() + row * query_floats + head * heads * head_size,
                       .scratch = host_scratch.data()},
                      Isa::kScalar);
    });
    const float* const x_base = reinterpret_cast<const float*>(x_there->data());

    Run(kernels().store_kv_rows, cache, x_base + query_floats, x_base + query_floats + kv_heads * head_size, row_floats,
        rows);
    const AttentionRows attention{.cache = cache,
                                  .heads = heads,
                                  .query = x_base,
                                  .query_stride = row_floats,
                                  .scale = 0.125f,
                                  .out = reinterpret_cast<float*>(out->data()),
                                  .out_stride = query_floats,
                                  .scratch = reinterpret_cast<float*>(scratch->data()),
                                  .scratch_floats = scratch_floats};
    const std::int64_t half = rows * kv_heads / 2;
    Run(kernels().attention_rows, attention, std::int64_t{0}, half);
    Run(kernels().attention_rows, attention, half, rows * kv_heads - half);

    ASSERT_EQ(Bits(DownloadItems<float>(*pool_there)), Bits(pool));
    ASSERT_EQ(Bits(DownloadItems<float>(*out)), Bits(expected));
  }
}

}  // namespace
}  // namespace bascule
