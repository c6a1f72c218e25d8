// Structured log lines on stderr: one event token, then key=value fields. One line per state change, none per bucket
// above debug. spdlog stays out of this header.
//
//   LogInfo("session_sealed", "session={} version={} ms={}", id.ToString(), version, ms);
//
// Thread-safety: thread-safe.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "base/status.h"

namespace bascule {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// InvalidArgument "bad_log_level"
Result<LogLevel> ParseLogLevel(std::string_view name);  // debug info warn error off
void SetLogLevel(LogLevel level);                       // kWarn until set, so that libraries are quiet
void SetLogJson(bool json);                             // one JSON object a line
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view event, std::string_view fields);

template <typename... Args>
void LogAt(LogLevel level, std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) LogLine(level, event, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kDebug, event, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kInfo, event, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarn(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kWarn, event, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kError, event, format, std::forward<Args>(args)...);
}

}  // namespace bascule
