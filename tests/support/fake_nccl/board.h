// Where the ranks of one communicator meet, whatever processes they are in: memory that the maker of the id holds and
// every rank maps. For each pair of ranks it has a few places for messages under way. A message lies in a memfd of its
// sender, which the receiver opens; one whose sender was killed never arrives.
//
// Thread-safety: thread-safe.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "tests/support/fake_cuda/ipc.h"

namespace bascule::fake_nccl {

inline constexpr int kMaxRanks = 16;
inline constexpr std::uint64_t kPlaces = 8;

// What sender and receiver must agree on; where they do not, the message is never taken.
struct Tag {
  std::uint32_t kind = 0;
  std::uint32_t type = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Tag&, const Tag&) = default;
};

// A place for message n, n + kPlaces, ... of one rank to another.
struct Place {
  // Twice how many messages it has had, and one more while one is here.
  std::atomic<std::uint64_t> state;
  Tag tag;
  fake_cuda::IpcName memory;
};

struct Board {
  std::atomic<int> size;                              // 0 until the first rank comes
  std::array<std::atomic<int>, kMaxRanks> device_of;  // of the ranks that have come, and 1; 0 before
  std::array<std::array<std::array<Place, kPlaces>, kMaxRanks>, kMaxRanks> places;

  Place& PlaceOf(int from, int to, std::uint64_t message) {
    return places.at(static_cast<std::size_t>(from)).at(static_cast<std::size_t>(to)).at(message % kPlaces);
  }
  int CountPresent() const;
  bool TwoShareADevice() const;
};

// Is a place ready for message n; is message n in it; has message n been taken.
inline bool IsFree(const Place& place, std::uint64_t message) { return place.state == message / kPlaces * 2; }
inline bool IsHere(const Place& place, std::uint64_t message) { return place.state == message / kPlaces * 2 + 1; }
inline bool IsTaken(const Place& place, std::uint64_t message) { return place.state > message / kPlaces * 2 + 1; }

// A new board, which stays until Release, and its name.
bool MakeBoard(ncclUniqueId* id);
// The maker has no more use for it: its ranks have all come, or never will.
void ReleaseBoard(const ncclUniqueId& id);
int CountBoards();
// Null: its maker is gone.
std::shared_ptr<Board> OpenBoard(const ncclUniqueId& id);

}  // namespace bascule::fake_nccl
