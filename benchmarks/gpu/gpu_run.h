// One run of the GPU benchmarks: the device, how much is moved, how time is taken, and where rows go.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/box_moves.h"
#include "kernels/device_kernels.h"

namespace bascule {

// How much is moved and how often. What is not given follows from the memory of the device.
struct GpuScale {
  std::int64_t kernel_bytes = 0;  // of each memory that a kernel reads or writes
  std::int64_t model_bytes = 0;   // of one version
  int rounds = 5;
  int flips = 200;
  bool dry = false;             // rows say so
  double round_seconds = 0.05;  // that a kernel is repeated for, so that starting and noticing it do not count

  static GpuScale For(const DeviceDescription& device);
  static GpuScale Dry();  // everything once, and small: says nothing about any device
};

// A table of boxes in memory of the device.
struct DeviceTable {
  std::unique_ptr<DeviceBuffer> memory;
  std::int64_t entries = 0;
  std::int64_t tiles = 0;
  MoveBatch Batch(const std::byte* source, std::byte* target, TensorDigest* digests = nullptr) const;
};

class GpuRun {
 public:
  static Result<std::unique_ptr<GpuRun>> Open(const GpuScale* scale);  // null: For the device

  Device& device() const { return device_; }
  const DeviceKernels& kernels() const { return kernels_; }
  DeviceStream& stream() const { return *stream_; }
  const GpuScale& scale() const { return scale_; }

  Result<std::unique_ptr<DeviceBuffer>> Allocate(std::int64_t bytes) const;
  // Finite numbers of any float format; and bf16 numbers of either sign from 2^-7 to 2^-6, as weights are.
  Result<std::unique_ptr<DeviceBuffer>> Noise(std::int64_t bytes) const;
  Result<std::unique_ptr<DeviceBuffer>> SmallNumbers(std::int64_t bytes) const;
  Result<DeviceTable> Upload(const BoxMoveTable& table) const;
  Status CopyIn(std::span<std::byte> to, std::span<const std::byte> from) const;

  // Waits until everything on the stream is done, without giving the core away: for times of microseconds.
  Status Await() const;
  // Median over the rounds of the seconds that one `enqueue` takes the device.
  Result<double> SecondsOf(const std::function<Status()>& enqueue) const;
  // Bytes read and written in a second by a copy of the device; taken once.
  Result<double> CopyBandwidth();

  // One line of JSON, as `bascule bench --json` prints them.
  void Row(const std::string& name, double value, const std::string& unit, double limit,
           const std::string& limit_what) const;
  // Of a kernel that reads and writes so many bytes, beside a copy.
  Status KernelRow(const std::string& name, double bytes, const std::function<Status()>& enqueue);

 private:
  GpuRun(Device& device, const DeviceKernels& kernels, const GpuScale& scale)
      : device_(device), kernels_(kernels), scale_(scale) {}
  // Random words, of which `keep` says which bits stay and `set` which are ones.
  Result<std::unique_ptr<DeviceBuffer>> Random(std::int64_t bytes, std::uint64_t keep, std::uint64_t set) const;

  Device& device_;
  const DeviceKernels& kernels_;
  const GpuScale scale_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> done_;
  double copy_bandwidth_ = 0;
};

// The p-quantile of at least one value.
double Quantile(std::vector<double> values, double p);

}  // namespace bascule
