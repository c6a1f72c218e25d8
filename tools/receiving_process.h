// What an engine and a cache daemon have in common as processes: a weight receiver, its listeners for weights, and one
// gRPC server for control, status, versions from disk and versions for peers. It answers from the start; once a first
// version is live it is ready, and its health says so.
//
// Thread-safety: confined to its owner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "checkpoint/artifact_manifest.h"
#include "engine_side/flip_mode.h"
#include "engine_side/grpc/version_status_service.h"
#include "engine_side/staging_throttle.h"
#include "engine_side/stall_budget.h"
#include "engine_side/weight_receiver.h"
#include "model/engine_layout.h"
#include "model/parallel_layout.h"
#include "tools/logical_checkpoint.h"

namespace bascule {

struct ReceivingOptions {
  std::string listen;
  int slot_count = 2;
  SlotMemory slot_memory;
  // Of each engine rank, as WeightReceiverOptions::devices. Where there are any, cuda_ipc is offered; where NCCL is
  // there, nccl.
  std::vector<Device*> devices;
  std::optional<TransportKind> transport;  // the only one that publishers are offered; none: all that there are
  FlipMode flip = FlipMode::kShadow;
  StallBudget stall_budget;
  bool full_tensors = false;  // takes nothing else
  WantedDType dtype = WantedDType::kKeep;
  ParallelLayout parallel;               // its ranks share this process
  std::vector<int> staging_cores;        // none: any
  ReadOptions read;                      // of versions from disk
  std::vector<std::string> allow_roots;  // directories beneath which versions may be loaded on behalf of a peer
  ServerSecurity security;
  ClientSecurity peers;  // of engines that this one sends its version to
};

// How a model is held: for whom, and where each byte is.
struct ModelCut {
  ArtifactFingerprint fingerprint;
  EngineLayout layout;
};

// For the model and in the types of `checkpoint`.
//
// DataLoss "no_tensors"; Unimplemented "unsupported_parallel"; as CheckFingerprint, CheckCut and MakeEngineLayout
Result<ModelCut> CutOf(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel, WantedDType dtype);

// An artifact brings its own cut, unless another tensor-parallel size is asked for (which it then does not fit).
ParallelLayout ParallelWanted(const LogicalCheckpoint& checkpoint, std::optional<int> tensor_parallel);

class ReceivingProcess {
 public:
  // Of `checkpoint` only the model counts: it is not loaded yet. `hooks` and `throttle`, which may be null, are
  // borrowed.
  //
  // as AllowedRoot::Open and WeightReceiver::Create
  static Result<std::unique_ptr<ReceivingProcess>> Create(const ReceivingOptions& options, ModelCut cut,
                                                          const LogicalCheckpoint& checkpoint, EngineHooks& hooks,
                                                          StagingThrottle* throttle);
  // Ends every connection, gives all memory back.
  ~ReceivingProcess();

  // Serves from now on, and `services`, which are borrowed, beside its own.
  //
  // as GrpcServer::Start
  Status Serve(std::function<ServingStatus()> serving, std::vector<grpc::Service*> services = {});

  // Where the server listens.
  const std::string& address() const;
  WeightReceiver& receiver();
  const ArtifactFingerprint& fingerprint() const;
  // The cold start takes the way of every other version: plan, staging, verify, flip. Gives what is live then. Of an
  // artifact engine memory must be what its manifest says ("digest_mismatch", "artifact_altered"). A publisher may have
  // been quicker ("already_live"), or be at work ("publisher_busy", "fenced").
  Result<WeightVersion> Load(const LogicalCheckpoint& checkpoint, const std::string& run, std::uint64_t number,
                             Deadline deadline, std::stop_token stop);

 private:
  struct Parts;
  explicit ReceivingProcess(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace bascule
