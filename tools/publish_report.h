// What became of a publish, as JSON and for people.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/outcome.h"
#include "tools/output.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

// `transport`: the name of the one that all replicas used, where they do not say it themselves.
Json PublishReportJson(const PublishReport& report, std::string_view transport = {});
std::string PublishReportText(const PublishReport& report, const Output& out, std::string_view transport = {});
// Done when every replica has committed; else the failure that says most: a verification that failed before a replica
// that cannot be reached, before all else.
Outcome PublishOutcome(const PublishReport& report);

}  // namespace bascule
