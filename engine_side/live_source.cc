#include "engine_side/live_source.h"

#include "engine_side/slot_work.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kGroupBytes = 4 << 20;  // that are read at once, unless one box has more

std::int64_t BytesOf(const SlotSource& source) { return source.box.shape.Elements() * source.box.item_bytes; }

class SlotReader final : public BoxReader {
 public:
  SlotReader(std::vector<SlotSource> boxes, SlotWork& work) : boxes_(std::move(boxes)), work_(work) {}

  Result<BoxView> Next() override {
    CHECK(next_ < boxes_.size());
    if (next_ == group_end_) RETURN_IF_ERROR(ReadGroup());
    const SlotSource& box = boxes_[next_++];
    const BoxView view{bytes_.data() + at_, CompactPlace(box.box.shape), nullptr};
    at_ += BytesOf(box);
    return view;
  }

 private:
  Status ReadGroup() {
    std::int64_t bytes = 0;
    for (group_end_ = next_; group_end_ < boxes_.size(); ++group_end_) {
      const std::int64_t with_this = bytes + BytesOf(boxes_[group_end_]);
      const bool fits = boxes_[group_end_].box.engine_rank == boxes_[next_].box.engine_rank && with_this <= kGroupBytes;
      if (group_end_ > next_ && !fits) break;
      bytes = with_this;
    }
    at_ = 0;
    bytes_.resize(static_cast<std::size_t>(bytes));
    const Status read = work_.Read(std::span(boxes_).subspan(next_, group_end_ - next_), bytes_);
    if (read.ok()) return OkStatus();
    group_end_ = next_;
    return Status::Unavailable("read_failed", read.ToString());
  }

  const std::vector<SlotSource> boxes_;
  SlotWork& work_;
  std::size_t next_ = 0;
  std::size_t group_end_ = 0;
  std::vector<std::byte> bytes_;  // of the boxes up to group_end_, one after another
  std::int64_t at_ = 0;           // where the next one begins
};

}  // namespace

std::unique_ptr<BoxReader> LiveSource::Read(std::vector<SourceBox> boxes) const {
  if (lease_.work().OnHost()) return ReadMemory(std::move(boxes));
  std::vector<SlotSource> sources;
  for (const SourceBox& box : boxes) {
    sources.push_back({{.engine_rank = RankOf(box.base),
                        .shape = box.shape,
                        .item_bytes = box.item_bytes,
                        .place = box.place,
                        .logical = box.place,
                        .key = {}},
                       box.base});
  }
  return std::make_unique<SlotReader>(std::move(sources), lease_.work());
}

// Whose tensor begins there.
int LiveSource::RankOf(const std::byte* base) const {
  for (std::size_t r = 0; r < layout_.ranks.size(); ++r) {
    for (std::size_t t = 0; t < layout_.ranks[r].tensors.size(); ++t) {
      if (Base(static_cast<int>(r), static_cast<int>(t)) == base) return static_cast<int>(r);
    }
  }
  CheckFailed(__FILE__, __LINE__, "a box of a local tensor");
}

}  // namespace bascule
