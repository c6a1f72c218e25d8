#include "bridge/send/device_reader.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kWindowBytes = std::int64_t{8} << 20;
constexpr std::int64_t kBoxAlignment = 16;
constexpr Duration kPatience = std::chrono::seconds(60);

class DeviceReader final : public BoxReader {
 public:
  DeviceReader(std::vector<SourceBox> boxes, WeightDevice& device) : boxes_(std::move(boxes)), device_(device) {}

  Result<BoxView> Next() override {
    CHECK(next_ < boxes_.size());
    RETURN_IF_ERROR(failure_);
    if (next_ == end_) {
      if (const Status fetched = FetchWindow(); !fetched.ok()) {
        failure_ = Status::Unavailable("read_failed", fetched.ToString());
        return failure_;
      }
    }
    const std::size_t at = next_++;
    return BoxView{memory_.bytes().data() + offsets_[at - begin_], CompactPlace(boxes_[at].shape), nullptr};
  }

 private:
  static std::int64_t BytesOf(const SourceBox& box) { return box.shape.Elements() * box.item_bytes; }

  // Copies as many boxes as a window holds, and one at least.
  Status FetchWindow() {
    begin_ = end_;
    offsets_.clear();
    std::int64_t bytes = 0;
    while (end_ < boxes_.size() && (end_ == begin_ || bytes + BytesOf(boxes_[end_]) <= kWindowBytes)) {
      offsets_.push_back(bytes);
      bytes = RoundUp(bytes + BytesOf(boxes_[end_++]), kBoxAlignment);
    }
    ASSIGN_OR_RETURN(const std::span<std::byte> window,
                     memory_.Take(device_.device().pinned_memory(), static_cast<std::size_t>(bytes)));
    BoxMoveTable table;
    for (std::size_t i = begin_; i < end_; ++i) {
      const SourceBox& box = boxes_[i];
      RETURN_IF_ERROR(table.Add({.shape = box.shape,
                                 .item_bytes = box.item_bytes,
                                 .source_bytes = reinterpret_cast<std::int64_t>(box.base),
                                 .source = box.place,
                                 .target_bytes = reinterpret_cast<std::int64_t>(window.data()) + offsets_[i - begin_],
                                 .target = CompactPlace(box.shape),
                                 .logical = CompactPlace(box.shape)}));
    }
    return device_.Move(table, Deadline::After(device_.clock(), kPatience));
  }

  const std::vector<SourceBox> boxes_;
  WeightDevice& device_;
  GrowingBuffer memory_;
  std::vector<std::int64_t> offsets_;  // of the boxes of the window, there
  std::size_t begin_ = 0;              // of the window
  std::size_t end_ = 0;
  std::size_t next_ = 0;
  Status failure_;
};

}  // namespace

std::unique_ptr<BoxReader> ReadDeviceMemory(std::vector<SourceBox> boxes, WeightDevice& device) {
  return std::make_unique<DeviceReader>(std::move(boxes), device);
}

}  // namespace bascule
