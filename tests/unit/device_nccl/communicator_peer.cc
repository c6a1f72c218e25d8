// The other process of communicator_process_test: rank 1 of 2, on its device 1. It reads the id from standard input,
// joins, takes part in a broadcast of rank 0's, and sends the bytes back.
//
//   communicator_peer            exits with 0 when all went well
//   communicator_peer silent     joins and waits to be killed
//   communicator_peer absent     waits to be killed
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

constexpr std::size_t kBytes = 50'000;

Status Run(std::string_view role) {
  CommunicatorId id;
  if (read(STDIN_FILENO, id.bytes.data(), id.bytes.size()) != static_cast<ssize_t>(id.bytes.size())) {
    return Status::InvalidArgument("no_id");
  }
  if (role == "absent") pause();
  Rank rank = MakeRank(1, kBytes);
  ASSIGN_OR_RETURN(rank.communicator, Library().Join(*rank.device, id, 1, 2));
  RETURN_IF_ERROR(rank.Settle());
  if (role == "silent") pause();
  RETURN_IF_ERROR(rank.communicator->Broadcast(rank.memory->bytes(), 0, *rank.stream));
  RETURN_IF_ERROR(rank.Settle());
  RETURN_IF_ERROR(rank.communicator->Move(std::vector{rank.To(0, 0, kBytes)}, *rank.stream));
  RETURN_IF_ERROR(rank.Settle());
  return rank.communicator->Close(Soon(), Clock::Real());
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) {
  const bascule::Status status = bascule::Run(argc > 1 ? argv[1] : "");
  if (!status.ok()) std::fprintf(stderr, "communicator_peer: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
