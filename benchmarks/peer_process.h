// A process for the other side of a benchmark, or for a whole benchmark: forked from this one, so that it runs this
// very build, and joined to it by a socket that carries small messages. When either ends, the other hears it at once.
//
// Fork before this process has threads of its own: a thread that holds a lock at that moment never lets go of it there.
//
// Thread-safety: confined to one thread, except Kill.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace bascule {

// One end of the socket.
class PeerLink {
 public:
  explicit PeerLink(UniqueFd socket) : socket_(std::move(socket)) {}

  // At most 4096 bytes.
  //
  // Unavailable "peer_lost"
  Status Send(std::string_view message);
  // The next message; or the error with which the body at the other end ended.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"
  Result<std::string> Receive(Deadline deadline);
  // Returns when the other end has gone.
  void AwaitEnd();

 private:
  friend class PeerProcess;
  Status SendTagged(char tag, std::string_view text);

  UniqueFd socket_;
};

class PeerProcess {
 public:
  // Runs `body` in a new process, which ends with it. A body ends soon after its link has lost the peer.
  //
  // ResourceExhausted "process"
  static Result<std::unique_ptr<PeerProcess>> Start(const std::function<Status(PeerLink&)>& body);
  // Lets the process end by itself, and kills it when it does not.
  ~PeerProcess();

  PeerLink& link() { return link_; }
  // Ends it at once. What it has started itself ends too, when it hears of that.
  void Kill();

 private:
  PeerProcess(pid_t pid, UniqueFd socket) : pid_(pid), link_(std::move(socket)) {}

  const pid_t pid_;
  PeerLink link_;
};

}  // namespace bascule
