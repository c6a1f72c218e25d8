// Which byte ranges of which files a run of boxes needs, and where each box lies once they are read.
//
// Boxes that touch in the file are read as one range, whatever their order; bytes that no box needs are not read, but
// for gaps that a file's alignment covers anyway. A box whose bytes lie in one range stays where it is read; one of
// scattered rows is gathered to a dense one.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bridge/send/box_reader.h"

namespace bascule {

// The bytes of a box in its file, by the offset of the element that its place counts from.
struct FileBox {
  int file = 0;
  std::int64_t base_offset = 0;
  int item_bytes = 0;
  BoxShape shape;
  BoxPlace place;
  std::int64_t Bytes() const { return shape.Elements() * item_bytes; }
};

// A contiguous range of a file and its place in the chunk's memory.
struct FileRange {
  int file = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::int64_t memory_offset = 0;
};

// A copy within the chunk's memory.
struct Gather {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t bytes = 0;
};

struct ChunkBox {
  std::int64_t memory_offset = 0;  // of the element that `place` counts from; outside the memory where that is not read
  BoxPlace place;
};

struct ReadChunk {
  std::vector<FileRange> ranges;
  std::vector<Gather> gathers;  // after the ranges are read
  std::vector<ChunkBox> boxes;  // as given
  std::int64_t memory_bytes = 0;
};

// `alignment` of every file. With one above 1, ranges nearer to each other than 64 KiB are one: another request would
// cost more than the bytes between them.
ReadChunk PlanChunk(std::span<const FileBox> boxes, std::span<const std::int64_t> alignment);

}  // namespace bascule
