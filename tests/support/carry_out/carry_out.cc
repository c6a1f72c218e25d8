#include "tests/support/carry_out/carry_out.h"

#include "bridge/manifest/manifest.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

// Padding is zero; all else is 0xee.
std::vector<std::string> NewMemory(const RankLayout& rank) {
  std::vector<std::string> memory;
  for (const LocalTensor& tensor : rank.tensors) memory.emplace_back(static_cast<std::size_t>(tensor.Bytes()), '\xee');
  for (const MapRow& row : rank.rows) {
    if (row.logical != kFill) continue;
    const auto local = static_cast<std::size_t>(row.local);
    const LocalTensor& tensor = rank.tensors[local];
    const std::vector<std::byte> zero(static_cast<std::size_t>(ItemBytes(tensor.dtype)));
    FillBoxOnHost(ShapeOf(row.local_box), zero, reinterpret_cast<std::byte*>(memory[local].data()),
                  PlaceIn(row.local_box, tensor.shape));
  }
  return memory;
}

void CarryOutSlice(const Plan& plan, const Route& route, const Slice& slice, const WeightSource& source,
                   const Layout& engine, CarriedOut& result) {
  const TensorSpec& wire = plan.tensors[static_cast<std::size_t>(slice.tensor)];
  const LocalTensor& from = source.layout()
                                .ranks[static_cast<std::size_t>(route.sender_rank)]
                                .tensors[static_cast<std::size_t>(slice.sender_tensor)];
  const auto engine_rank = static_cast<std::size_t>(route.engine_rank);
  const auto engine_tensor = static_cast<std::size_t>(slice.engine_tensor);
  const LocalTensor& to = engine.ranks[engine_rank].tensors[engine_tensor];
  const DigestKey key = KeyOf(wire);
  const BoxShape shape = ShapeOf(slice.logical_box);
  const BoxPlace logical = PlaceIn(slice.logical_box, wire.shape);
  std::vector<std::byte> payload(static_cast<std::size_t>(slice.logical_box.Elements() * ItemBytes(wire.dtype)));
  const BoxPlace place =
      from.stride.empty() ? PlaceIn(slice.sender_box, from.shape) : PlaceInStrided(slice.sender_box, from.stride);
  const TensorDigest sent =
      PackAndDigestOnHost(key, shape, slice.conversion, ItemBytes(from.dtype),
                          source.Base(route.sender_rank, slice.sender_tensor), place, logical, payload);
  const TensorDigest received =
      UnpackAndDigestOnHost(key, shape, ItemBytes(wire.dtype), payload,
                            reinterpret_cast<std::byte*>(result.memory[engine_rank][engine_tensor].data()),
                            PlaceIn(slice.engine_box, to.shape), logical);
  if (!slice.counts) return;
  result.sent[static_cast<std::size_t>(slice.tensor)] += sent;
  result.received[static_cast<std::size_t>(slice.tensor)] += received;
  result.counted_bytes += std::ssize(payload);
}

}  // namespace

CarriedOut CarryOut(const Plan& plan, const WeightSource& source, const Layout& engine) {
  CarriedOut result;
  result.sent.resize(plan.tensors.size());
  result.received.resize(plan.tensors.size());
  for (const RankLayout& rank : engine.ranks) result.memory.push_back(NewMemory(rank));
  for (const Bucket& bucket : plan.buckets) {
    const Route& route = plan.routes[static_cast<std::size_t>(bucket.route)];
    for (const Slice& slice : bucket.slices) CarryOutSlice(plan, route, slice, source, engine, result);
  }
  return result;
}

}  // namespace bascule
