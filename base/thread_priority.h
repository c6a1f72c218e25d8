// Threads that give way to others of their process, or keep to cores of their own.
//
// Thread-safety: thread-safe.
#pragma once

#include <vector>

#include "base/status.h"

namespace bascule {

// The calling thread works when threads of normal priority leave a core free, and gets a small share otherwise: `nice`
// from 1 (a little less) to 19 (about 1.5 % of a contended core); 0 changes nothing. Where the system refuses, the
// thread goes on as it is.
void GiveWay(int nice);

// The calling thread, and threads that it starts, run on these cores only; none given: changes nothing. Where the
// system refuses, the thread goes on as it is.
void PinToCores(const std::vector<int>& cores);
// InvalidArgument "bad_cores"  one of them is not this process's to use, or is given twice
Status CheckCores(const std::vector<int>& cores);

}  // namespace bascule
