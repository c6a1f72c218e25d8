// The devices of the fake CUDA runtime, for tests that ctest runs over it.
#pragma once

#include "device/backend.h"
#include "tests/support/device_work/device_work.h"

namespace bascule {

// Ends the program, and says how to run it, where the real runtime is loaded.
Device& FakeDevice(int ordinal = 0);

}  // namespace bascule
