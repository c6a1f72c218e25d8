// What one group asks of one communicator, as work of a stream: messages to and from peers, which go on side by side,
// and what is done with those that came. It takes its messages' numbers when the stream comes to it, so that the same
// operation may run again and again, as part of a graph. From then on until it is done, and while it waits for peers,
// it has its communicator's CTAs of the device; where there are not as many it waits for them.
//
// Thread-safety: confined to the worker of the streams once it is enqueued.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/support/fake_nccl/communicator.h"

namespace bascule::fake_nccl {

// Asked for by this process's ranks, ever: see FakeNcclCensus.
struct Sent {
  std::atomic<int> broadcasts = 0;
  std::atomic<std::uint64_t> bytes = 0;
  static Sent& Get();
};

class Operation {
 public:
  explicit Operation(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

  void Send(int to, const void* from, const Tag& tag) { sends_.push_back({.to = to, .from = from, .tag = tag}); }
  void Receive(int from, void* to, const Tag& tag) { receives_.push_back({.from = from, .to = to, .tag = tag}); }
  // What has been received goes on to this rank, once all of it is there.
  void Forward(int to, const void* from, const Tag& tag) {
    sends_.push_back({.to = to, .from = from, .tag = tag, .is_forwarded = true});
  }
  // A message that is not stored, but handed to `finish`, in the order of these calls, once everything has come.
  void ReceiveFor(int from, const Tag& tag) { Receive(from, nullptr, tag); }
  void Finish(std::function<void(const std::vector<std::vector<std::byte>>&)> finish) { finish_ = std::move(finish); }
  bool has_finish() const { return finish_ != nullptr; }
  // No peer will answer.
  void Lose() { lost_ = true; }

  bool MayStep();
  void Step();
  bool IsDone() const { return done_; }

 private:
  enum class State { kWaits, kUnderWay, kDone };
  struct Sending {
    int to = 0;
    const void* from = nullptr;
    Tag tag;
    bool is_forwarded = false;
    std::uint64_t message = 0;
    UniqueFd memory;
    State state = State::kWaits;
  };
  struct Receiving {
    int from = 0;
    void* to = nullptr;
    Tag tag;
    std::vector<std::byte> kept;
    std::uint64_t message = 0;
    State state = State::kWaits;  // kUnderWay: its sender was killed with it
  };
  Place& PlaceOf(const Sending& sending) const {
    return board_->PlaceOf(communicator_->rank(), sending.to, sending.message);
  }
  Place& PlaceOf(const Receiving& receiving) const {
    return board_->PlaceOf(receiving.from, communicator_->rank(), receiving.message);
  }
  bool MayStep(const Sending& sending) const;
  bool MayStep(const Receiving& receiving) const;
  // Whether its kernel has its place on the device.
  bool Launch() const;
  void Begin() REQUIRES(communicator_->mu_);
  void Step(Sending& sending);
  void Step(Receiving& receiving);
  bool AllReceived() const;
  bool AllDone() const;
  void Finish();
  void End() REQUIRES(communicator_->mu_);

  const std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Board> board_;
  std::vector<Sending> sends_;
  std::vector<Receiving> receives_;
  std::function<void(const std::vector<std::vector<std::byte>>&)> finish_;
  bool lost_ = false;
  bool begun_ = false;
  bool done_ = false;
};

}  // namespace bascule::fake_nccl
