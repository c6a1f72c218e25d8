#include "bridge/send/source_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <unordered_set>

#include "base/worker.h"
#include "bridge/manifest/manifest.h"
#include "bridge/plan/planner.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

// An engine that stores the wire tensors whole: a plan to it names every element once, wherever the source has it.
Result<Plan> PlanToWhole(const Layout& source, const std::vector<TensorSpec>& wire_tensors, std::int64_t block_bytes) {
  std::unordered_set<std::string_view> wanted;
  for (const TensorSpec& tensor : wire_tensors) wanted.insert(tensor.name);
  PlanOptions options{.bucket_bytes = block_bytes, .ignore = {}};
  for (const TensorSpec& tensor : source.tensors) {
    if (!wanted.contains(tensor.name)) options.ignore.push_back(tensor.name);
  }
  return MakePlan(source, PlainLayout(wire_tensors), options);
}

// Digests buckets of a plan from a source: each thread its own share, read in the plan's order.
class PlanDigester {
 public:
  PlanDigester(const Plan& plan, const WeightSource& source) : plan_(plan), source_(source) {
    for (const TensorSpec& tensor : plan.tensors) keys_.push_back(KeyOf(tensor));
  }

  // Adds the digests of share number `share` of `shares` to `totals`, one per plan tensor.
  Status DigestShare(std::size_t share, std::size_t shares, std::vector<TensorDigest>& totals) const {
    const std::vector<Part> parts = PartsOf(share, shares);
    std::vector<SourceBox> boxes;
    for (const Part& part : parts) boxes.push_back(BoxOf(part));
    const std::unique_ptr<BoxReader> reader = source_.Read(boxes);
    std::vector<std::byte> scratch;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSIGN_OR_RETURN(const BoxView view, reader->Next());
      totals[static_cast<std::size_t>(parts[i].slice->tensor)] += DigestOf(*parts[i].slice, boxes[i], view, scratch);
    }
    return OkStatus();
  }

 private:
  struct Part {
    const Slice* slice = nullptr;
    std::int32_t sender_rank = 0;
  };

  // Runs of neighbouring buckets in turn, so that every share is read in long stretches.
  std::vector<Part> PartsOf(std::size_t share, std::size_t shares) const {
    constexpr std::size_t kRunBuckets = 32;
    std::vector<Part> parts;
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
      if (b / kRunBuckets % shares != share) continue;
      const Route& route = plan_.routes[static_cast<std::size_t>(plan_.buckets[b].route)];
      for (const Slice& slice : plan_.buckets[b].slices) parts.push_back({&slice, route.sender_rank});
    }
    return parts;
  }

  SourceBox BoxOf(const Part& part) const {
    const Slice& slice = *part.slice;
    const LocalTensor& held = source_.layout()
                                  .ranks[static_cast<std::size_t>(part.sender_rank)]
                                  .tensors[static_cast<std::size_t>(slice.sender_tensor)];
    const Dims stride = held.stride.empty() ? RowMajorStride(held.shape) : held.stride;
    return {.base = source_.Base(part.sender_rank, slice.sender_tensor),
            .item_bytes = ItemBytes(held.dtype),
            .shape = ShapeOf(slice.sender_box),
            .place = PlaceInStrided(slice.sender_box, stride)};
  }

  TensorDigest DigestOf(const Slice& slice, const SourceBox& box, const BoxView& view,
                        std::vector<std::byte>& scratch) const {
    const auto t = static_cast<std::size_t>(slice.tensor);
    const BoxPlace logical = PlaceIn(slice.logical_box, plan_.tensors[t].shape);
    if (slice.conversion == Conversion::kNone) {
      return DigestBoxOnHost(keys_[t], box.shape, box.item_bytes, view.base, view.place, logical);
    }
    scratch.resize(static_cast<std::size_t>(slice.payload_bytes));
    return PackAndDigestOnHost(keys_[t], box.shape, slice.conversion, box.item_bytes, view.base, view.place, logical,
                               scratch);
  }

  const Plan& plan_;
  const WeightSource& source_;
  std::vector<DigestKey> keys_;
};

}  // namespace

Result<std::vector<TensorDigest>> DigestSource(const WeightSource& source, const std::vector<TensorSpec>& wire_tensors,
                                               int threads) {
  // Blocks that stay in a core's cache while they are converted, and that many threads can share out.
  constexpr std::int64_t kBlockBytes = 1 << 18;
  ASSIGN_OR_RETURN(const Plan plan, PlanToWhole(source.layout(), wire_tensors, kBlockBytes));
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const PlanDigester digester(plan, source);
  const auto shares = static_cast<std::size_t>(threads);
  std::vector<std::vector<TensorDigest>> parts(shares, std::vector<TensorDigest>(plan.tensors.size()));
  std::vector<Status> ends(shares);
  {
    std::vector<Worker> workers;
    for (std::size_t i = 1; i < shares; ++i) {
      workers.emplace_back(fmt::format("digest-{}", i),
                           [&, i](std::stop_token) { ends[i] = digester.DigestShare(i, shares, parts[i]); });
    }
    ends[0] = digester.DigestShare(0, shares, parts[0]);
  }
  for (const Status& end : ends) RETURN_IF_ERROR(end);
  std::vector<TensorDigest> digests = std::move(parts[0]);
  for (std::size_t i = 1; i < shares; ++i) {
    for (std::size_t t = 0; t < digests.size(); ++t) digests[t] += parts[i][t];
  }
  return digests;
}

}  // namespace bascule
