// Control in one process: for tests, simulation, and a trainer that lives beside its engine. One LoopbackControl is one
// network of names; engines listen on it, publishers dial through it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/session/control.h"

namespace bascule {

// Two ends of one channel. Messages sent before an end closes still arrive; then its peer sees "peer_lost".
std::pair<std::unique_ptr<ControlChannel>, std::unique_ptr<ControlChannel>> MakeLoopbackChannel(
    Clock& clock, const std::string& first_peer = "loopback", const std::string& second_peer = "loopback");

// Thread-safety: thread-safe.
class LoopbackControl final : public ControlDialer, public ControlHost {
 public:
  explicit LoopbackControl(Clock& clock = Clock::Real()) : clock_(clock) {}
  ~LoopbackControl() override;  // every listener is gone

  // FailedPrecondition "address_in_use"
  Result<std::unique_ptr<Listener>> Listen(const std::string& address, ControlHandler handler) override EXCLUDES(mu_);

  Result<std::unique_ptr<ControlChannel>> Dial(const std::string& address, Deadline deadline) override EXCLUDES(mu_);

 private:
  class HandlerThreads;
  void Forget(const std::string& address) EXCLUDES(mu_);

  Clock& clock_;
  Mutex mu_;  // Guards the names; held while a call is handed over, so that its listener stays.
  std::map<std::string, HandlerThreads*> listeners_ GUARDED_BY(mu_);
};

}  // namespace bascule
