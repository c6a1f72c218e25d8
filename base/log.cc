#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>

namespace bascule {
namespace {

std::atomic<bool> json_lines{false};

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = spdlog::stderr_color_mt("bascule");
    made->set_level(spdlog::level::warn);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %v", spdlog::pattern_time_type::utc);
    return made;
  }();
  return *logger;
}

std::string JsonEscaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return Status::InvalidArgument("bad_log_level", fmt::format("'{}' is none of debug, info, warn, error, off", name));
}

void SetLogLevel(LogLevel level) { Logger().set_level(SpdlogLevel(level)); }

void SetLogJson(bool json) {
  json_lines = json;
  if (json) Logger().set_pattern(R"({"at":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})", spdlog::pattern_time_type::utc);
}

bool LogEnabled(LogLevel level) { return Logger().should_log(SpdlogLevel(level)); }

void LogLine(LogLevel level, std::string_view event, std::string_view fields) {
  if (json_lines) {
    Logger().log(SpdlogLevel(level), R"("event":"{}","fields":"{}")", JsonEscaped(event), JsonEscaped(fields));
  } else {
    Logger().log(SpdlogLevel(level), "{} {}", event, fields);
  }
}

}  // namespace bascule
