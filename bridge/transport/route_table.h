// A listener's book of routes: which connections are expected, which of their routes have been opened by a sender, and
// which of those are still to be accepted. A transport claims a route before it answers the sender and delivers its
// receiving end after that.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/transport/transport.h"

namespace bascule {

inline constexpr std::size_t kMaxRoutesPerConnection = 4096;

class RouteTable {
 public:
  explicit RouteTable(Clock& clock) : clock_(clock) {}

  void Expect(std::uint64_t connection) EXCLUDES(mu_);
  void Forget(std::uint64_t connection) EXCLUDES(mu_);
  // Forgets every connection, for good; claims and waits fail from now on.
  void Close() EXCLUDES(mu_);

  // InvalidArgument "bad_route"; PermissionDenied "unknown_connection"; AlreadyExists "route_taken"
  // ResourceExhausted "too_many_routes"
  Status Claim(const RouteHello& hello) EXCLUDES(mu_);
  // The receiving end of a claimed route; dropped when its connection has been forgotten since.
  void Deliver(std::unique_ptr<BucketReceiver> receiver) EXCLUDES(mu_);
  // See TransportListener::Accept.
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline)
      EXCLUDES(mu_);

 private:
  // A route that was claimed; null before it is delivered and after it is handed out.
  using Routes = std::map<Route, std::unique_ptr<BucketReceiver>>;

  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  std::map<std::uint64_t, Routes> connections_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace bascule
