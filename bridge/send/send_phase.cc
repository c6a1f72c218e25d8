#include "bridge/send/send_phase.h"

namespace bascule {

std::string_view SendPhaseName(SendPhase phase) {
  switch (phase) {
    case SendPhase::kGroup:
      return "group";
    case SendPhase::kConnect:
      return "connect";
    case SendPhase::kHello:
      return "hello";
    case SendPhase::kPlan:
      return "plan";
    case SendPhase::kOffer:
      return "offer";
    case SendPhase::kSend:
      return "send";
    case SendPhase::kSeal:
      return "seal";
    case SendPhase::kVerify:
      return "verify";
    case SendPhase::kDecide:
      return "decide";
    case SendPhase::kFlip:
      return "flip";
    case SendPhase::kRollback:
      return "rollback";
  }
  return "unknown";
}

}  // namespace bascule
