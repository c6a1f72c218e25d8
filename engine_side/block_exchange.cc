#include "engine_side/block_exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/worker.h"

namespace bascule {
namespace {

class HostCopier final : public BlockCopier {
 public:
  Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    std::memcpy(to.data(), from.data(), from.size());
    return OkStatus();
  }
};

std::vector<BlockExchange::Pair> BlocksOf(std::span<const BlockExchange::Pair> memory, std::size_t block_bytes) {
  std::vector<BlockExchange::Pair> blocks;
  for (const auto& [a, b] : memory) {
    CHECK(a.size() == b.size());
    for (std::size_t at = 0; at < a.size(); at += block_bytes) {
      const std::size_t bytes = std::min(block_bytes, a.size() - at);
      blocks.push_back({a.subspan(at, bytes), b.subspan(at, bytes)});
    }
  }
  return blocks;
}

std::vector<BlockExchange::Pair> Joined(std::span<const std::vector<BlockExchange::Pair>> memory) {
  std::vector<BlockExchange::Pair> joined;
  for (const auto& pairs : memory) joined.insert(joined.end(), pairs.begin(), pairs.end());
  return joined;
}

}  // namespace

BlockCopier& HostBlockCopier() {
  static HostCopier copier;
  return copier;
}

BlockExchange::BlockExchange(std::span<const Pair> memory, BlockCopier& copier, int lanes)
    : saved_(static_cast<std::size_t>(lanes), std::vector<std::byte>(kBlockBytes)) {
  const std::vector<Pair> blocks = BlocksOf(memory, kBlockBytes);
  for (std::size_t lane = 0; lane < saved_.size(); ++lane) {
    const auto border = [&](std::size_t number) {
      return blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() * number / saved_.size());
    };
    lanes_.push_back({.blocks = {border(lane), border(lane + 1)}, .copier = &copier, .saved = saved_[lane]});
  }
}

BlockExchange::BlockExchange(std::span<const std::vector<Pair>> memory, BlockCopier& copier)
    : BlockExchange(Joined(memory), copier) {}

BlockExchange::BlockExchange(std::span<const Share> shares) {
  for (const Share& share : shares) {
    lanes_.push_back(
        {.blocks = BlocksOf(share.memory, share.saved.size()), .copier = share.copier, .saved = share.saved});
  }
}

template <typename Work>
Status BlockExchange::OnEveryLane(const Work& work) {
  std::vector<Status> ended(lanes_.size());
  {
    std::vector<Worker> workers;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      workers.emplace_back("exchange", [&, lane](std::stop_token) { ended[lane] = work(lanes_[lane]); });
    }
  }
  const auto failed = std::find_if(ended.begin(), ended.end(), [](const Status& status) { return !status.ok(); });
  return failed == ended.end() ? OkStatus() : *failed;
}

Status BlockExchange::Run() {
  std::atomic<bool> failed = false;
  return OnEveryLane([&](Lane& lane) {
    const Status status = RunLane(lane, failed);
    if (!status.ok()) failed = true;
    return status;
  });
}

Status BlockExchange::RunLane(Lane& lane, const std::atomic<bool>& failed) {
  lane.done = 0;
  lane.phase = Phase::kUntouched;
  for (; lane.done < lane.blocks.size() && !failed; ++lane.done) {
    RETURN_IF_ERROR(ExchangeBlock(lane.blocks[lane.done], lane));
  }
  return lane.copier->Finish();
}

Status BlockExchange::ExchangeBlock(const Pair& block, Lane& lane) {
  const auto saved = lane.saved.first(block.a.size());
  RETURN_IF_ERROR(lane.copier->Copy(saved, block.a));
  lane.phase = Phase::kSaved;
  RETURN_IF_ERROR(lane.copier->Copy(block.a, block.b));
  lane.phase = Phase::kWritten;
  RETURN_IF_ERROR(lane.copier->Copy(block.b, saved));
  lane.phase = Phase::kUntouched;
  return OkStatus();
}

Status BlockExchange::Undo() {
  return OnEveryLane([](Lane& lane) { return UndoLane(lane); });
}

Status BlockExchange::UndoLane(Lane& lane) {
  RETURN_IF_ERROR(UndoBlockUnderWay(lane));
  for (; lane.done > 0; --lane.done) {
    RETURN_IF_ERROR(ExchangeBlock(lane.blocks[lane.done - 1], lane));  // once more takes back
  }
  return lane.copier->Finish();
}

Status BlockExchange::UndoBlockUnderWay(Lane& lane) {
  if (lane.phase == Phase::kUntouched) return OkStatus();
  const Pair& block = lane.blocks[lane.done];
  const auto saved = lane.saved.first(block.a.size());
  if (lane.phase == Phase::kWritten) {
    RETURN_IF_ERROR(lane.copier->Copy(block.b, block.a));
    lane.phase = Phase::kSaved;
  }
  RETURN_IF_ERROR(lane.copier->Copy(block.a, saved));
  lane.phase = Phase::kUntouched;
  return OkStatus();
}

}  // namespace bascule
