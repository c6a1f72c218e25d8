#include <algorithm>
#include <tuple>

#include "base/checked_math.h"
#include "checkpoint/read_chunk_internal.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kGapBytesMax = 64 << 10;
constexpr std::int64_t kRangeAlignment = 64;

// A contiguous piece of a box.
struct Run {
  int file = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

// The runs of a box in row-major order, which is the order of its dense copy.
std::vector<Run> RunsOf(const FileBox& box) {
  if (box.Bytes() == 0) return {};
  std::int64_t run_elements = 1;
  auto outer = static_cast<std::size_t>(box.shape.dims);
  while (outer > 0 && box.place.stride[outer - 1] == run_elements) run_elements *= box.shape.count[--outer];
  std::vector<Run> runs;
  std::array<std::int64_t, kMaxDims> index{};
  std::int64_t element = box.place.offset;
  while (true) {
    runs.push_back({box.file, box.base_offset + element * box.item_bytes, run_elements * box.item_bytes});
    std::size_t d = outer;
    while (d > 0 && ++index[d - 1] == box.shape.count[d - 1]) {
      element -= (box.shape.count[d - 1] - 1) * box.place.stride[d - 1];
      index[d - 1] = 0;
      --d;
    }
    if (d == 0) return runs;
    element += box.place.stride[d - 1];
  }
}

// The ranges that hold all `runs`, as few as the gaps allow.
std::vector<FileRange> RangesOf(std::vector<Run> runs, std::span<const std::int64_t> alignment) {
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
  std::vector<FileRange> ranges;
  for (const Run& run : runs) {
    const std::int64_t block = alignment[static_cast<std::size_t>(run.file)];
    const std::int64_t gap = block > 1 ? kGapBytesMax : 0;
    const std::int64_t begin = run.offset / block * block;
    const std::int64_t end = RoundUp(run.offset + run.bytes, block);
    FileRange* last = ranges.empty() || ranges.back().file != run.file ? nullptr : &ranges.back();
    if (last != nullptr && begin <= last->offset + last->bytes + gap) {
      last->bytes = std::max(last->bytes, end - last->offset);
    } else {
      ranges.push_back({run.file, begin, end - begin, 0});
    }
  }
  return ranges;
}

// The range that holds the byte at `offset`.
const FileRange& RangeAt(const std::vector<FileRange>& ranges, int file, std::int64_t offset) {
  const auto behind =
      std::upper_bound(ranges.begin(), ranges.end(), std::tie(file, offset),
                       [](const auto& at, const FileRange& range) { return at < std::tie(range.file, range.offset); });
  return *std::prev(behind);
}

bool LiesInOne(const std::vector<Run>& runs, const FileRange& range) {
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
    return run.offset >= range.offset && run.offset + run.bytes <= range.offset + range.bytes;
  });
}

void AddBox(const FileBox& box, const std::vector<Run>& runs, ReadChunk& chunk) {
  if (runs.empty()) {
    chunk.boxes.push_back({0, CompactPlace(box.shape)});
    return;
  }
  const FileRange& first = RangeAt(chunk.ranges, box.file, runs.front().offset);
  if (LiesInOne(runs, first)) {
    chunk.boxes.push_back({first.memory_offset + box.base_offset - first.offset, box.place});
    return;
  }
  const std::int64_t dense = RoundUp(chunk.memory_bytes, kRangeAlignment);
  chunk.memory_bytes = dense;
  for (const Run& run : runs) {
    const FileRange& range = RangeAt(chunk.ranges, run.file, run.offset);
    chunk.gathers.push_back({range.memory_offset + run.offset - range.offset, chunk.memory_bytes, run.bytes});
    chunk.memory_bytes += run.bytes;
  }
  chunk.boxes.push_back({dense, CompactPlace(box.shape)});
}

}  // namespace

ReadChunk PlanChunk(std::span<const FileBox> boxes, std::span<const std::int64_t> alignment) {
  std::vector<std::vector<Run>> runs;
  std::vector<Run> all;
  for (const FileBox& box : boxes) {
    runs.push_back(RunsOf(box));
    all.insert(all.end(), runs.back().begin(), runs.back().end());
  }
  ReadChunk chunk;
  chunk.ranges = RangesOf(std::move(all), alignment);
  for (FileRange& range : chunk.ranges) {
    const std::int64_t block = alignment[static_cast<std::size_t>(range.file)];
    range.memory_offset = RoundUp(chunk.memory_bytes, std::max(block, kRangeAlignment));
    chunk.memory_bytes = range.memory_offset + range.bytes;
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) AddBox(boxes[i], runs[i], chunk);
  return chunk;
}

}  // namespace bascule
