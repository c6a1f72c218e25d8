// The fake devices that this process sees, and which of them a thread uses.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace bascule::fake_cuda {

// By ordinal, which device of all each is.
const std::vector<int>& VisibleDevices();
// The calling thread's, as an ordinal; 0 at first.
int CurrentOrdinal();
void UseOrdinal(int ordinal);
// The calling thread's, of all.
int CurrentDevice();
int OrdinalOf(int device);
// Whether one can reach the other's memory: each its own, and others unless BASCULE_FAKE_CUDA_FAR names the pair.
bool AreNear(int device, int other);
void Describe(int device, cudaDeviceProp* properties);

// Devices that have been set up (CUDA's primary contexts), by ordinal: each takes memory of that device.
void SetUp(int ordinal);
bool IsSetUp(int ordinal);
int CountSetUp();
void ForgetSetUp();

}  // namespace bascule::fake_cuda
