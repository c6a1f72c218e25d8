#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/bench_model.h"
#include "benchmarks/benchmark.h"
#include "benchmarks/local_engine.h"
#include "benchmarks/measure.h"
#include "benchmarks/peer_process.h"
#include "benchmarks/row_message.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

const BenchmarkScale kSmall{
    .bytes = std::size_t{8} << 20, .model_bytes = 2'000'000, .flips = 3, .rounds = 1, .replicas = 10};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

std::vector<BenchmarkRow> RowsOf(std::string_view name) {
  std::vector<BenchmarkRow> rows;
  const Status status = RunBenchmarks(name, kSmall, [&](const BenchmarkRow& row) { rows.push_back(row); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return rows;
}

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
  for (const std::string name : {"shm", "grpc"}) {
    const std::vector<BenchmarkRow> rows = RowsOf(name);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].name, name + "_transport");
    EXPECT_GT(rows[0].value, 0.0);
    EXPECT_GT(rows[0].limit, 0.0);
  }
}

TEST(BenchmarksTest, AColdLoadIsARateBesideABareReadOfTheDisk) {
  std::vector<BenchmarkRow> rows;
  const Status status = RunBenchmarks("cold_load", kSmall, [&](const BenchmarkRow& row) { rows.push_back(row); });
  if (status.reason() == "direct_unsupported") GTEST_SKIP() << "/var/tmp is on a file system without O_DIRECT";

  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].unit, "GB/s");
  EXPECT_GT(rows[0].value, 0.0);
}

TEST(BenchmarksTest, AWarmLoadSaysWhatItTakesBesidesTheSlotAndThatEightRanksReadTheFileOnce) {
  const std::vector<BenchmarkRow> rows = RowsOf("warm_load");

  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].name, "warm_load_read");
  EXPECT_EQ(rows[1].name, "warm_load_mmap");
  EXPECT_EQ(rows[3].name, "load_extra_memory");
  EXPECT_EQ(rows[4].name, "load_tp8_bytes_read");
  // Every rank has the norms, which are small, and every other byte is read by one of them.
  EXPECT_GE(rows[4].ratio(), 1.0);
  EXPECT_LT(rows[4].ratio(), 1.02);
}

TEST(BenchmarksTest, AStartFromTheDaemonIsATimeBesideOnesThatCannotBeBeaten) {
  const std::vector<BenchmarkRow> rows = RowsOf("daemon_start");

  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "daemon_start");
  EXPECT_EQ(rows[1].name, "daemon_start_recorded");
  EXPECT_EQ(rows[2].name, "disk_start");
  for (const BenchmarkRow& row : rows) {
    EXPECT_EQ(row.unit, "ms");
    EXPECT_GT(row.value, 0.0);
    EXPECT_GT(row.limit, 0.0);
  }
}

// Folders that this process's benchmarks have now.
std::vector<std::filesystem::path> ScratchFolders() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator("/var/tmp")) {
    if (entry.path().filename().string().starts_with("bascule-bench-" + std::to_string(getpid()) + "-")) {
      folders.push_back(entry.path());
    }
  }
  return folders;
}

TEST(BenchmarksTest, DigestsAndShardsOfFilesStandBesideTheirReadAndTheirCopy) {
  const std::vector<BenchmarkRow> rows = RowsOf("files");

  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "files_digest");
  EXPECT_EQ(rows[1].name, "files_digest_artifact");
  EXPECT_EQ(rows[2].name, "files_shard_tp2");
  for (const BenchmarkRow& row : rows) {
    EXPECT_EQ(row.unit, "GB/s");
    EXPECT_GT(row.value, 0.0) << row.name;
    EXPECT_GT(row.limit, 0.0) << row.name;
  }
}

TEST(BenchmarksTest, ABenchmarkThatIsStoppedLeavesNoFiles) {
  const BenchmarkScale kUntilStopped{.model_bytes = 2'000'000, .rounds = 1'000'000};
  std::stop_source stop;
  std::jthread stopper([&] {
    while (ScratchFolders().empty() || !std::filesystem::exists(ScratchFolders().front() / "model.safetensors"))
      continue;
    stop.request_stop();
  });

  const Status status = RunBenchmarks(
      "warm_load", kUntilStopped, [](const BenchmarkRow&) {}, stop.get_token());

  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  stopper.join();
  EXPECT_TRUE(ScratchFolders().empty());
}

