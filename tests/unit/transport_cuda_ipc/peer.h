// The peer program of cuda_ipc_peer.cc as a child process, killed and reaped at the latest with this.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace bascule {

class Peer {
 public:
  // Under the fake runtime, with its devices the other way round.
  Peer(const char* role, const std::string& address, const char* frames = "1") : pid_(fork()) {
    if (pid_ != 0) return;
    setenv("BASCULE_FAKE_CUDA_DEVICES", "0,1", 1);
    execl(CUDA_IPC_PEER, CUDA_IPC_PEER, role, address.c_str(), frames, nullptr);
    _exit(127);
  }
  ~Peer() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    (void)Wait();
  }
  int Wait() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

}  // namespace bascule
