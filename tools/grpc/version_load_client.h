// Tells a running engine to load a version from a directory of its own host.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "bridge/send/publish_session.h"

namespace bascule {

struct DiskVersion {
  std::string path;
  std::uint64_t number = 0;
  std::string run;  // empty: the run of the engine's live version
  bool new_run = false;
  std::vector<std::string> ignore;
  std::vector<std::string> scope;     // empty: all of it
  std::optional<WeightVersion> base;  // with a scope
};

// Waits until it is live, or says why it is not: the report's status.
//
// Unavailable "peer_unreachable" | "peer_lost"; DeadlineExceeded "deadline"; Cancelled "interrupted" (`stop`)
// and what the engine answers
SendReport LoadVersionFromDisk(const std::string& address, const DiskVersion& version, Deadline deadline,
                               std::stop_token stop, const ClientSecurity& security = {});

}  // namespace bascule
