// The VersionLoad service of an engine: tells it to read a version from a directory of its own host.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bridge/send/publish_session.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace bascule {

struct VersionLoadRequest {
  std::string path;
  std::uint64_t number = 0;
  std::string run;  // empty: the run of the live version
  bool new_run = false;
  std::vector<std::string> ignore;
  std::vector<std::string> scope;
  std::optional<WeightVersion> base;  // see ManifestOffer
};

struct VersionLoadOptions {
  // Opens the directory, stages, verifies and flips. Called on a thread of the server's; `stop` is requested when the
  // caller has gone away or the engine stops.
  std::function<SendReport(const VersionLoadRequest& request, Deadline deadline, std::stop_token stop)> load;
  int at_once = 8;                               // so many; others are refused ("too_many_callers")
  Duration deadline = std::chrono::minutes(30);  // where a caller has none, or a later one
};

class VersionLoadService {
 public:
  explicit VersionLoadService(VersionLoadOptions options);
  // No call is running: the server has shut down.
  ~VersionLoadService();

  // For the server that serves it.
  grpc::Service& service();
  // Ends running loads soon, so that a server can shut down.
  void Stop();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace bascule
