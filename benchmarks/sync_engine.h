// The engine's end of a sync benchmark: a receiver, with or without a decoder that reads what it holds, behind a gRPC
// server for control, with one transport.
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
#include "engine_side/decode/decode_engine.h"
#include "engine_side/weight_receiver.h"
#include "model/model_config.h"

namespace bascule {

class SyncEngine {
 public:
  static constexpr double kStagingSlowdown = 1.25;  // as `bascule engine` has it
  // ResourceExhausted "slot_memory"; Unimplemented "transport_unavailable" (loopback); what a listener or a server can
  // fail with
  enum class Decoding { kNo, kYes };
  static Result<std::unique_ptr<SyncEngine>> Create(const ModelConfig& config, TransportKind kind,
                                                    Decoding decoding = Decoding::kNo, int tensor_parallel = 1);
  ~SyncEngine();
  const std::string& address() const { return server_->address(); }
  DecodeEngine* decode() { return decode_.get(); }  // null unless it decodes

 private:
  SyncEngine() = default;
  Status Listen(TransportKind kind, std::vector<grpc::Service*>& services);

  IdleHooks idle_;
  StagingThrottle throttle_{kStagingSlowdown, Clock::Real()};
  std::unique_ptr<DecodeEngine> decode_;
  std::unique_ptr<TransportListener> listener_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<GrpcControlService> control_;
  std::unique_ptr<GrpcServer> server_;
};

// A server in a process of its own, and where it listens.
struct RemoteServer {
  std::unique_ptr<PeerProcess> process;
  std::string address;
};

// Starts a process and waits for the first message of `body`: the address at which it listens.
Result<RemoteServer> StartServer(const std::function<Status(PeerLink&)>& body);
// A SyncEngine.
Result<RemoteServer> StartSyncEngine(const ModelConfig& config, TransportKind kind, int tensor_parallel = 1);

}  // namespace bascule
