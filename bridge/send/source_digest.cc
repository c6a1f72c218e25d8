#include "bridge/send/source_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
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

// Digests buckets of a plan from the source's memory; several threads may share one.
class PlanDigester {
 public:
  PlanDigester(const Plan& plan, const WeightSource& source) : plan_(plan), source_(source) {
    for (const TensorSpec& tensor : plan.tensors) keys_.push_back(KeyOf(tensor));
  }

  // Takes buckets until none is left; returns the sums per tensor.
  std::vector<TensorDigest> TakeBuckets() {
    std::vector<TensorDigest> totals(plan_.tensors.size());
    std::vector<std::byte> scratch;
    for (std::size_t b = next_++; b < plan_.buckets.size(); b = next_++) {
      const Route& route = plan_.routes[static_cast<std::size_t>(plan_.buckets[b].route)];
      for (const Slice& slice : plan_.buckets[b].slices) {
        totals[static_cast<std::size_t>(slice.tensor)] += DigestOf(slice, route.sender_rank, scratch);
      }
    }
    return totals;
  }

 private:
  TensorDigest DigestOf(const Slice& slice, std::int32_t sender_rank, std::vector<std::byte>& scratch) const {
    const auto t = static_cast<std::size_t>(slice.tensor);
    const LocalTensor& held = source_.layout()
                                  .ranks[static_cast<std::size_t>(sender_rank)]
                                  .tensors[static_cast<std::size_t>(slice.sender_tensor)];
    const Dims stride = held.stride.empty() ? RowMajorStride(held.shape) : held.stride;
    const BoxShape shape = ShapeOf(slice.sender_box);
    const BoxPlace memory = PlaceInStrided(slice.sender_box, stride);
    const BoxPlace logical = PlaceIn(slice.logical_box, plan_.tensors[t].shape);
    const std::byte* base = source_.Base(sender_rank, slice.sender_tensor);
    const int item_bytes = ItemBytes(held.dtype);
    if (slice.conversion == Conversion::kNone) {
      return DigestBoxOnHost(keys_[t], shape, item_bytes, base, memory, logical);
    }
    scratch.resize(static_cast<std::size_t>(slice.payload_bytes));
    return PackAndDigestOnHost(keys_[t], shape, slice.conversion, item_bytes, base, memory, logical, scratch);
  }

  const Plan& plan_;
  const WeightSource& source_;
  std::vector<DigestKey> keys_;
  std::atomic<std::size_t> next_ = 0;
};

}  // namespace

Result<std::vector<TensorDigest>> DigestSource(const WeightSource& source, const std::vector<TensorSpec>& wire_tensors,
                                               int threads) {
  // Blocks that stay in a core's cache while they are converted, and that many threads can share out.
  constexpr std::int64_t kBlockBytes = 1 << 18;
  ASSIGN_OR_RETURN(const Plan plan, PlanToWhole(source.layout(), wire_tensors, kBlockBytes));
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  PlanDigester digester(plan, source);
  std::vector<std::vector<TensorDigest>> parts(static_cast<std::size_t>(threads));
  {
    std::vector<Worker> workers;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      workers.emplace_back(fmt::format("digest-{}", i), [&, i](std::stop_token) { parts[i] = digester.TakeBuckets(); });
    }
    parts[0] = digester.TakeBuckets();
  }
  std::vector<TensorDigest> digests = std::move(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    for (std::size_t t = 0; t < digests.size(); ++t) digests[t] += parts[i][t];
  }
  return digests;
}

}  // namespace bascule
