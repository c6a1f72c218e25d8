#include "benchmarks/gpu/gpu_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "device/backend.h"

namespace bascule {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;  // of random bytes, repeated
constexpr Duration kPatience = std::chrono::seconds(60);

double SecondsSince(TimePoint began) { return std::chrono::duration<double>(Clock::Real().Now() - began).count(); }

}  // namespace

GpuScale GpuScale::For(const DeviceDescription& device) {
  constexpr std::int64_t kRow = 1 << 20;
  GpuScale scale;
  scale.kernel_bytes = std::min(std::int64_t{4} << 30, device.memory_bytes / 16) / kRow * kRow;
  scale.model_bytes = std::min(std::int64_t{16'000'000'000}, device.memory_bytes / 8) / kRow * kRow;
  return scale;
}

GpuScale GpuScale::Dry() {
  return {
      .kernel_bytes = 128 << 10, .model_bytes = 128 << 10, .rounds = 1, .flips = 1, .dry = true, .round_seconds = 0};
}

MoveBatch DeviceTable::Batch(const std::byte* source, std::byte* target, TensorDigest* digests) const {
  return {.entries = reinterpret_cast<const MoveEntry*>(memory->bytes().data()),
          .entry_count = entries,
          .tiles = tiles,
          .source_base = reinterpret_cast<std::uint64_t>(source),
          .target_base = reinterpret_cast<std::uint64_t>(target),
          .digests = digests};
}

Result<std::unique_ptr<GpuRun>> GpuRun::Open(const GpuScale* scale) {
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  ASSIGN_OR_RETURN(Device* const device, backend->Open(0));
  ASSIGN_OR_RETURN(const DeviceKernels* const kernels, LoadDeviceKernels());
  std::unique_ptr<GpuRun> run(
      new GpuRun(*device, *kernels, scale == nullptr ? GpuScale::For(device->description()) : *scale));
  ASSIGN_OR_RETURN(run->stream_, device->MakeStream(StreamPriority::kNormal));
  ASSIGN_OR_RETURN(run->done_, device->MakeEvent());
  return run;
}

Result<std::unique_ptr<DeviceBuffer>> GpuRun::Allocate(std::int64_t bytes) const {
  return device_.memory().Allocate(static_cast<std::size_t>(bytes));
}

// The exponent's upper bits are never all ones.
Result<std::unique_ptr<DeviceBuffer>> GpuRun::Noise(std::int64_t bytes) const {
  return Random(bytes, 0xbfffbfffbfffbfffULL, 0);
}

Result<std::unique_ptr<DeviceBuffer>> GpuRun::SmallNumbers(std::int64_t bytes) const {
  return Random(bytes, 0x807f807f807f807fULL, 0x3c003c003c003c00ULL);
}

Result<std::unique_ptr<DeviceBuffer>> GpuRun::Random(std::int64_t bytes, std::uint64_t keep, std::uint64_t set) const {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> noise, Allocate(bytes));
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> piece(static_cast<std::size_t>(std::min(bytes, kPieceBytes)) / 8);
  for (std::uint64_t& word : piece) word = (random() & keep) | set;
  RETURN_IF_ERROR(CopyIn(noise->bytes().first(piece.size() * 8), std::as_bytes(std::span(piece))));
  for (std::size_t have = piece.size() * 8; have < noise->bytes().size();) {
    const std::size_t more = std::min(have, noise->bytes().size() - have);
    RETURN_IF_ERROR(stream_->Copy(noise->bytes().subspan(have, more), noise->bytes().first(more)));
    have += more;
  }
  RETURN_IF_ERROR(Await());
  return noise;
}

Result<DeviceTable> GpuRun::Upload(const BoxMoveTable& table) const {
  DeviceTable uploaded{.entries = static_cast<std::int64_t>(table.entries().size()), .tiles = table.tiles()};
  ASSIGN_OR_RETURN(uploaded.memory, Allocate(static_cast<std::int64_t>(table.entries().size_bytes())));
  RETURN_IF_ERROR(CopyIn(uploaded.memory->bytes(), std::as_bytes(table.entries())));
  return uploaded;
}

Status GpuRun::CopyIn(std::span<std::byte> to, std::span<const std::byte> from) const {
  ASSIGN_OR_RETURN(const auto pinned, device_.pinned_memory().Allocate(from.size()));
  std::memcpy(pinned->bytes().data(), from.data(), from.size());
  RETURN_IF_ERROR(stream_->Copy(to, pinned->bytes()));
  return Await();
}

Status GpuRun::Await() const {
  RETURN_IF_ERROR(stream_->Record(*done_));
  const Deadline deadline = Deadline::After(Clock::Real(), kPatience);
  while (true) {
    ASSIGN_OR_RETURN(const bool passed, done_->Passed());
    if (passed) return OkStatus();
    if (deadline.Passed(Clock::Real())) return Status::DeadlineExceeded("device_deadline");
  }
}

Result<double> GpuRun::SecondsOf(const std::function<Status()>& enqueue) const {
  const auto timed = [&](int times) -> Result<double> {
    const TimePoint began = Clock::Real().Now();
    for (int i = 0; i < times; ++i) RETURN_IF_ERROR(enqueue());
    RETURN_IF_ERROR(Await());
    return SecondsSince(began);
  };
  RETURN_IF_ERROR(timed(1).status());  // the first one also loads the kernel
  ASSIGN_OR_RETURN(const double once, timed(1));
  const int times = std::clamp(static_cast<int>(scale_.round_seconds / once), 1, 2000);
  std::vector<double> seconds;
  for (int round = 0; round < scale_.rounds; ++round) {
    ASSIGN_OR_RETURN(const double all, timed(times));
    seconds.push_back(all / times);
  }
  return Quantile(seconds, 0.5);
}

Result<double> GpuRun::CopyBandwidth() {
  if (copy_bandwidth_ > 0) return copy_bandwidth_;
  ASSIGN_OR_RETURN(const auto from, Noise(scale_.kernel_bytes));
  ASSIGN_OR_RETURN(const auto to, Allocate(scale_.kernel_bytes));
  ASSIGN_OR_RETURN(const double seconds, SecondsOf([&] { return stream_->Copy(to->bytes(), from->bytes()); }));
  copy_bandwidth_ = 2 * static_cast<double>(scale_.kernel_bytes) / seconds;
  return copy_bandwidth_;
}

void GpuRun::Row(const std::string& name, double value, const std::string& unit, double limit,
                 const std::string& limit_what) const {
  fmt::print(R"({{"name":"{}","value":{:.6g},"unit":"{}","limit":{:.6g},"limit_what":"{}","ratio":{:.4g},"dry":{}}})"
             "\n",
             name, value, unit, limit, limit_what, value / limit, scale_.dry);
  std::fflush(stdout);
}

Status GpuRun::KernelRow(const std::string& name, double bytes, const std::function<Status()>& enqueue) {
  ASSIGN_OR_RETURN(const double bandwidth, CopyBandwidth());
  ASSIGN_OR_RETURN(const double seconds, SecondsOf(enqueue));
  Row(name, bytes / seconds / 1e9, "GB/s", bandwidth / 1e9, "device copy, bytes read and written");
  return OkStatus();
}

double Quantile(std::vector<double> values, double p) {
  const auto rank = static_cast<std::size_t>(std::max(1.0, std::ceil(p * static_cast<double>(values.size()))));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank - 1), values.end());
  return values[rank - 1];
}

}  // namespace bascule
