// Asks a running engine or publisher for its versions. What comes back is the JSON that the program prints, with the
// keys in the order of the contract.
//
// Thread-safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

using Json = nlohmann::ordered_json;

// The live memory of an engine: tensors sorted by name, and the digest of each.
struct LiveDigests {
  std::vector<TensorSpec> tensors;
  std::vector<TensorDigest> digests;
  struct ReplicaDifference {
    std::string tensor;
    std::string what;
  };
  std::vector<ReplicaDifference> replica_differences;
};

// Every call: Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "interrupted" once `stop` is
// requested; DataLoss "bad_message" when the peer's answer breaks a bound; and what the peer answers.
class VersionStatusClient {
 public:
  // Unavailable "peer_unreachable"; DeadlineExceeded "deadline"; InvalidArgument "bad_address"
  static Result<std::unique_ptr<VersionStatusClient>> Connect(const std::string& address, Deadline deadline,
                                                              const ClientSecurity& security = {});
  ~VersionStatusClient();

  // `details`: of an engine, how long stalls and gaps across flips were.
  Result<Json> GetStatus(Deadline deadline, std::stop_token stop, bool details = false);
  // Until the peer ends the stream, `stop`, or `on_status` gives false. The first comes at once.
  Status Watch(std::stop_token stop, const std::function<bool(const Json&)>& on_status);
  Result<std::vector<Json>> ListVersions(Deadline deadline, std::stop_token stop);
  Result<LiveDigests> DigestLive(Deadline deadline, std::stop_token stop);
  // To the kept version; its number has to be `to` when given.
  Result<Json> Rollback(std::optional<std::uint64_t> to, Deadline deadline, std::stop_token stop);

 private:
  struct Connection;
  explicit VersionStatusClient(std::unique_ptr<Connection> connection);
  const std::unique_ptr<Connection> connection_;
};

}  // namespace bascule