TEST(BenchmarksTest, ASyncOverSharedMemoryIsATimeBesideMemcpy) {
  const std::vector<BenchmarkRow> rows = RowsOf("sync_shm");

  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "sync_shm");
  EXPECT_EQ(rows[0].unit, "ms");
  EXPECT_GT(rows[0].value, 0.0);
  EXPECT_GT(rows[0].limit, 0.0);
}

TEST(BenchmarksTest, ASyncOverGrpcIsARateBesideABareStream) {
  const std::vector<BenchmarkRow> rows = RowsOf("sync_grpc");

  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "sync_grpc");
  EXPECT_EQ(rows[0].unit, "GB/s");
  EXPECT_GT(rows[0].value, 0.0);
  EXPECT_GT(rows[0].limit, 0.0);
}

TEST(BenchmarksTest, ASyncIsComparedWithGlooWhereGlooIsInstalled) {
  const std::span<const Benchmark> all = AllBenchmarks();
  if (std::none_of(all.begin(), all.end(), [](const Benchmark& one) { return one.name == "sync_gloo"; })) {
    GTEST_SKIP() << "built without libgloo-dev";
  }

  const std::vector<BenchmarkRow> rows = RowsOf("sync_gloo");

  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "sync_gloo");
  EXPECT_GT(rows[0].value, 0.0);
  EXPECT_GT(rows[0].limit, 0.0);
}

TEST(BenchmarksTest, PlanningIsATimeBesideTheDigestsOfBothLayouts) {
  const std::vector<BenchmarkRow> rows = RowsOf("plan_moe");

  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "plan_moe_1_layers_256x128");
  EXPECT_EQ(rows[0].unit, "s");
  EXPECT_GT(rows[0].value, 0.0);
  EXPECT_GT(rows[0].limit, 0.0);
}

TEST(BenchmarksTest, AFleetCostsTimeAndMemoryBesideAsManyFleetsOfOne) {
  const std::vector<BenchmarkRow> rows = RowsOf("fleet");

  ASSERT_EQ(rows.size(), 6u);
  for (const std::size_t first : {0u, 3u}) {
    const std::string replicas = first == 0 ? "1" : "10";
    EXPECT_EQ(rows[first].name, "fleet_connect_" + replicas);
    EXPECT_EQ(rows[first + 1].name, "fleet_commit_" + replicas);
    EXPECT_EQ(rows[first + 1].unit, "ms");
    EXPECT_GT(rows[first + 1].value, 0.0);
    EXPECT_EQ(rows[first + 2].name, "fleet_rank_memory_" + replicas);
    EXPECT_GT(rows[first + 2].value, rows[first + 2].limit) << "its slots are prefaulted";
  }
}

TEST(BenchmarksTest, DecodingIsTokensASecondBesideWhatMemoryAndRegistersWouldGive) {
  const std::vector<BenchmarkRow> rows = RowsOf("decode");

  std::vector<std::string> names;
  for (const BenchmarkRow& row : rows) {
    names.push_back(row.name);
    EXPECT_EQ(row.unit, "tokens/s") << row.name;
    EXPECT_GT(row.value, 0.0) << row.name;
    EXPECT_GT(row.limit, 0.0) << row.name;
  }
  if (names.size() > 4) {  // where oneDNN is there
    EXPECT_EQ(std::vector(names.begin() + 4, names.end()),
              (std::vector<std::string>{"decode_batch1_fast", "decode_batch4_fast", "decode_batch16_fast",
                                        "prefill_512_fast"}));
    names.resize(4);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"decode_batch1", "decode_batch4", "decode_batch16", "prefill_512"}));
}

std::vector<std::string> NamesOf(const std::vector<BenchmarkRow>& rows) {
  std::vector<std::string> names;
  for (const BenchmarkRow& row : rows) names.push_back(row.name);
  return names;
}

