// Takes routes from senders on the same host, run by the same user, at a Unix socket in a private directory. A sender
// brings its arena; this side maps it read-only once, for as long as the route lives.
//
// Thread-safety: thread-safe.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "base/worker.h"
#include "bridge/transport/route_table.h"
#include "bridge/transport/shm/message_socket.h"
#include "bridge/transport/transport.h"

namespace bascule {

class ShmListener final : public TransportListener {
 public:
  // Listens at `path`, in a directory that only this user may enter (made when it is not there); see
  // runtime_directory.h for the usual one. Handshakes run on a thread of the listener's own.
  //
  // InvalidArgument "bad_socket_path"; PermissionDenied "runtime_directory"; FailedPrecondition "address_in_use"
  // Unavailable "cannot_listen"; ResourceExhausted "descriptors"
  static Result<std::unique_ptr<ShmListener>> Create(const std::string& path, Clock& clock = Clock::Real());
  ~ShmListener() override;

  TransportEndpoint endpoint() const override { return {TransportKind::kShm, path_}; }
  void Expect(std::uint64_t connection) override { routes_->Expect(connection); }
  void Forget(std::uint64_t connection) override { routes_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    const std::shared_ptr<RouteTable> routes = routes_;  // A wait may outlive the listener.
    return routes->Accept(connection, route, deadline);
  }

 private:
  // A caller that has not said its hello yet.
  struct Caller {
    MessageSocket socket;
    Deadline deadline;
  };

  ShmListener(std::string path, UniqueFd listening, UniqueFd stop, Clock& clock);
  // The body of the thread: waits for callers and for what they say.
  void Listen();
  void WaitForDescriptors();
  void TakeCallers(std::list<Caller>& callers);
  void Answer(MessageSocket socket);

  const std::string path_;
  Clock& clock_;
  const UniqueFd listening_;
  const UniqueFd stop_;  // an eventfd, readable once the listener goes
  const std::shared_ptr<RouteTable> routes_;
  Worker worker_;
};

}  // namespace bascule
