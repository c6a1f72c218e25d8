#include "benchmarks/bench_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

#include "base/worker.h"
#include "benchmarks/bench_model.h"
#include "checkpoint/safetensors.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::size_t kDirectBytes = 4 << 20;  // of a request
constexpr int kDirectRequests = 4;
constexpr std::size_t kPieceBytes = 1 << 20;  // stays in a core's cache
constexpr int kPieceThreads = 2;

// Memory that O_DIRECT takes.
struct Deleter {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  static constexpr std::align_val_t kAlignment{4096};
};
std::unique_ptr<std::byte[], Deleter> AlignedBlock(std::size_t bytes) {
  return std::unique_ptr<std::byte[], Deleter>(static_cast<std::byte*>(::operator new(bytes, Deleter::kAlignment)));
}

}  // namespace

Result<BenchCheckpoint> BenchCheckpoint::Write(const ModelConfig& config, const std::string& scratch) {
  const std::vector<TensorSpec> tensors = LogicalTensors(config, DType::kBf16);
  ASSIGN_OR_RETURN(const auto weights, RandomBf16Weights(tensors));
  std::vector<std::span<const std::byte>> data;
  std::size_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    data.push_back(weights->bytes().subspan(at, static_cast<std::size_t>(tensor.Bytes())));
    at += data.back().size();
  }
  BenchCheckpoint checkpoint(scratch + "/model.safetensors", at);
  RETURN_IF_ERROR(WriteSafetensors(checkpoint.path(), tensors, data, {}));
  return checkpoint;
}

void BenchCheckpoint::DropFromCache() const {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

Status BenchCheckpoint::ReadDirect() const {
  return ReadPieces(O_DIRECT, kDirectRequests, kDirectBytes, [](auto, auto) { return true; });
}

Status BenchCheckpoint::ReadCachedInPieces() const {
  return ReadPieces(0, kPieceThreads, kPieceBytes, [](auto, auto) { return true; });
}

Status BenchCheckpoint::CopyTo(const std::string& copy) const {
  const int fd = open(copy.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  Status status = ReadPieces(0, kPieceThreads, kPieceBytes, [&](std::span<const std::byte> piece, std::int64_t offset) {
    return pwrite(fd, piece.data(), piece.size(), offset) == std::ssize(piece);
  });
  if (fsync(fd) != 0 && status.ok()) status = Status::Unavailable("write_failed", copy);
  close(fd);
  return status;
}

Status BenchCheckpoint::ReadPieces(int flags, int threads, std::size_t piece_bytes, const TakePiece& take) const {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) return Status::FailedPrecondition("direct_unsupported", path_);
  std::atomic<std::int64_t> next = 0;
  std::atomic<bool> failed = false;
  {
    std::vector<Worker> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back("pieces", [&](std::stop_token) {
        const auto piece = AlignedBlock(piece_bytes);
        while (!failed) {
          const std::int64_t at = next.fetch_add(static_cast<std::int64_t>(piece_bytes));
          const ssize_t got = pread(fd, piece.get(), piece_bytes, at);
          if (got == 0) return;
          if (got < 0 || !take({piece.get(), static_cast<std::size_t>(got)}, at)) failed = true;
        }
      });
    }
  }
  close(fd);
  return failed ? Status::Unavailable("read_failed", path_) : OkStatus();
}

Status BenchCheckpoint::ReadCached(std::span<std::byte> target) const {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  std::int64_t at = 0;
  while (!target.empty()) {
    const ssize_t got = pread(fd, target.data(), std::min(target.size(), kDirectBytes), at);
    if (got <= 0) break;
    at += got;
    target = target.subspan(static_cast<std::size_t>(got));
  }
  close(fd);
  return target.empty() ? OkStatus() : Status::Unavailable("read_failed", path_);
}

}  // namespace bascule
