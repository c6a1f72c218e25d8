// What a test may ask of the fake CUDA runtime that its process has loaded in place of the real one. The environment,
// read when the runtime is first called:
//
//   BASCULE_FAKE_CUDA_DEVICES  the devices this process sees, in its own order, as "1,0"; empty: none. Default "0".
//   BASCULE_FAKE_CUDA_FAR      pairs of devices that cannot reach each other's memory, as "0-1 2-3". Default: none.
//   BASCULE_FAKE_CUDA_MEMORY   bytes of one device. Default 1 GiB.
//   BASCULE_FAKE_CUDA_MULTIPROCESSORS  of each device. Default 132.
//   BASCULE_FAKE_CUDA_SEED     of the order in which streams run. Default 1.
//   BASCULE_FAKE_CUDA_STANDS   0: streams run in random order, but none stands for a while. For long work. Default 1.
//   BASCULE_FAKE_CUDA_FAULTS   "cudaMalloc:3=2 cudaEventRecord:1=lost": see FakeCuda::Fail.
//   BASCULE_FAKE_CUDA_KERNELS  the library of kernels, see kernel_table.h.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>

namespace bascule {

// What is there now, in this process.
struct FakeCudaCensus {
  int allocations = 0;         // of device memory
  int pinned_allocations = 0;  // of host memory
  int opened_allocations = 0;  // of other processes
  int streams = 0;
  int events = 0;    // made and opened
  int launches = 0;  // of kernels, ever; those of a graph once, when they are captured
  int graphs = 0;    // that can be launched
  int set_up = 0;    // devices that somebody has used: each costs memory of its own
};

class FakeCuda {
 public:
  // Whether the loaded libcudart is the fake: run by hand, a test may have found the real one.
  static bool IsLoaded();
  static FakeCudaCensus Census();
  // From now on streams run in an order drawn from `seed`.
  static void SetSeed(std::uint64_t seed);
  // The `nth` call from now of the function named (1: the next) fails with `error`, a cudaError_t. kLost: it succeeds,
  // and what it enqueued never runs; a wait for an event lets everything pass. "*": of all functions together.
  static void Fail(const char* function, int nth, int error);
  static constexpr int kLost = -1;
  // What has not come yet of the faults that were ordered will not come. How many those were.
  static int TakeBackFaults();
  // As if nobody had used any device yet.
  static void ForgetSetUp();
};

}  // namespace bascule
