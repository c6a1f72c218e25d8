#include "trainer_side/device_copy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 256;

// The tensors of one rank, dense, and where each lies from the first on.
struct DenseRank {
  RankLayout layout;
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
};

DenseRank DenseOf(const RankLayout& rank) {
  DenseRank dense{.layout = rank};
  for (LocalTensor& tensor : dense.layout.tensors) {
    tensor.stride = {};
    dense.offsets.push_back(dense.bytes);
    dense.bytes = RoundUp(dense.bytes + tensor.Bytes(), kTensorAlignment);
  }
  return dense;
}

SourceBox WholeOf(const WeightSource& source, int rank, std::size_t tensor) {
  const LocalTensor& held = source.layout().ranks[static_cast<std::size_t>(rank)].tensors[tensor];
  const Box whole = Box::Whole(held.shape);
  return {.base = source.Base(rank, static_cast<int>(tensor)),
          .item_bytes = ItemBytes(held.dtype),
          .shape = ShapeOf(whole),
          .place = held.stride.empty() ? PlaceIn(whole, held.shape) : PlaceInStrided(whole, held.stride)};
}

// Copies tensors one after another through pinned memory.
class Carrier {
 public:
  Carrier(WeightDevice& device, Deadline deadline) : device_(device), deadline_(deadline) {}
  ~Carrier() {
    if (bench_ != nullptr) static_cast<void>(device_.GiveBack(std::move(bench_)));
  }

  Status Carry(const SourceBox& box, const BoxView& from, std::byte* to) {
    if (bench_ == nullptr) {
      ASSIGN_OR_RETURN(bench_, device_.TakeBench());
    }
    const auto bytes = static_cast<std::size_t>(box.shape.Elements() * box.item_bytes);
    ASSIGN_OR_RETURN(const std::span<std::byte> pinned, bench_->payload.Take(device_.device().pinned_memory(), bytes));
    CopyBoxOnHost(box.shape, box.item_bytes, from.base, from.place, pinned.data(), CompactPlace(box.shape));
    RETURN_IF_ERROR(bench_->stream->Copy({to, bytes}, pinned));
    RETURN_IF_ERROR(bench_->stream->Record(*bench_->done));
    return AwaitEvent(*bench_->done, deadline_, device_.clock());
  }

 private:
  WeightDevice& device_;
  const Deadline deadline_;
  std::unique_ptr<DeviceBench> bench_;
};

Status CopyRank(const WeightSource& source, int rank, const DenseRank& dense, std::byte* to, Carrier& carrier) {
  std::vector<std::size_t> filled;
  std::vector<SourceBox> boxes;
  for (std::size_t t = 0; t < dense.offsets.size(); ++t) {
    if (dense.layout.tensors[t].Bytes() == 0) continue;
    filled.push_back(t);
    boxes.push_back(WholeOf(source, rank, t));
  }
  const std::unique_ptr<BoxReader> reader = source.Read(boxes);
  for (std::size_t i = 0; i < filled.size(); ++i) {
    ASSIGN_OR_RETURN(const BoxView view, reader->Next());
    RETURN_IF_ERROR(carrier.Carry(boxes[i], view, to + dense.offsets[filled[i]]));
  }
  return OkStatus();
}

}  // namespace

Result<TensorSource> CopyToDevice(const WeightSource& source, std::shared_ptr<WeightDevice> device, Deadline deadline) {
  const Layout& layout = source.layout();
  TensorSource copy(static_cast<int>(layout.ranks.size()), layout.tensors);
  Carrier carrier(*device, deadline);
  for (std::size_t rank = 0; rank < layout.ranks.size(); ++rank) {
    if (!source.Holds(static_cast<int>(rank))) continue;
    const DenseRank dense = DenseOf(layout.ranks[rank]);
    ASSIGN_OR_RETURN(
        std::shared_ptr<DeviceBuffer> memory,
        device->device().memory().Allocate(static_cast<std::size_t>(std::max(dense.bytes, kTensorAlignment))));
    std::byte* const base = memory->bytes().data();
    RETURN_IF_ERROR(CopyRank(source, static_cast<int>(rank), dense, base, carrier));
    std::vector<const void*> addresses;
    for (const std::int64_t offset : dense.offsets) addresses.push_back(base + offset);
    RETURN_IF_ERROR(copy.AddRank(static_cast<int>(rank), dense.layout, addresses));
    copy.Keep(std::move(memory));
  }
  copy.LieOn(std::move(device));
  return copy;
}

}  // namespace bascule
