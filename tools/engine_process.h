// A serving engine: a decoder over a weight receiver, its listeners for weights, and one gRPC server for control,
// status and rollouts. It answers from the start; once a first version is live it is ready.
//
// Thread-safety: confined to its owner.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/flip_mode.h"
#include "engine_side/stall_budget.h"
#include "engine_side/weight_receiver.h"
#include "model/parallel_layout.h"
#include "tools/logical_checkpoint.h"

namespace bascule {

struct EngineProcessOptions {
  std::string listen;
  int slot_count = 2;
  FlipMode flip = FlipMode::kShadow;
  StallBudget stall_budget;
  bool full_tensors = false;  // takes nothing else
  WantedDType dtype = WantedDType::kKeep;
  ParallelLayout parallel;    // its ranks share this process
  int threads = 2;            // of all ranks together
  std::int64_t kv_pages = 0;  // 0: the decoder's default
  std::int32_t max_running = 64;
  std::int32_t max_waiting = 4096;
  KvPolicy kv_policy = KvPolicy::kRecompute;  // of requests that name none
  double staging_slowdown = 1.25;             // of decode steps, to which staging is held; 0: it never pauses
  std::vector<int> staging_cores;             // none: any
  std::vector<int> decode_cores;
  ReadOptions read;                      // of versions from disk
  std::vector<std::string> allow_roots;  // directories beneath which versions may be loaded on behalf of a peer
  ServerSecurity security;
  ClientSecurity peers;  // of engines that this one sends its version to
};

class EngineProcess {
 public:
  // For the model and in the types of `checkpoint`, which is not loaded yet.
  //
  // InvalidArgument "unsupported_dtype"; Unimplemented "unsupported_parallel"; as CheckFingerprint,
  // CheckCut, AllowedRoot::Open, MakeEngineLayout, DecodeEngine::Create, WeightReceiver::Create, GrpcServer::Start
  static Result<std::unique_ptr<EngineProcess>> Start(const EngineProcessOptions& options,
                                                      const LogicalCheckpoint& checkpoint);
  // Cancels running requests, ends every connection, gives all memory back.
  ~EngineProcess();

  // Where the server listens.
  const std::string& address() const;
  WeightReceiver& receiver();
  // The cold start takes the way of every other version: plan, staging, verify, flip. Gives what is live then. Of an
  // artifact engine memory must be what its manifest says ("digest_mismatch", "artifact_altered").
  Result<WeightVersion> Load(const LogicalCheckpoint& checkpoint, const std::string& run, std::uint64_t number,
                             Deadline deadline, std::stop_token stop);

 private:
  struct Parts;
  explicit EngineProcess(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace bascule
