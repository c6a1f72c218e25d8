// The peer program of cuda_ipc_peer.cc, which lies beside the test's own. Under the fake runtime it has its devices the
// other way round.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/child_process.h"

namespace bascule {

class Peer : public ChildProcess {
 public:
  Peer(const char* role, const std::string& address, const char* frames = "1")
      : ChildProcess({(std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cuda_ipc_peer").string(), role,
                      address, frames},
                     [] { setenv("BASCULE_FAKE_CUDA_DEVICES", "0,1", /*overwrite=*/1); }) {}
};

}  // namespace bascule
