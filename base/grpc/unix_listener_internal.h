// A Unix socket for a gRPC server: its file is the owner's alone from its first moment (mode 0600), and every caller's
// user is asked of the kernel before gRPC hears of it.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "base/grpc/caller_intake_internal.h"
#include "base/net_address.h"
#include "base/status.h"

namespace bascule {

// Thread-safety: confined to its owner.
class UnixListener {
 public:
  // A socket file that nobody listens at any more is replaced.
  //
  // FailedPrecondition "address_in_use"  another server listens there, or the path is something else
  // Unavailable "cannot_listen"; ResourceExhausted "descriptors"
  static Result<std::unique_ptr<UnixListener>> Open(const NetAddress& address);
  // Takes no more callers, and removes the socket's file unless another has taken its place.
  ~UnixListener();

  // Gives every caller that is this process's user, or root, to `on_caller`. Once.
  //
  // ResourceExhausted "thread_limit"
  Status Serve(CallerIntake::OnCaller on_caller);

 private:
  UnixListener(std::string path, std::unique_ptr<CallerIntake> intake, const struct stat& file);

  const std::string path_;
  std::unique_ptr<CallerIntake> intake_;
  const dev_t device_;
  const ino_t inode_;
};

}  // namespace bascule
