// Log lines of the product as events of a schedule.
//
// Thread-safety: confined to the thread of the scheduler.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace bascule::simulation {

using LogListener = std::function<void(std::string_view event, std::string_view fields)>;
// Called in the fiber that logs, which may hold locks: it must not wait. Empty: nobody listens.
void ListenToLog(LogListener to);

// "7" of FieldOf("session=7 state=ready", "session"); empty when the line has no such field.
std::string_view FieldOf(std::string_view fields, std::string_view name);

}  // namespace bascule::simulation
