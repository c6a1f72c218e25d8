// Reading parts of a source's tensors in an order that is known beforehand, so that a source on disk can read ahead
// with few large requests, and one in memory gives its own addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bridge/bucket/box_view.h"
#include "kernels/box.h"

namespace bascule {

// A box of a local tensor whose element 0 is at `base`. The address names the place: only what BoxReader gives may be
// read.
struct SourceBox {
  const std::byte* base = nullptr;
  int item_bytes = 0;
  BoxShape shape;
  BoxPlace place;
};

// Thread-safety: confined to one thread.
class BoxReader {
 public:
  virtual ~BoxReader() = default;
  // The next box, of those and in the order that the reader was made for. It may be read until the next call, or for as
  // long as its `memory` is held.
  //
  // Memory has no failure. A source on disk: Unavailable "read_failed"; DataLoss "file_truncated" | "file_changed";
  // DeadlineExceeded "read_stalled": with file and offset. Later calls fail the same.
  virtual Result<BoxView> Next() = 0;
  // As Next, for one who goes over the box's rows (of its outermost dimension) in order: `ready(box, rows)` says
  // meanwhile, perhaps never, that the first `rows` may be read already, which then are in this core's cache still.
  using RowsReady = std::function<void(const BoxView& box, std::int64_t rows)>;
  virtual Result<BoxView> NextByRows(const RowsReady& /*ready*/) { return Next(); }
  // Every view brings its memory along.
  virtual bool GivesMemory() const { return false; }
};

// Of boxes that lie in memory.
std::unique_ptr<BoxReader> ReadMemory(std::vector<SourceBox> boxes);

}  // namespace bascule
