// Status messages as the program's JSON.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <nlohmann/json.hpp>

#include "bascule/v1/version_status.pb.h"

namespace bascule {

using Json = nlohmann::ordered_json;

Json JsonOf(const v1::GetStatusResponse& status);
Json JsonOf(const v1::HistoryRow& row);
Json JsonOf(const v1::RollbackResponse& answer);

}  // namespace bascule
