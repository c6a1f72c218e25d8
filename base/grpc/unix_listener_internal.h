// A Unix socket for a gRPC server: its file is the owner's alone from its first moment (mode 0600), and every caller's
// user is asked of the kernel before gRPC hears of it.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <memory>
#include <string>

#include "base/net_address.h"
#include "base/status.h"
#include "base/worker.h"

namespace bascule {

// Thread-safety: confined to its owner.
class UnixListener {
 public:
  // Takes a connected socket over.
  using OnCaller = std::function<void(int listening_fd, int caller_fd)>;

  // A socket file that nobody listens at any more is replaced.
  //
  // FailedPrecondition "address_in_use"  another server listens there, or the path is something else
  // Unavailable "cannot_listen"
  static Result<std::unique_ptr<UnixListener>> Open(const NetAddress& address);
  // Takes no more callers, and removes the socket's file unless another has taken its place.
  ~UnixListener();

  // Gives every caller that is this process's user, or root, to `on_caller`, on a thread of its own. Once.
  void Serve(OnCaller on_caller);

 private:
  UnixListener(std::string path, int listening_fd, int stop_fd, const struct stat& file);
  void TakeCallers();
  void TakeCaller();

  const std::string path_;
  const int listening_fd_;
  const int stop_fd_;
  const dev_t device_;
  const ino_t inode_;
  OnCaller on_caller_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace bascule
