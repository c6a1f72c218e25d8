// What the connections and sessions of one receiver share.
#pragma once

#include "base/clock.h"
#include "engine_side/derived_tensors.h"
#include "engine_side/flip_gate.h"
#include "engine_side/receive_plan.h"
#include "engine_side/session_registry.h"
#include "engine_side/status_board.h"
#include "engine_side/weight_receiver.h"
#include "engine_side/weight_slots.h"

namespace bascule {

// Borrowed; each is thread-safe.
struct ReceiverParts {
  const WeightReceiverOptions& options;
  InstanceId engine;
  Clock& clock;
  WeightSlots& slots;
  FlipGate& gate;
  StatusBoard& board;
  SessionRegistry& registry;
  ReceivePlanCache& plans;
  EngineHooks& hooks;
  const DerivedTensors& derived;
};

}  // namespace bascule
