// The Unix sockets of simulated processes: the kernel's own, with the product's own code at both ends. What would block
// the one thread waits in the scheduler instead, and a process that is killed loses its sockets at once, as it would:
// its peers read the end, whoever calls is refused, the socket's file stays.
//
// Thread-safety: confined to one thread; one at a time.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "tests/simulation/scheduler.h"

namespace bascule::simulation {

class Sockets {
 public:
  // `on_message` hears of every message that a process sends, just before.
  Sockets(Scheduler& scheduler, std::function<void(NodeId from)> on_message);
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  // The process is killed. What is cleared away in its name from now on changes no file.
  void Sever(NodeId node);

  // The one whose schedule runs; null outside.
  static Sockets* Running();

  // What the system calls do.
  void Opened(int fd);
  void Closing(int fd);
  void Sending() { on_message_(scheduler_.node()); }
  void Changed();                                    // somebody may have become readable
  void AwaitChange(std::optional<TimePoint> until);  // at most until then
  void LetOthersGoOn() { scheduler_.LetOthersGoOn(); }
  bool IsGone() const { return gone_.contains(scheduler_.node()); }
  TimePoint now() const { return scheduler_.now(); }

 private:
  Scheduler& scheduler_;
  const std::function<void(NodeId)> on_message_;
  std::map<int, NodeId> owners_;
  std::set<NodeId> gone_;
};

}  // namespace bascule::simulation
