// A serving engine: a decoder over a receiving process, which also serves rollouts.
//
// Thread-safety: confined to its owner.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/decode_engine.h"
#include "tools/logical_checkpoint.h"
#include "tools/receiving_process.h"

namespace bascule {

struct EngineProcessOptions : ReceivingOptions {
  int threads = 2;            // that compute, of all ranks together
  std::int64_t kv_pages = 0;  // 0: the decoder's default
  std::int32_t max_running = 64;
  std::int32_t max_waiting = 4096;
  KvPolicy kv_policy = KvPolicy::kRecompute;  // of requests that name none
  double staging_slowdown = 1.25;             // of decode steps, to which staging is held; 0: it never pauses
  std::vector<int> decode_cores;
  // Products of many rows by a library (kernels/fast_gemm.h); on devices, of rounded activations.
  bool fast_numerics = false;
  DecodeDevices decode_devices;  // one a rank, with the slots in their memory; none: processors
};

class EngineProcess {
 public:
  // For the model and in the types of `checkpoint`, which is not loaded yet.
  //
  // InvalidArgument "unsupported_dtype"; Unimplemented "numerics_unsupported" (fast numerics in a build without the
  // library, or on a processor for which it has no product); as CutOf, DecodeEngine::Create, ReceivingProcess::Create
  // and ReceivingProcess::Serve
  static Result<std::unique_ptr<EngineProcess>> Start(const EngineProcessOptions& options,
                                                      const LogicalCheckpoint& checkpoint);
  // Cancels running requests, ends every connection, gives all memory back.
  ~EngineProcess();

  ReceivingProcess& receiving();

 private:
  struct Parts;
  explicit EngineProcess(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace bascule
