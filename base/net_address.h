// Where a server listens or a client calls: "host:port", "[v6]:port", "unix:/path".
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace bascule {

struct NetAddress {
  std::string host;  // without brackets; empty for a Unix socket
  std::uint16_t port = 0;
  std::string unix_path;  // absolute; empty for a host

  // InvalidArgument "bad_address"  names the text and the three forms
  static Result<NetAddress> Parse(const std::string& text);
  bool is_unix() const { return !unix_path.empty(); }
  // 127.0.0.0/8, "::1" or "localhost": bytes to it stay on this host.
  bool is_loopback() const;
  // "0.0.0.0" or "::": every address of the host that listens, and none that can be dialled from another.
  bool is_wildcard() const { return host == "0.0.0.0" || host == "::"; }
  std::string ToString() const;
  friend bool operator==(const NetAddress&, const NetAddress&) = default;
};

}  // namespace bascule
