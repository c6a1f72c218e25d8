#include "trainer_side/gather/gathered_source.h"

#include <utility>

namespace bascule {
namespace {

// One box, of a tensor of the gatherer's plan.
struct PlannedBox {
  std::int32_t tensor = 0;
  BoxPlace place;
};

class WindowReader final : public BoxReader {
 public:
  WindowReader(TensorGatherer& gatherer, std::vector<PlannedBox> boxes, std::stop_token stop)
      : gatherer_(gatherer), boxes_(std::move(boxes)), stop_(std::move(stop)) {}

  Result<BoxView> Next() override {
    CHECK(next_ < boxes_.size());
    const PlannedBox& box = boxes_[next_++];
    const std::int32_t window = gatherer_.plan().WindowOf(box.tensor);
    if (window_ == nullptr || window_->window() != window) {
      window_.reset();
      ASSIGN_OR_RETURN(window_, gatherer_.Take(window, stop_));
    }
    return BoxView{window_->Tensor(box.tensor), box.place};
  }

 private:
  TensorGatherer& gatherer_;
  const std::vector<PlannedBox> boxes_;
  const std::stop_token stop_;
  std::size_t next_ = 0;
  std::shared_ptr<const FullWindow> window_;  // shared with readers that keep step
};

}  // namespace

GatheredSource::GatheredSource(TensorGatherer& gatherer, Layout full)
    : gatherer_(gatherer), layout_(std::move(full)), names_(layout_.tensors.size()) {
  const Plan& plan = gatherer.plan().plan();
  for (std::size_t t = 0; t < layout_.tensors.size(); ++t) {
    planned_.push_back(gatherer.plan().Find(layout_.tensors[t].name).value_or(-1));
    if (planned_.back() < 0) continue;
    layout_.tensors[t].dtype = plan.tensors[static_cast<std::size_t>(planned_.back())].dtype;
    layout_.ranks[0].tensors[t].dtype = layout_.tensors[t].dtype;
  }
}

const std::byte* GatheredSource::Base(int /*sender_rank*/, int tensor) const {
  return &names_[static_cast<std::size_t>(tensor)];
}

std::unique_ptr<BoxReader> GatheredSource::Read(std::vector<SourceBox> boxes) const {
  std::vector<PlannedBox> planned;
  planned.reserve(boxes.size());
  for (const SourceBox& box : boxes) {
    planned.push_back({planned_[static_cast<std::size_t>(box.base - names_.data())], box.place});
  }
  return std::make_unique<WindowReader>(gatherer_, std::move(planned), stop_.get_token());
}

std::optional<TensorDigest> GatheredSource::HoldersDigest(const TensorSpec& tensor) const {
  const std::optional<std::int32_t> planned = gatherer_.plan().Find(tensor.name);
  return planned ? gatherer_.DigestOf(*planned) : std::nullopt;
}

}  // namespace bascule
