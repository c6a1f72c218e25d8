// Device memory of routes whose sender is gone. Another process may have it open, and freeing it under a reader is
// undefined: it is kept until that process has closed its end of the socket, which it does when it has closed the
// memory.
//
// Thread-safety: thread-safe.
#pragma once

#include <list>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "bridge/transport/cuda_ipc/device_end.h"

namespace bascule {

class RetiredEnds {
 public:
  explicit RetiredEnds(Clock& clock) : clock_(clock) {}
  // Waits a while for the peers that are left. What they still have open then stays until this process ends.
  ~RetiredEnds();

  // Tells the peer at `socket` that this end is gone.
  void Take(UniqueFd socket, std::shared_ptr<DeviceEnd> end) EXCLUDES(mu_);
  // Frees what nobody has open any more.
  void Sweep() EXCLUDES(mu_);

 private:
  struct Retired {
    UniqueFd socket;
    std::shared_ptr<DeviceEnd> end;
  };
  bool IsEmpty() EXCLUDES(mu_);

  Clock& clock_;
  Mutex mu_;
  std::list<Retired> retired_ GUARDED_BY(mu_);
};

// Keeps `end` for as long as the process lives: work on it does not end, and memory must not go before it does.
void KeepForEver(std::shared_ptr<DeviceEnd> end, const Status& why);

}  // namespace bascule