TEST(BenchmarksTest, StallsAreTimedOnASmallModelAndALargeOneAndRecomputationApart) {
  std::vector<BenchmarkRow> rows = RowsOf("stall_shadow");
  // A token gap is there where a request went on after a flip.
  std::erase_if(rows, [](const BenchmarkRow& row) { return row.name == "recompute_token_gap_0.0GB"; });

  const std::vector<std::string> of_a_model = {"stall_shadow_0.0GB", "stall_shadow_0.0GB_p50", "stall_shadow_0.0GB_max",
                                               "recompute_tokens_0.0GB"};
  ASSERT_EQ(rows.size(), 9u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(rows[i].name, of_a_model[i % 4]);
    EXPECT_GT(rows[i].value, 0.0);
    if (i % 4 < 3) {
      EXPECT_EQ(rows[i].unit, "us");
      EXPECT_EQ(rows[i].limit, 1000);
    }
  }
  EXPECT_LE(rows[1].value, rows[0].value);
  EXPECT_LE(rows[0].value, rows[2].value);
  EXPECT_LE(rows[3].ratio(), 1.0);
  EXPECT_EQ(rows[8].name, "stall_pause_transfer_resume");
  EXPECT_GT(rows[8].value, 0.0);
  EXPECT_EQ(rows[8].limit, rows[4].value);
}

TEST(BenchmarksTest, StallsInPlaceStandBesideTheSameBytesCopied) {
  const std::vector<BenchmarkRow> rows = RowsOf("stall_in_place");

  EXPECT_EQ(NamesOf(rows),
            (std::vector<std::string>{"stall_in_place_0.0GB", "stall_in_place_0.0GB_p99", "stall_in_place_0.0GB_max",
                                      "stall_in_place_0.0GB", "stall_in_place_0.0GB_p99", "stall_in_place_0.0GB_max"}));
  for (const BenchmarkRow& row : rows) {
    EXPECT_EQ(row.unit, "ms");
    EXPECT_GT(row.value, 0.0);
    EXPECT_GT(row.limit, 0.0);
  }
}

// Otherwise a flip in place would have nothing to do, and its stall would be that of nothing.
TEST(BenchmarksTest, EveryTensorOfAVersionDiffersFromTheOneBefore) {
  const ModelConfig config = ModelOfAbout(kSmall.model_bytes);
  const auto engine = LocalEngine::Create(config, {.threads = 1, .flip = FlipMode::kInPlace}).value();
  const std::span<const std::byte> weights = engine->trainer().weights();
  ASSERT_TRUE(engine->trainer().Publish().ok());
  const std::vector<std::byte> before(weights.begin(), weights.end());

  ASSERT_TRUE(engine->trainer().Publish().ok());

  std::size_t at = 0;
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) {
    const auto bytes = static_cast<std::size_t>(tensor.Bytes());
    EXPECT_FALSE(std::ranges::equal(weights.subspan(at, bytes), std::span(before).subspan(at, bytes))) << tensor.name;
    at += bytes;
  }
  EXPECT_EQ(at, weights.size());
}

TEST(BenchModelTest, AModelHasAboutTheSizeThatWasAskedFor) {
  for (const std::int64_t wanted : {2'000'000, 100'000'000, 500'000'000, 1'200'000'000}) {
    const ModelConfig config = ModelOfAbout(wanted);
    std::int64_t bytes = 0;

    for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) bytes += tensor.Bytes();

    EXPECT_NEAR(static_cast<double>(bytes) / static_cast<double>(wanted), 1.0, 0.2) << config.Description();
    EXPECT_TRUE(MakeEngineLayout(config, DType::kBf16).ok());
  }
}

TEST(BenchModelTest, EveryRandomWeightIsASmallFiniteNumber) {
  const auto weights = RandomBf16Weights({{"w", DType::kBf16, {64, 64}}});
  ASSERT_TRUE(weights.ok());
  const std::span<const std::byte> bytes = (*weights)->bytes();

  for (std::size_t at = 0; at < bytes.size(); at += 2) {
    const std::uint32_t bits =
        std::to_integer<std::uint32_t>(bytes[at]) << 16 | std::to_integer<std::uint32_t>(bytes[at + 1]) << 24;
    const float magnitude = std::fabs(std::bit_cast<float>(bits));
    ASSERT_TRUE(magnitude >= 1.0f / 128 && magnitude < 1.0f / 64) << magnitude;
  }
}

