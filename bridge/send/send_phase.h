// Where a publish to one replica stands. A failure names it.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <string_view>

namespace bascule {

enum class SendPhase : std::uint8_t {
  kGroup,
  kConnect,
  kHello,
  kPlan,
  kOffer,
  kSend,
  kSeal,
  kVerify,
  kDecide,  // ready; the fleet has not decided
  kFlip,
  kRollback,
};

std::string_view SendPhaseName(SendPhase phase);  // "connect"

}  // namespace bascule
