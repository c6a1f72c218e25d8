// Accepts a gRPC server's callers. gRPC's own listeners stop for good when the process once has no descriptor for a
// caller; here callers wait in the backlog until it has.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/worker.h"

namespace bascule {

// Thread-safety: confined to its owner.
class CallerIntake {
 public:
  using MayCall = std::function<bool(int caller_fd)>;
  // Takes a connected socket over.
  using OnCaller = std::function<void(int listening_fd, int caller_fd)>;

  // Takes the sockets over: they listen, and never block.
  //
  // ResourceExhausted "descriptors"
  static Result<std::unique_ptr<CallerIntake>> Create(std::vector<int> listening);
  // Takes no more callers, and closes the sockets.
  ~CallerIntake();

  // Gives every caller that `may_call` to `on_caller`, on a thread of its own. Once.
  //
  // ResourceExhausted "thread_limit"
  Status Serve(MayCall may_call, OnCaller on_caller);

 private:
  CallerIntake(std::vector<int> listening, int stop_fd);
  void TakeCallers();
  void TakeCaller(int listening_fd);

  const std::vector<int> listening_;
  const int stop_fd_;
  MayCall may_call_;
  OnCaller on_caller_;
  bool short_of_descriptors_ = false;  // of its thread, as it was the last time
  Worker worker_;
};

}  // namespace bascule
