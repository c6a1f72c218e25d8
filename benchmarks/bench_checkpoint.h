// A model's checkpoint in a folder of its own, on a disk rather than in memory where there is one; and the plainest
// ways to read it, the limits of whatever has to.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "model/model_config.h"

namespace bascule {

class BenchCheckpoint {
 public:
  // ResourceExhausted "device_memory"; as WriteSafetensors
  static Result<BenchCheckpoint> Write(const ModelConfig& config, const std::string& scratch);

  const std::string& path() const { return path_; }
  std::size_t bytes() const { return bytes_; }

  void DropFromCache() const;

  // All of it, with nothing done to what is read: past the page cache, with several requests in flight; from it into
  // `target`; and from it a piece at a time into memory that stays in the cache, two threads.
  Status ReadDirect() const;
  Status ReadCached(std::span<std::byte> target) const;
  Status ReadCachedInPieces() const;
  // The same pieces into the new file `copy`, which lies on the disk then.
  Status CopyTo(const std::string& copy) const;

 private:
  BenchCheckpoint(std::string path, std::size_t bytes) : path_(std::move(path)), bytes_(bytes) {}
  // A piece of the file and its offset. False: it failed.
  using TakePiece = std::function<bool(std::span<const std::byte> piece, std::int64_t offset)>;
  // Opened with `flags` besides, on `threads` threads.
  Status ReadPieces(int flags, int threads, std::size_t piece_bytes, const TakePiece& take) const;

  std::string path_;
  std::size_t bytes_ = 0;
};

}  // namespace bascule
