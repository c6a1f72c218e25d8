// Trainer ranks in one process, each with a publisher of its own as if it were a process, and scripted engines, on one
// loopback network.
#pragma once

#include <optional>
#include <thread>

#include "bridge/transport/loopback/listener.h"
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {

// One rank of a source, as the process of that rank describes it.
TensorSource PartOf(const TensorSource& whole, int rank);

class GroupFixture : public PublisherFixture {
 protected:
  explicit GroupFixture(Clock& clock = Clock::Real()) : PublisherFixture(clock) {}

  // Publishers of all ranks of the trainer.
  void MakeGroup() {
    for (int rank = 0; rank < world_size_; ++rank) ranks_.push_back(MakeRank(rank));
  }
  std::unique_ptr<WeightPublisher> MakeRank(int rank) { return MakeRank(rank, /*part=*/rank); }
  // One that holds another rank's part of the trainer's tensors.
  std::unique_ptr<WeightPublisher> MakeRank(int rank, int part) {
    auto made = TryRank(rank, part);
    CHECK(made.ok());
    return std::move(*made);
  }
  Result<std::unique_ptr<WeightPublisher>> TryRank(int rank) { return TryRank(rank, /*part=*/rank); }
  Result<std::unique_ptr<WeightPublisher>> TryRank(int rank, int part) {
    WeightPublisherOptions options = options_;
    options.group = {.rank = rank, .world_size = world_size_, .leader = "rank-0", .name = "job", .host = &control_};
    options.control = control_dialer_;
    options.transports = {route_dialer_};
    options.clock = &clock_;
    if (rank > 0) options.replicas.clear();
    if (rank == 0) options.group.listeners = {slices_.get()};
    return WeightPublisher::Create(std::move(options), PartOf(trainer_->Source(), part));
  }
  void UseGroup(int world_size) {
    world_size_ = world_size;
    UseTrainer(world_size);
  }

  // Every rank that is there publishes; the reports by rank.
  std::vector<PublishReport> PublishAll(PublishRequest request = {}) {
    std::vector<std::shared_ptr<PublishHandle>> handles = BeginAll(std::move(request));
    return Reports(handles);
  }
  std::vector<std::shared_ptr<PublishHandle>> BeginAll(PublishRequest request = {}) {
    std::vector<std::shared_ptr<PublishHandle>> handles;
    for (const auto& rank : ranks_) {
      auto handle = rank->Publish(request);
      CHECK(handle.ok());
      handles.push_back(*handle);
    }
    return handles;
  }
  std::vector<PublishReport> Reports(const std::vector<std::shared_ptr<PublishHandle>>& handles) {
    std::vector<PublishReport> reports;
    for (const auto& handle : handles) {
      auto report = handle->WaitCommitted(Soon());
      CHECK(report.ok());
      reports.push_back(std::move(*report));
    }
    return reports;
  }

  int world_size_ = 2;
  std::unique_ptr<TransportListener> slices_ = *LoopbackListener::Create(network_, "rank-0-slices");
  std::vector<std::unique_ptr<WeightPublisher>> ranks_;
};

}  // namespace bascule