TEST(BenchmarksTest, AStopEndsARunningBenchmark) {
  std::stop_source stop;
  stop.request_stop();

  const Status status = RunBenchmarks(
      "memory", kSmall, [](const BenchmarkRow&) {}, stop.get_token());

  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST(BenchmarksTest, AQuantileIsTheSmallestValueThatSoManyDoNotExceed) {
  EXPECT_EQ(QuantileOf({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(QuantileOf({4, 3, 2, 1}, 0.5), 2);
  EXPECT_EQ(QuantileOf({5}, 0.99), 5);
  std::vector<double> hundred(100);
  std::iota(hundred.begin(), hundred.end(), 1.0);
  EXPECT_EQ(QuantileOf(hundred, 0.99), 99);
  EXPECT_EQ(QuantileOf(hundred, 1), 100);
}

TEST(PeerProcessTest, MessagesGoBothWaysAndAnErrorOfTheBodyArrivesWhole) {
  const auto process = PeerProcess::Start([](PeerLink& link) -> Status {
    ASSIGN_OR_RETURN(const std::string question, link.Receive(Soon()));
    RETURN_IF_ERROR(link.Send(question + "!"));
    return Status::DataLoss("wrong_bytes", "at 7");
  });
  ASSERT_TRUE(process.ok());
  PeerLink& link = (*process)->link();

  ASSERT_TRUE(link.Send("well").ok());

  EXPECT_EQ(*link.Receive(Soon()), "well!");
  EXPECT_EQ(link.Receive(Soon()).status(), Status::DataLoss("wrong_bytes", "at 7"));
  EXPECT_EQ(link.Receive(Soon()).status().reason(), "peer_lost");
}

TEST(PeerProcessTest, AProcessThatWaitsForTheEndGoesWhenItsOwnerDoes) {
  auto process = PeerProcess::Start([](PeerLink& link) {
    link.AwaitEnd();
    return OkStatus();
  });
  ASSERT_TRUE(process.ok());

  process->reset();

  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST(RowMessageTest, ARowComesBackAsItWas) {
  const BenchmarkRow row{"sync_shm", 1.0 / 3, "GB/s", 1e-300, "memcpy, of \"the\" same bytes"};

  const BenchmarkRow back = DecodeRow(EncodeRow(row));

  EXPECT_EQ(back.name, row.name);
  EXPECT_EQ(back.value, row.value);
  EXPECT_EQ(back.unit, row.unit);
  EXPECT_EQ(back.limit, row.limit);
  EXPECT_EQ(back.limit_what, row.limit_what);
}

TEST(BenchmarksTest, AReshardSendsEveryByteOnceAndNeedsNoShareTwice) {
  const std::vector<BenchmarkRow> rows = RowsOf("reshard_shm");

  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].name, "reshard_shm");
  EXPECT_GT(rows[0].value, 0.0);
  EXPECT_GT(rows[0].limit, 0.0);
  EXPECT_EQ(rows[1].name, "reshard_bytes_sent");
  EXPECT_GE(rows[1].ratio(), 1.0);
  EXPECT_LT(rows[1].ratio(), 1.01);
  EXPECT_EQ(rows[2].name, "reshard_extra_frames");
  EXPECT_GT(rows[2].value, 0.0);
  EXPECT_LT(rows[2].ratio(), 1.05);
  EXPECT_EQ(rows[5].name, "reshard_extra_later");
}

TEST(BenchmarksTest, AGatherHoldsAFewTensorsAndNotTheModel) {
  const std::vector<BenchmarkRow> rows = RowsOf("gather_shm");

  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "gather_shm");
  EXPECT_GT(rows[0].value, 0.0);
  EXPECT_GT(rows[0].limit, 0.0);
  EXPECT_EQ(rows[1].name, "gather_windows");
  EXPECT_GT(rows[1].value, 0.0);
  EXPECT_EQ(rows[2].name, "gather_extra_later");
}

}  // namespace
}  // namespace bascule
