#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "benchmarks/benchmark.h"
#include "benchmarks/measure.h"

namespace bascule {
namespace {

TEST(BenchmarksTest, AnUnknownNameIsNotFoundAndTheKnownNamesAreSaid) {
  int rows = 0;

  const Status status = RunBenchmarks("nonsense", BenchmarkScale(), [&](const BenchmarkRow&) { ++rows; });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.reason(), "no_such_benchmark");
  for (const Benchmark& benchmark : AllBenchmarks()) {
    EXPECT_NE(status.message().find(benchmark.name), std::string::npos) << status.message();
  }
  EXPECT_EQ(rows, 0);
}

TEST(BenchmarksTest, NoTwoBenchmarksShareAName) {
  std::set<std::string_view> names;
  for (const Benchmark& benchmark : AllBenchmarks()) EXPECT_TRUE(names.insert(benchmark.name).second) << benchmark.name;
}

TEST(BenchmarksTest, ContendersTakeTurnsAndTheFirstTurnIsNotCounted) {
  std::string turns;
  const std::function<void()> contenders[] = {[&] { turns += 'a'; }, [&] { turns += 'b'; }};

  const std::vector<double> seconds = MedianSeconds(contenders, 3);

  EXPECT_EQ(turns, "abababab");
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_GE(seconds[0], 0.0);
}

TEST(BenchmarksTest, EveryKernelRowIsARateBesideALimitThatSaysWhatItIs) {
  constexpr BenchmarkScale kSmall{.bytes = std::size_t{8} << 20, .rounds = 1};
  std::set<std::string> rows;

  for (const char* name : {"memory", "digest", "pack", "unpack"}) {
    const Status status = RunBenchmarks(name, kSmall, [&](const BenchmarkRow& row) {
      rows.insert(row.name);
      EXPECT_GT(row.value, 0.0) << row.name;
      EXPECT_EQ(row.unit.substr(0, 4), "GB/s") << row.name;
      EXPECT_FALSE(row.limit_what.empty()) << row.name;
      EXPECT_DOUBLE_EQ(row.ratio(), row.value / row.limit) << row.name;
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  EXPECT_EQ(rows, (std::set<std::string>{"memory_read", "memcpy", "digest", "pack_digest", "pack_f32_to_bf16_digest",
                                         "unpack_digest", "unpack_then_digest"}));
}

TEST(BenchmarksTest, ATransportRowIsARateBesideALimit) {
  constexpr BenchmarkScale kSmall{.bytes = std::size_t{8} << 20, .rounds = 1};
  int transports = 0;
  for (const Benchmark& benchmark : AllBenchmarks()) {
    if (benchmark.name != "shm" && benchmark.name != "grpc") continue;
    ++transports;
    const Status status = RunBenchmarks(benchmark.name, kSmall, [&](const BenchmarkRow& row) {
      EXPECT_EQ(row.name, std::string(benchmark.name) + "_transport");
      EXPECT_GT(row.value, 0.0);
      EXPECT_GT(row.limit, 0.0);
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_GE(transports, 1);
}

}  // namespace
}  // namespace bascule
