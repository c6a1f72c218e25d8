// base/log.h for the simulation: instead of spdlog, whoever watches the schedule hears every line at once.
#include "tests/simulation/recorded_log.h"

#include "base/log.h"

namespace bascule {
namespace {

simulation::LogListener listener;

}  // namespace

namespace simulation {

void ListenToLog(LogListener to) { listener = std::move(to); }

std::string_view FieldOf(std::string_view fields, std::string_view name) {
  for (std::size_t at = 0; (at = fields.find(name, at)) != std::string_view::npos; ++at) {
    const std::size_t value = at + name.size() + 1;
    const bool begins = at == 0 || fields[at - 1] == ' ';
    if (begins && value <= fields.size() && fields[value - 1] == '=') {
      return fields.substr(value, fields.find(' ', value) - value);
    }
  }
  return {};
}

}  // namespace simulation

Result<LogLevel> ParseLogLevel(std::string_view name) {
  return Status::InvalidArgument("bad_log_level", std::string(name));
}
void SetLogLevel(LogLevel /*level*/) {}
void SetLogJson(bool /*json*/) {}
bool LogEnabled(LogLevel level) { return listener && level >= LogLevel::kInfo; }
void LogLine(LogLevel /*level*/, std::string_view event, std::string_view fields) { listener(event, fields); }

}  // namespace bascule
