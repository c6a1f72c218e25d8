// Version status for people: the same facts as the JSON, as a few lines.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/output.h"

namespace bascule {

// Of an engine or a publisher.
std::string StatusText(const Json& status, const Output& out);
std::string HistoryText(const std::vector<Json>& rows);

}  // namespace bascule
