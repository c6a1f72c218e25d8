// The two-way channel that carries SessionMessages: loopback/ in one process, grpc/ between hosts. When either end goes
// away the other learns it at once ("peer_lost").
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/session/messages.h"

namespace bascule {

// Thread-safety: Send, StopReceiving and Cancel from any thread; one thread receives.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;  // closes
  // Hands the message over and does not wait for the peer to read it: a stalled peer never blocks a sender. Messages
  // sent before an end closes still arrive.
  //
  // Unavailable "peer_lost"; InvalidArgument "bad_message"  larger than a channel carries
  virtual Status Send(const SessionMessage& message) = 0;
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // DataLoss "bad_message"  the peer's bytes are no message, or break a bound
  virtual Result<SessionMessage> Receive(Deadline deadline) = 0;
  // Receive fails with "cancelled" from now on. The peer hears nothing of it, and what was sent still goes out: the way
  // to close without losing a last message.
  virtual void StopReceiving() = 0;
  // Wakes both ends; the peer sees "peer_lost", perhaps before what was sent last.
  virtual void Cancel() = 0;
  virtual std::string peer() const = 0;  // address, for messages
};

// Publisher side. Thread-safety: thread-safe.
class ControlDialer {
 public:
  virtual ~ControlDialer() = default;
  // Unavailable "peer_unreachable"; DeadlineExceeded "deadline"; InvalidArgument "bad_address"
  virtual Result<std::unique_ptr<ControlChannel>> Dial(const std::string& address, Deadline deadline) = 0;
};

// Of whoever is called: run once per connection, on a thread of its own, for as long as the connection lives.
using ControlHandler = std::function<void(ControlChannel&)>;

// Takes connections. Thread-safety: thread-safe.
class ControlHost {
 public:
  // An address in use. Destruction cancels its channels and waits until their handlers have returned.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual std::string address() const = 0;  // where to dial: with the port that was bound
  };

  virtual ~ControlHost() = default;
  // FailedPrecondition "address_in_use"; InvalidArgument "bad_address"; Unavailable "cannot_listen"
  virtual Result<std::unique_ptr<Listener>> Listen(const std::string& address, ControlHandler handler) = 0;
};

}  // namespace bascule
