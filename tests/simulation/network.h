// The wires between simulated processes: the product's loopback control channels and routes, on which messages and
// frames get lost, repeated, reordered, damaged, held up and cut.
//
// Thread-safety: as the interfaces that it implements; all on fibers of one scheduler.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/loopback/network.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/scheduler.h"

namespace bascule::simulation {

class Wire;

// A message, frame or acknowledgement on its way.
struct Passage {
  NodeId from = 0;
  NodeId to = 0;
  std::string_view what;                    // "Offer", "frame", "ack"
  const SessionMessage* message = nullptr;  // null for frames and acknowledgements
};
// What hits it, if anything does. It may be called with locks held and must not wait.
using Injector = std::function<std::optional<Fault>(const Passage&)>;

class Network {
 public:
  Network(Scheduler& scheduler, Injector injector);
  ~Network();

  // Interfaces of one process. `name` is where others dial; a process that comes back takes the name over.
  std::unique_ptr<ControlHost> HostOf(NodeId node);
  std::unique_ptr<ControlDialer> DialerOf(NodeId node);
  std::unique_ptr<TransportDialer> RouteDialerOf(NodeId node);
  Result<std::unique_ptr<TransportListener>> RouteListenerOf(NodeId node);

  // A call of one process to another and its answer, each of which a fault may hit. `serve` runs in the callee's
  // process.
  //
  // Unavailable "peer_unreachable" | "peer_lost"; DeadlineExceeded "deadline"; DataLoss "bad_message"
  Status Call(NodeId from, NodeId to, std::string_view what, Deadline deadline, const std::function<void()>& serve);

  // The process is gone: its wires are cut and nobody reaches it any more, nor it anybody.
  void Sever(NodeId node);
  void Partition(NodeId a, NodeId b, TimePoint until);
  void Heal();  // partitions and delays end now; what is still held back never comes
  int open_ends() const { return open_ends_; }

 private:
  friend class Wire;
  friend class Host;
  friend class Dialer;
  friend class RouteDialer;
  friend class RouteListener;
  friend class Channel;
  friend class FaultySender;
  friend class FaultyReceiver;

  std::shared_ptr<Wire> NewWire(NodeId caller, NodeId callee);
  TimePoint PartitionedUntil(NodeId a, NodeId b) const;
  // Waits until the two can talk.
  Status AwaitReachable(NodeId a, NodeId b, Deadline deadline);
  // One way of a call. True: it comes twice.
  Result<bool> PassCall(const Passage& passage, Deadline deadline);

  Scheduler& scheduler_;
  Clock& clock_;
  const Injector injector_;
  LoopbackControl control_;
  LoopbackNetwork routes_;
  std::map<std::string, NodeId> names_;
  std::map<std::pair<std::uint64_t, Route>, std::shared_ptr<Wire>> dialled_;  // routes whose receiver was not taken yet
  std::map<std::uint64_t, std::shared_ptr<Wire>> called_;                     // channels, likewise
  std::uint64_t next_wire_ = 1;
  std::vector<Wire*> wires_;  // oldest first
  std::set<NodeId> gone_;
  std::map<std::pair<NodeId, NodeId>, TimePoint> partitions_;
  int open_ends_ = 0;
  bool healed_ = false;
};

}  // namespace bascule::simulation
