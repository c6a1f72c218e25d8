// Reads boxes of files ahead of who wants them: one chunk after another, a bounded number of them at once, on threads
// of its own or by the kernel's.
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

// How a reader goes ahead: so many requests in flight, each on a thread of its own, and so many chunks read and not yet
// wanted, views apart that somebody holds on to. A chunk has so many bytes, or is one box where that is larger, and the
// gaps that are read along.
//
// Without requests whoever wants a chunk reads it then, into memory that is still in that core's cache when it is used;
// the next `waiting` chunks are announced to the kernel, and rows of a box are given out after each `part_bytes`, if
// that is not 0 (BoxReader::NextByRows). A read that is under way does not end with a stop then.
struct ReadAhead {
  int requests = 1;
  int waiting = 2;
  std::int64_t chunk_bytes = 4 << 20;
  std::int64_t part_bytes = 0;
};

// Borrows `files` and `counts`. Logs progress with rate and time left when reading takes long.
std::unique_ptr<BoxReader> ReadFiles(std::vector<const ByteFile*> files, std::vector<FileBox> boxes, ReadAhead ahead,
                                     const ReadOptions& options, ReadCounts& counts);

}  // namespace bascule
