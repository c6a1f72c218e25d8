#include "engine_side/decode/peer_sum.h"

#include "engine_side/decode/device_arena.h"

namespace bascule {
namespace {

constexpr std::int64_t kBlockFloats = 1024;  // that one thread block adds

Status AddFloats(const DeviceKernels& kernels, const float* x, std::int64_t count, float* y, StreamHandle stream) {
  const auto add = [&](std::int64_t first, std::int64_t rows, std::int64_t size) {
    const WeightView summand{reinterpret_cast<const std::byte*>(x + first), WeightType::kF32};
    return kernels.add(summand, size, rows, size, y + first, stream);
  };
  const std::int64_t whole = count / kBlockFloats * kBlockFloats;
  RETURN_IF_ERROR(add(0, whole / kBlockFloats, kBlockFloats));
  return add(whole, count > whole ? 1 : 0, count - whole);
}

}  // namespace

Result<std::unique_ptr<PeerSum>> PeerSum::Create(std::span<Device* const> devices, const DeviceKernels& kernels,
                                                 std::int64_t most) {
  std::unique_ptr<PeerSum> sum(new PeerSum(kernels, most));
  for (Device* const device : devices) {
    Rank& rank = sum->ranks_.emplace_back();
    ASSIGN_OR_RETURN(rank.gathered,
                     device->memory().Allocate(devices.size() * static_cast<std::size_t>(most) * sizeof(float)));
    ASSIGN_OR_RETURN(rank.made, device->MakeEvent());
    ASSIGN_OR_RETURN(rank.taken, device->MakeEvent());
  }
  return sum;
}

Status PeerSum::AllReduceSum(std::span<const CollectivePart> parts, std::int64_t count) {
  CHECK(parts.size() == ranks_.size() && count <= most_);
  for (std::size_t r = 0; r < parts.size(); ++r) RETURN_IF_ERROR(parts[r].stream->Record(*ranks_[r].made));
  for (std::size_t r = 0; r < parts.size(); ++r) {
    for (std::size_t other = 0; other < parts.size(); ++other) {
      if (other != r) RETURN_IF_ERROR(parts[r].stream->WaitFor(*ranks_[other].made));
      RETURN_IF_ERROR(
          parts[r].stream->Copy(BytesAt(Gathered(ranks_[r], other), count), BytesAt(parts[other].data, count)));
    }
    RETURN_IF_ERROR(parts[r].stream->Record(*ranks_[r].taken));
  }
  for (std::size_t r = 0; r < parts.size(); ++r) {
    DeviceStream& stream = *parts[r].stream;
    // Nobody reads this rank's part any more when the sum goes there.
    for (std::size_t other = 0; other < parts.size(); ++other) {
      if (other != r) RETURN_IF_ERROR(stream.WaitFor(*ranks_[other].taken));
    }
    RETURN_IF_ERROR(stream.Copy(BytesAt(parts[r].data, count), BytesAt(Gathered(ranks_[r], 0), count)));
    for (std::size_t other = 1; other < parts.size(); ++other) {
      RETURN_IF_ERROR(AddFloats(kernels_, Gathered(ranks_[r], other), count, parts[r].data, stream.handle()));
    }
  }
  return OkStatus();
}

}  // namespace bascule
