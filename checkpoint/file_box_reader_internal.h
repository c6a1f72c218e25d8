// Reads boxes of files ahead of who wants them: one chunk of about 4 MiB after another, a bounded number of them at
// once, on threads of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "bridge/send/box_reader.h"
#include "checkpoint/byte_file_internal.h"
#include "checkpoint/read_chunk_internal.h"
#include "checkpoint/read_strategy.h"

namespace bascule {

// What was read so far, by all readers of a checkpoint. Thread-safety: thread-safe.
struct ReadCounts {
  std::atomic<std::int64_t> logical_bytes = 0;  // that the boxes hold
  std::atomic<std::int64_t> read_bytes = 0;     // asked of the files, whole blocks where they want such
  std::atomic<std::int64_t> calls = 0;
};

inline constexpr std::int64_t kChunkBytes = 4 << 20;

// Memory: kReadAhead chunks with one thread, twice as many with more; each as large as kChunkBytes and one box more,
// with the gaps that are read along.
inline constexpr int kReadAhead = 3;

// Borrows `files` and `counts`. `threads` requests are in flight. Logs progress with rate and time left when reading
// takes long.
std::unique_ptr<BoxReader> ReadFiles(std::vector<const ByteFile*> files, std::vector<FileBox> boxes, int threads,
                                     const ReadOptions& options, ReadCounts& counts);

}  // namespace bascule
