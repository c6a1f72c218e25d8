// Ranks of a communicator in one process, each on a device of its own, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "device/communicator.h"
#include "tests/support/device_work/device_work.h"
#include "tests/support/fake_cuda/fake_device.h"

namespace bascule {

inline Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }
inline Deadline Shortly() { return Deadline::After(Clock::Real(), std::chrono::milliseconds(20)); }

inline Communicators& Library() {
  (void)FakeDevice();  // says how to run this where the real runtime is loaded
  return **LoadCommunicators();
}

// Every byte of what rank `rank` has to say.
inline std::byte ByteOf(int rank) { return static_cast<std::byte>(rank + 1); }

struct Rank {
  Device* device = nullptr;
  std::unique_ptr<DeviceStream> stream;
  std::unique_ptr<DeviceBuffer> memory;
  std::unique_ptr<Communicator> communicator;

  Status Settle() const { return AwaitSettled(*communicator, Soon(), Clock::Real()); }
  Status Drain() const { return bascule::Drain(*device, *stream); }
  std::vector<std::byte> Read() const { return ReadDevice(*device, memory->bytes()).value(); }
  // Enqueues: all of its memory is this byte.
  Status Fill(std::byte value) const { return stream->Fill(memory->bytes(), value); }
  Transfer To(int peer, std::size_t begin, std::size_t bytes) const {
    return {Transfer::Way::kSend, peer, memory->bytes().subspan(begin, bytes)};
  }
  Transfer From(int peer, std::size_t begin, std::size_t bytes) const {
    return {Transfer::Way::kReceive, peer, memory->bytes().subspan(begin, bytes)};
  }
};

inline Rank MakeRank(int ordinal, std::size_t bytes) {
  Device& device = FakeDevice(ordinal);
  return {&device, device.MakeStream(StreamPriority::kNormal).value(), device.memory().Allocate(bytes).value(), {}};
}

// All of them have settled, and then what is in their streams is done: what one rank waits for may be another's.
inline testing::AssertionResult AllDone(std::span<const Rank> ranks) {
  for (const Rank& rank : ranks) {
    if (const Status status = rank.Settle(); !status.ok()) return testing::AssertionFailure() << status.ToString();
  }
  for (const Rank& rank : ranks) {
    if (const Status status = rank.Drain(); !status.ok()) return testing::AssertionFailure() << status.ToString();
  }
  return testing::AssertionSuccess();
}

// `size` ranks on devices 0, 1, ... that have joined.
inline std::vector<Rank> JoinedRanks(int size, std::size_t bytes) {
  const CommunicatorId id = Library().NewId().value();
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(MakeRank(r, bytes));
    ranks.back().communicator = Library().Join(*ranks.back().device, id, r, size).value();
  }
  for (const Rank& rank : ranks) CHECK(rank.Settle().ok());
  return ranks;
}

}  // namespace bascule
