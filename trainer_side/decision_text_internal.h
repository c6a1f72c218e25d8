// A CommitDecision as the text of its journal, and back. The text ends with its own hash.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>
#include <string_view>

#include "trainer_side/commit_journal.h"

namespace bascule {

std::string DecisionText(const CommitDecision& decision);

// DataLoss "bad_journal"  says which line
Result<CommitDecision> ParseDecision(std::string_view text);

}  // namespace bascule
