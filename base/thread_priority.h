// Threads that give way to others of their process.
//
// Thread-safety: thread-safe.
#pragma once

namespace bascule {

// The calling thread works when threads of normal priority leave a core free, and gets a small share otherwise: `nice`
// from 1 (a little less) to 19 (about 1.5 % of a contended core); 0 changes nothing. Where the system refuses, the
// thread goes on as it is.
void GiveWay(int nice);

}  // namespace bascule
