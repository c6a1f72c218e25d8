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

// What flips did to requests that were decoding.
struct Flips {
  std::vector<double> stall_us;
  std::vector<double> recompute_tokens;  // of all requests together
  DecodeLoad::Tokens tokens;
};

// `count` flips, each of a version published while requests decode.
Result<Flips> MeasureFlips(LocalEngine& engine, int count) {
  DecodeLoad load(engine.decode(), kRequests);
  Flips flips;
  for (int round = 0; std::cmp_less(flips.stall_us.size(), count); ++round) {
    if (round == kTriesOfFlip * count) return Status::Internal("nothing_decodes", "flips meet no running request");
    ASSIGN_OR_RETURN(const PublishReport report, engine.trainer().PublishAndReport());
    RETURN_IF_ERROR(load.status());
    const FlipReport& flip = report.replicas[0].flip;
    if (flip.kv.recomputed == 0) continue;
    flips.stall_us.push_back(flip.flip_stall_us);
    flips.recompute_tokens.push_back(static_cast<double>(flip.kv.recompute_tokens));
  }
  flips.tokens = load.Take();
  return flips;
}

std::string SizeName(std::int64_t model_bytes) {
  return fmt::format("{:.1f}GB", static_cast<double>(model_bytes) / 1e9);
}

struct Quantile {
  const char* suffix;  // of its row's name; the one that was promised has none
  double p;
};
constexpr Quantile kOfShadow[] = {{"", 0.99}, {"_p50", 0.5}, {"_max", 1}};
constexpr Quantile kOfInPlace[] = {{"", 0.5}, {"_p99", 0.99}, {"_max", 1}};

// `beside` has the unit and the limit of all of them.
void AddStallRows(const std::string& name, std::span<const Quantile> quantiles, const std::vector<double>& stalls,
                  const BenchmarkRow& beside, std::vector<BenchmarkRow>& rows) {
  for (const Quantile& quantile : quantiles) {
    BenchmarkRow& row = rows.emplace_back(beside);
    row.name = name + quantile.suffix;
    row.value = QuantileOf(stalls, quantile.p);
  }
}

// What a flip costs that is no stall: steps that compute key/value state again.
void AddRecomputeRows(const std::string& size, Flips flips, std::vector<BenchmarkRow>& rows) {
  constexpr double kMostTokens = kRequests * (DecodeLoad::kPromptTokens + DecodeLoad::kNewTokens - 1);
  rows.push_back({"recompute_tokens_" + size, QuantileOf(std::move(flips.recompute_tokens), 0.5), "tokens", kMostTokens,
                  "all that the requests can have"});
  if (flips.tokens.flip_gap_ms.empty()) return;  // every request ended at its flip
  rows.push_back({"recompute_token_gap_" + size, QuantileOf(std::move(flips.tokens.flip_gap_ms), 0.5), "ms",
                  QuantileOf(std::move(flips.tokens.gap_ms), 0.5), "between any two tokens of a request"});
}

Result<Flips> ShadowFlips(std::int64_t model_bytes, int flips) {
  ASSIGN_OR_RETURN(const auto engine, LocalEngine::Create(ModelOfAbout(model_bytes), {.threads = AllThreads()}));
  return MeasureFlips(*engine, flips);
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

Status AddInPlaceRows(std::int64_t model_bytes, int flips, std::vector<BenchmarkRow>& rows) {
  ASSIGN_OR_RETURN(const auto engine, LocalEngine::Create(ModelOfAbout(model_bytes),
                                                          {.threads = AllThreads(), .flip = FlipMode::kInPlace}));
  ASSIGN_OR_RETURN(Flips measured, MeasureFlips(*engine, flips));
  for (double& stall : measured.stall_us) stall /= 1e3;
  const std::size_t bytes = engine->trainer().weights().size();
  ASSIGN_OR_RETURN(const auto a, NoiseBuffer(bytes));
  ASSIGN_OR_RETURN(const auto b, NoiseBuffer(bytes));
  std::vector<double> limits;
  for (int round = 0; round < flips; ++round) limits.push_back(ExchangeSeconds(a->bytes(), b->bytes()) * 1e3);
  AddStallRows("stall_in_place_" + SizeName(model_bytes), kOfInPlace, measured.stall_us,
               {.unit = "ms",
                .limit = QuantileOf(std::move(limits), 0.5),
                .limit_what = "the same bytes copied there and back, and read, two threads"},
               rows);
  return OkStatus();
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunStallBenchmark(const BenchmarkScale& scale) {
  std::vector<BenchmarkRow> rows;
  double large_p99_us = 0;
  for (const std::int64_t model_bytes : {scale.model_bytes / 12, scale.model_bytes}) {
    ASSIGN_OR_RETURN(Flips flips, ShadowFlips(model_bytes, scale.flips));
    large_p99_us = QuantileOf(flips.stall_us, 0.99);
    AddStallRows(
        "stall_shadow_" + SizeName(model_bytes), kOfShadow, flips.stall_us,
        {.unit = "us", .limit = kStallLimitUs, .limit_what = "p99 that is promised, whatever the model's size"}, rows);
    AddRecomputeRows(SizeName(model_bytes), std::move(flips), rows);
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
    RETURN_IF_ERROR(AddInPlaceRows(model_bytes, std::min(scale.flips, scale.rounds), rows));
  }
  return rows;
}

}  // namespace bascule
