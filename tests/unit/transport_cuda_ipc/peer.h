// The peer program of cuda_ipc_peer.cc. Under the fake runtime it has its devices the other way round.
#pragma once

#include <cstdlib>
#include <string>

#include "tests/support/child_process.h"

namespace bascule {

class Peer : public ChildProcess {
 public:
  Peer(const char* role, const std::string& address, const char* frames = "1")
      : ChildProcess({CUDA_IPC_PEER, role, address, frames},
                     [] { setenv("BASCULE_FAKE_CUDA_DEVICES", "0,1", /*overwrite=*/1); }) {}
};

}  // namespace bascule
