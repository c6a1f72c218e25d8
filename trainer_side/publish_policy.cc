#include "trainer_side/publish_policy.h"

namespace bascule {

std::string_view ReplicaStateName(ReplicaState state) {
  switch (state) {
    case ReplicaState::kCommitted:
      return "committed";
    case ReplicaState::kAborted:
      return "aborted";
    case ReplicaState::kMissed:
      return "missed";
    case ReplicaState::kRolledBack:
      return "rolled_back";
  }
  return "unknown";
}

}  // namespace bascule
