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

}  // namespace

BlockCopier& HostBlockCopier() {
  static HostCopier copier;
  return copier;
}

BlockExchange::BlockExchange(std::span<const Pair> memory, BlockCopier& copier, int lanes) : copier_(copier) {
  for (const auto& [a, b] : memory) {
    CHECK(a.size() == b.size());
    for (std::size_t at = 0; at < a.size(); at += kBlockBytes) {
      const std::size_t bytes = std::min(kBlockBytes, a.size() - at);
      blocks_.push_back({a.subspan(at, bytes), b.subspan(at, bytes)});
    }
  }
  const auto lane_count = static_cast<std::size_t>(lanes);
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    lanes_.push_back({.begin = blocks_.size() * lane / lane_count,
                      .end = blocks_.size() * (lane + 1) / lane_count,
                      .saved = std::vector<std::byte>(kBlockBytes)});
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
    lane.done = 0;
    lane.phase = Phase::kUntouched;
    Status status;
    while (lane.begin + lane.done < lane.end && !failed) {
      status = ExchangeBlock(blocks_[lane.begin + lane.done], lane);
      if (status.ok()) {
        ++lane.done;
      } else {
        failed = true;
      }
    }
    return status;
  });
}

Status BlockExchange::ExchangeBlock(const Pair& block, Lane& lane) const {
  const auto saved = std::span(lane.saved).first(block.a.size());
  RETURN_IF_ERROR(copier_.Copy(saved, block.a));
  lane.phase = Phase::kSaved;
  RETURN_IF_ERROR(copier_.Copy(block.a, block.b));
  lane.phase = Phase::kWritten;
  RETURN_IF_ERROR(copier_.Copy(block.b, saved));
  lane.phase = Phase::kUntouched;
  return OkStatus();
}

Status BlockExchange::Undo() {
  return OnEveryLane([this](Lane& lane) { return UndoLane(lane); });
}

Status BlockExchange::UndoLane(Lane& lane) const {
  RETURN_IF_ERROR(UndoBlockUnderWay(lane));
  for (; lane.done > 0; --lane.done) {
    RETURN_IF_ERROR(ExchangeBlock(blocks_[lane.begin + lane.done - 1], lane));  // once more takes back
  }
  return OkStatus();
}

Status BlockExchange::UndoBlockUnderWay(Lane& lane) const {
  if (lane.phase == Phase::kUntouched) return OkStatus();
  const Pair& block = blocks_[lane.begin + lane.done];
  const auto saved = std::span(lane.saved).first(block.a.size());
  if (lane.phase == Phase::kWritten) {
    RETURN_IF_ERROR(copier_.Copy(block.b, block.a));
    lane.phase = Phase::kSaved;
  }
  RETURN_IF_ERROR(copier_.Copy(block.a, saved));
  lane.phase = Phase::kUntouched;
  return OkStatus();
}

}  // namespace bascule
