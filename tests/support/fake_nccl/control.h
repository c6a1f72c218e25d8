// What a test may ask of the fake NCCL that its process has loaded in place of the real one. It is loaded by the first
// use of communicators. The environment, read when it is first called:
//
//   BASCULE_FAKE_NCCL_VERSION  as NCCL counts, "21805". Default: that of the header.
//   BASCULE_FAKE_CUDA_SEED     also of how often NCCL says that it is still at it. Default 1.
//   BASCULE_FAKE_CUDA_FAULTS   also of NCCL's functions: "ncclSend:3=lost", see FakeNccl::Fail.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>

namespace bascule {

// What is there now, in this process, and what its ranks have asked for, ever.
struct FakeNcclCensus {
  int communicators = 0;
  int registrations = 0;         // of memory
  int boards = 0;                // of communicators whose ranks have not all come, made here
  int ctas = 0;                  // of kernels that run, on all devices
  int waiting = 0;               // kernels that were launched and that their device has no room for
  int broadcasts = 0;            // by their roots
  std::uint64_t bytes_sent = 0;  // those of a broadcast once
};

class FakeNccl {
 public:
  static FakeNcclCensus Census();
  static void SetSeed(std::uint64_t seed);
  // The `nth` call from now of the function named (1: the next) fails with `error`, an ncclResult_t.
  static void Fail(const char* function, int nth, int error);
  // It succeeds, and what it began never ends: a rank that never arrives (ncclCommInitRankConfig), a move that no peer
  // answers, a call that does not come back (ncclCommAbort, ncclCommDestroy).
  static constexpr int kLost = -1;
  // Added to an error: it succeeds, and its communicator has that error from then on.
  static constexpr int kAsynchronous = 1000;
};

}  // namespace bascule
