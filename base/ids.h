// Identifiers that cross process borders. Each is its own type, so that one is never passed for another.
//
// Thread-safety: thread-compatible (values); Mint is thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace bascule {

// One attempt at a sync. Random, never zero once minted: it joins the logs of both sides.
struct SessionId {
  std::uint64_t value = 0;
  static SessionId Mint();
  std::string ToString() const;  // 16 hex digits
  friend auto operator<=>(const SessionId&, const SessionId&) = default;
};

// One life of one process: a restarted peer on the same address has another.
struct InstanceId {
  std::uint64_t value = 0;
  static InstanceId Mint();
  std::string ToString() const;
  friend auto operator<=>(const InstanceId&, const InstanceId&) = default;
};

}  // namespace bascule
