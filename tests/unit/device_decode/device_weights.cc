#include "tests/unit/device_decode/device_weights.h"

#include <algorithm>
#include <string>

#include "base/status.h"
#include "tests/support/device_work/device_work.h"

namespace bascule {
namespace {

constexpr std::size_t kBoundary = 64;

std::size_t Room(std::size_t bytes) { return (bytes + kBoundary - 1) / kBoundary * kBoundary; }

}  // namespace

DeviceWeights::DeviceWeights(const FusedModel& model, std::uint64_t number, std::span<Device* const> devices)
    : devices_(devices.begin(), devices.end()) {
  for (std::size_t rank = 0; rank < model.bytes.size(); ++rank) {
    std::size_t size = 0;
    for (const auto& tensor : model.bytes[rank]) size += Room(tensor.size());
    memory_.push_back(devices_[rank]->memory().Allocate(size).value());
    std::span<std::byte> rest = memory_.back()->bytes();
    tensors_.emplace_back();
    for (const auto& tensor : model.bytes[rank]) {
      tensors_.back().push_back(rest.first(tensor.size()));
      rest = rest.subspan(Room(tensor.size()));
    }
  }
  Write(model, number);
}

void DeviceWeights::Write(const FusedModel& model, std::uint64_t number) {
  for (std::size_t rank = 0; rank < model.bytes.size(); ++rank) {
    std::vector<std::byte> whole(memory_[rank]->bytes().size());
    for (std::size_t t = 0; t < model.bytes[rank].size(); ++t) {
      std::ranges::copy(model.bytes[rank][t],
                        whole.begin() + (tensors_[rank][t].data() - memory_[rank]->bytes().data()));
    }
    CHECK(WriteDevice(*devices_[rank], memory_[rank]->bytes(), whole).ok());
  }
  version_.run = "test";
  version_.number = number;
  version_.digest = Sha256Of(std::to_string(number));
}

}  // namespace bascule
