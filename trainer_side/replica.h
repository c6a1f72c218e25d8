// A replica and how the publish under way fares there.
//
// Thread-safety: confined to one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "bridge/send/publish_session.h"
#include "bridge/send/replica_connection.h"
#include "trainer_side/publish_policy.h"

namespace bascule {

struct Replica {
  std::unique_ptr<ReplicaConnection> connection;
  bool gathers = false;                    // it gets full tensors, all of them from this rank
  const WeightSource* gathered = nullptr;  // what it is sent then in the publish under way
  SendReport sent = {};
  ReplicaState state = ReplicaState::kAborted;

  const std::string& address() const { return connection->options().address; }
  bool Failed() const { return !sent.status.ok(); }
  void Begin() {
    gathered = nullptr;
    sent = {};
    state = ReplicaState::kAborted;
  }
  void Fail(const Status& why) {
    sent.status = connection->Failure(why);
    sent.phase = connection->phase();
  }
};

}  // namespace bascule
