// What the program says when it cannot go on: memory or a thread was refused where nothing can be given up for it.
//
// Thread-safety: thread-safe.
#pragma once

namespace bascule {

// From here on a thread that fails so ends the process as a failed operation does: a line on stderr, the error object
// on stdout with `json`, exit code 1. Peers see it as they see any process that dies.
void SpeakLastWords(bool json);

}  // namespace bascule
