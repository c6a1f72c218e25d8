// The VersionStatus service of an engine: which version is live on which rank, what a session is doing, the history, a
// digest of live memory, and the way back.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine_side/cache_daemon/cache_daemon.h"
#include "engine_side/latency_histogram.h"
#include "engine_side/weight_receiver.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bascule {

// What an engine says of its requests and its caches; the receiver knows nothing of them.
struct ServingStatus {
  std::int64_t running = 0, waiting = 0;
  std::int64_t kv_pages_used = 0, kv_pages_total = 0;
  std::int64_t prefix_entries = 0;
  std::string kv_policy = "recompute";
  LatencyHistogram flip_gaps;              // between two tokens of a request where a flip lay
  std::string device = {};                 // where it decodes: "cpu", "cuda:0,1"; empty where it does not
  std::optional<double> staging_share;     // of the time; none where staging is not throttled
  std::optional<CacheDaemonStatus> cache;  // of a cache daemon
};

struct VersionStatusOptions {
  std::string model;  // as it is shown
  std::function<ServingStatus()> serving;
  Duration rollback_deadline = std::chrono::seconds(30);  // where a caller has none
  int max_watchers = 256;  // at a time, each on a thread of the server's; others are refused ("too_many_callers")
  int max_digests = 8;     // likewise: each reads all that is live, and holds it
};

class EngineVersionStatusService {
 public:
  // `receiver` is borrowed.
  EngineVersionStatusService(WeightReceiver& receiver, VersionStatusOptions options);
  // No call is running: the server has shut down.
  ~EngineVersionStatusService();

  // For the server that serves it.
  grpc::Service& service();
  // Ends every WatchStatus stream soon, so that a server can shut down.
  void Stop();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace bascule
