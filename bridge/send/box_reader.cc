#include "bridge/send/box_reader.h"

#include <utility>

namespace bascule {
namespace {

class MemoryReader final : public BoxReader {
 public:
  explicit MemoryReader(std::vector<SourceBox> boxes) : boxes_(std::move(boxes)) {}

  Result<BoxView> Next() override {
    CHECK(next_ < boxes_.size());
    const SourceBox& box = boxes_[next_++];
    return BoxView{box.base, box.place, nullptr};
  }

 private:
  const std::vector<SourceBox> boxes_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<BoxReader> ReadMemory(std::vector<SourceBox> boxes) {
  return std::make_unique<MemoryReader>(std::move(boxes));
}

}  // namespace bascule
