#include <algorithm>
#include <array>
#include <atomic>

#include "base/worker.h"
#include "device/host/host_memory.h"
#include "engine_side/slot_work.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

// Decode goes on meanwhile: two threads saturate much of a memory bus already.
constexpr int kDigestThreads = 2;
constexpr std::int64_t kAloneBelow = 1 << 20;  // bytes that are digested before a thread has started

constexpr std::array<std::byte, 8> kZeroElement{};

std::int64_t BytesOf(const SlotBox& box) { return box.shape.Elements() * box.item_bytes; }

TensorDigest DigestOf(const SlotSource& source) {
  const SlotBox& box = source.box;
  return DigestBoxOnHost(box.key, box.shape, box.item_bytes, source.tensor, box.place, box.logical);
}

class HostWork final : public SlotWork {
 public:
  DeviceMemory& memory(int) override { return HostMemory(); }
  bool OnHost() const override { return true; }

  Result<std::vector<TensorDigest>> PlaceAndDigest(std::span<const Placement> boxes, FrameMemory from) override {
    CHECK(from == FrameMemory::kHost);
    std::vector<TensorDigest> digests;
    digests.reserve(boxes.size());
    for (const auto& [to, view] : boxes) {
      digests.push_back(CopyAndDigestBoxOnHost(to.box.key, to.box.shape, to.box.item_bytes, view.base, view.place,
                                               to.tensor, to.box.place, to.box.logical));
    }
    return digests;
  }

  Result<std::vector<TensorDigest>> Digest(std::span<const SlotSource> boxes) override {
    std::vector<TensorDigest> digests(boxes.size());
    std::atomic<std::size_t> next{0};
    const auto digest_boxes = [&](std::stop_token) {
      for (std::size_t i = next++; i < boxes.size(); i = next++) digests[i] = DigestOf(boxes[i]);
    };
    std::int64_t bytes = 0;
    for (const SlotSource& source : boxes) bytes += BytesOf(source.box);
    if (boxes.size() < 2 || bytes < kAloneBelow) {
      digest_boxes({});
    } else {
      std::vector<Worker> workers;
      for (int i = 0; i < kDigestThreads; ++i) workers.emplace_back("live_digest", digest_boxes);
    }
    return digests;
  }

  Status Zero(std::span<const SlotTarget> boxes) override {
    for (const auto& [box, tensor] : boxes) {
      FillBoxOnHost(box.shape, std::span(kZeroElement).first(static_cast<std::size_t>(box.item_bytes)), tensor,
                    box.place);
    }
    return OkStatus();
  }

  Status Read(std::span<const SlotSource> boxes, std::span<std::byte> to) override {
    for (const auto& [box, tensor] : boxes) {
      CopyBoxOnHost(box.shape, box.item_bytes, tensor, box.place, to.data(), CompactPlace(box.shape));
      to = to.subspan(static_cast<std::size_t>(BytesOf(box)));
    }
    return OkStatus();
  }

  Result<BlockExchange> MakeExchange(std::span<const std::vector<BlockExchange::Pair>> memory) override {
    return BlockExchange(memory, HostBlockCopier());
  }

  Status GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) override {
    return receiver.Acknowledge(frame, ack);
  }
  Status Settle() override { return OkStatus(); }
};

}  // namespace

SlotWork& HostSlotWork() {
  static HostWork work;
  return work;
}

}  // namespace bascule
