// The PeerSource service of an engine: has it send its live version to another.
//
// Thread-safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "bridge/send/publish_session.h"
#include "bridge/session/fleet_messages.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bascule {

struct PeerSourceOptions {
  // Called on a thread of the server's; `stop` is requested when the caller has gone away or the engine stops.
  std::function<SendReport(const PeerRequest& request, Deadline deadline, std::stop_token stop)> send;
  int at_once = 2;                               // so many; others are refused
  Duration deadline = std::chrono::minutes(30);  // where a caller has none, or a later one
};

class PeerSourceService {
 public:
  explicit PeerSourceService(PeerSourceOptions options);
  // No call is running: the server has shut down.
  ~PeerSourceService();

  // For the server that serves it.
  grpc::Service& service();
  // Ends what is being sent soon, so that a server can shut down.
  void Stop();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace bascule
