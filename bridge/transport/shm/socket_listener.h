// Takes callers of the same user at a Unix socket in a private directory, on a thread of its own, and hands each on
// once it has said something.
//
// Thread-safety: thread-safe.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "base/worker.h"
#include "bridge/transport/shm/message_socket.h"
#include "bridge/transport/shm/messages.h"

namespace bascule {

class SocketListener {
 public:
  // Called on the listener's thread, with a caller whose first message is there to be read. It does not wait.
  using Answer = std::function<void(MessageSocket)>;

  // Listens at `path`, in a directory that only this user may enter (made when it is not there). `thread_name`: the
  // first 15 characters count.
  //
  // InvalidArgument "bad_socket_path"; PermissionDenied "runtime_directory"; FailedPrecondition "address_in_use"
  // Unavailable "cannot_listen"; ResourceExhausted "descriptors"
  static Result<std::unique_ptr<SocketListener>> Create(const std::string& path, const std::string& thread_name,
                                                        Answer answer, Clock& clock);
  ~SocketListener();

  const std::string& path() const { return path_; }

 private:
  // A caller that has not said anything yet.
  struct Caller {
    MessageSocket socket;
    Deadline deadline;
  };

  SocketListener(std::string path, const std::string& thread_name, UniqueFd listening, UniqueFd stop, Answer answer,
                 Clock& clock);
  // The body of the thread: waits for callers and for what they say.
  void Listen();
  void WaitForDescriptors();
  void TakeCallers(std::list<Caller>& callers);

  const std::string path_;
  Clock& clock_;
  const UniqueFd listening_;
  const UniqueFd stop_;  // an eventfd, readable once the listener goes
  const Answer answer_;
  Worker worker_;
};

}  // namespace bascule
