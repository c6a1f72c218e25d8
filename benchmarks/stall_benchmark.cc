#include <algorithm>
#include <cstring>
#include <thread>

#include "base/worker.h"
#include "benchmarks/bench_model.h"
#include "benchmarks/decode_benchmarks.h"
#include "benchmarks/decode_load.h"
#include "benchmarks/local_engine.h"
#include "benchmarks/measure.h"

namespace bascule {
namespace {

constexpr double kStallLimitUs = 1000;
constexpr int kRequests = 4;
constexpr int kTriesOfFlip = 20;  // a flip that meets no running request stalls nothing, and does not count
constexpr Duration kPatience = std::chrono::minutes(2);

int AllThreads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// Stalls of `flips` flips, each of a version published while requests decode.
Result<std::vector<double>> StallsUs(LocalEngine& engine, int flips) {
  const DecodeLoad load(engine.decode(), kRequests);
  std::vector<double> stalls;
  for (int round = 0; std::cmp_less(stalls.size(), flips); ++round) {
    if (round == kTriesOfFlip * flips) return Status::Internal("nothing_decodes", "flips meet no running request");
    ASSIGN_OR_RETURN(const PublishReport report, engine.trainer().PublishAndReport());
    RETURN_IF_ERROR(load.status());
    const FlipReport& flip = report.replicas[0].flip;
    if (flip.kv.recomputed > 0) stalls.push_back(flip.flip_stall_us);
  }
  return stalls;
}

Result<double> ShadowP99Us(std::int64_t model_bytes, int flips) {
  ASSIGN_OR_RETURN(const auto engine, LocalEngine::Create(ModelOfAbout(model_bytes), {.threads = AllThreads()}));
  ASSIGN_OR_RETURN(std::vector<double> stalls, StallsUs(*engine, flips));
  return QuantileOf(std::move(stalls), 0.99);
}

// What everyone ships: decoding stops, the weights come, decoding goes on.
Result<double> PauseTransferResumeUs(std::int64_t model_bytes, int rounds) {
  ASSIGN_OR_RETURN(const auto engine,
                   LocalEngine::Create(ModelOfAbout(model_bytes), {.threads = AllThreads(), .pausable = true}));
  const DecodeLoad load(engine->decode(), kRequests);
  std::vector<double> stalls;
  for (int round = 0; std::cmp_less(stalls.size(), rounds); ++round) {
    if (round == kTriesOfFlip * rounds) return Status::Internal("nothing_decodes", "pauses meet no running request");
    ASSIGN_OR_RETURN(const Duration stall, engine->PublishWhilePaused(Deadline::After(Clock::Real(), kPatience)));
    RETURN_IF_ERROR(load.status());
    if (stall > Duration::zero()) stalls.push_back(UsOf(stall));
  }
  return QuantileOf(std::move(stalls), 0.5);
}

// Both memories read and written once, and one read, on two threads: what a flip in place does at the least.
double ExchangeSeconds(std::span<std::byte> a, std::span<std::byte> b) {
  const auto halves = [](std::span<std::byte> all, std::size_t half) {
    return all.subspan(half * (all.size() / 2), all.size() / 2);
  };
  return SecondsOf([&] {
    std::vector<Worker> workers;
    for (const std::size_t half : {0, 1}) {
      workers.emplace_back("exchange", [&, half](std::stop_token) {
        std::memcpy(halves(a, half).data(), halves(b, half).data(), halves(a, half).size());
        std::memcpy(halves(b, half).data(), halves(a, half).data(), halves(a, half).size());
        ReadMemory(halves(a, half));
      });
    }
  });
}

Result<BenchmarkRow> InPlaceRow(std::int64_t model_bytes, int flips) {
  ASSIGN_OR_RETURN(const auto engine, LocalEngine::Create(ModelOfAbout(model_bytes),
                                                          {.threads = AllThreads(), .flip = FlipMode::kInPlace}));
  ASSIGN_OR_RETURN(std::vector<double> stalls, StallsUs(*engine, flips));
  const std::size_t bytes = engine->trainer().weights().size();
  ASSIGN_OR_RETURN(const auto a, NoiseBuffer(bytes));
  ASSIGN_OR_RETURN(const auto b, NoiseBuffer(bytes));
  std::vector<double> limits;
  for (int round = 0; round < flips; ++round) limits.push_back(ExchangeSeconds(a->bytes(), b->bytes()) * 1e3);
  return BenchmarkRow{fmt::format("stall_in_place_{:.1f}GB", static_cast<double>(model_bytes) / 1e9),
                      QuantileOf(std::move(stalls), 0.5) / 1e3, "ms", QuantileOf(std::move(limits), 0.5),
                      "the same bytes copied there and back, and read, two threads"};
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunStallBenchmark(const BenchmarkScale& scale) {
  std::vector<BenchmarkRow> rows;
  double large_p99_us = 0;
  for (const std::int64_t model_bytes : {scale.model_bytes / 12, scale.model_bytes}) {
    ASSIGN_OR_RETURN(large_p99_us, ShadowP99Us(model_bytes, scale.flips));
    rows.push_back({fmt::format("stall_shadow_{:.1f}GB", static_cast<double>(model_bytes) / 1e9), large_p99_us, "us",
                    kStallLimitUs, "p99 that is promised, whatever the model's size"});
  }
  ASSIGN_OR_RETURN(const double paused_us,
                   PauseTransferResumeUs(scale.model_bytes, std::min(scale.flips, scale.rounds)));
  rows.push_back({"stall_pause_transfer_resume", paused_us, "us", large_p99_us,
                  "p99 of stall_shadow of the same model, which everyone's way should be compared with"});
  return rows;
}

Result<std::vector<BenchmarkRow>> RunInPlaceBenchmark(const BenchmarkScale& scale) {
  std::vector<BenchmarkRow> rows;
  for (const std::int64_t model_bytes : {scale.model_bytes / 12, scale.model_bytes}) {
    ASSIGN_OR_RETURN(BenchmarkRow row, InPlaceRow(model_bytes, std::min(scale.flips, scale.rounds)));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bascule
