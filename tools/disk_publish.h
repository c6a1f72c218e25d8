// publish --from-disk: engines read the version themselves, from a directory of their own host.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/peer_security.h"
#include "tools/command.h"

namespace bascule {

struct DiskPublish {
  std::string path;  // as the engines see it
  std::vector<std::string> to;
  std::optional<std::uint64_t> version;  // default: the highest that any of them has committed + 1
  std::string run;
  bool new_run = false;
  std::vector<std::string> ignore;
  std::vector<std::string> scope;  // empty: all of it
  Duration deadline{};
  ClientSecurity security;
};

// Each replica on its own, at the same time.
Outcome PublishFromDisk(Program& program, const DiskPublish& publish);

}  // namespace bascule
