// The engine's end of a sync benchmark, in a process of its own: a receiver that decodes nothing, behind a gRPC server
// for control, and one transport.
//
// Thread-safety: confined to one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/grpc/grpc_server.h"
#include "base/status.h"
#include "benchmarks/peer_process.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/transport.h"
#include "engine_side/weight_receiver.h"
#include "model/model_config.h"

namespace bascule {

class SyncEngine {
 public:
  // `extra` is hosted too, borrowed.
  //
  // ResourceExhausted "slot_memory"; what a listener or a server can fail with
  static Result<std::unique_ptr<SyncEngine>> Create(const ModelConfig& config, TransportKind kind,
                                                    const std::vector<grpc::Service*>& extra = {});
  ~SyncEngine();
  const std::string& address() const { return server_->address(); }

 private:
  SyncEngine() = default;

  IdleHooks hooks_;
  std::unique_ptr<TransportListener> listener_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<GrpcControlService> control_;
  std::unique_ptr<GrpcServer> server_;
};

// Starts an engine in a new process and waits until it listens.
struct RemoteEngine {
  std::unique_ptr<PeerProcess> process;
  std::string address;
};
Result<RemoteEngine> StartSyncEngine(const ModelConfig& config, TransportKind kind,
                                     const std::function<std::vector<grpc::Service*>()>& make_extra = {});

}  // namespace bascule
